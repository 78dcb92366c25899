package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// The journal stores the names. A body may be renamed or moved, but a name must not change
// while a census is running.
var (
	Census          = replay.Orchestration[Request, Report]("census")
	CountDirectory  = replay.Orchestration[string, Directory]("count directory")
	ListDirectories = replay.Activity[Position, Page]("list directories")
	ListFiles       = replay.Activity[Position, Page]("list files")
	CountFile       = replay.Activity[string, File]("count file")
)

// A Request is the input of the root. It contains the width, because everything that decides
// what the code does must be recorded: another width after a restart would not match the
// history.
type Request struct {
	Source string
	Width  int
}

// A Directory is the result for one directory without its subdirectories.
type Directory struct {
	Totals
	Languages  map[string]Totals
	Unreadable Unreadable
	// The SHA-256 of the lines "digest  name", sorted by name, as sha256sum prints them:
	// LC_ALL=C sha256sum * | sha256sum gives the same.
	Digest string
}

// definitions binds the bodies to a tree and a progress display.
func definitions(tree *tree, progress *progress) []replay.Definition {
	root := &root{progress: progress}
	return []replay.Definition{
		Census.Bind(root.census),
		CountDirectory.Bind(countDirectory),
		ListDirectories.Bind(countExecutions(progress, tree.listDirectories)),
		ListFiles.Bind(countExecutions(progress, tree.listFiles)),
		CountFile.Bind(countExecutions(progress, tree.countFile)),
	}
}

// retryOption is for temporary read errors. The limit keeps a broken disk from blocking the
// census forever.
var retryOption = replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 3})

// A root holds the progress display of the root orchestration, whose decisions do not depend on it.
type root struct{ progress *progress }

// census is the root orchestration: list the directories, count each, sum up.
func (r *root) census(ctx *replay.Context, request Request) (Report, error) {
	sum := newAggregate(request.Source, ctx.Now())
	paths, err := r.directories(ctx, sum)
	if err != nil {
		return Report{}, err
	}
	if err := r.countAll(ctx, paths, request.Width, sum); err != nil {
		return Report{}, err
	}
	return sum.report(ctx.Now()), nil
}

// directories lists all directories, page by page.
func (r *root) directories(ctx *replay.Context, sum *aggregate) ([]string, error) {
	var paths []string
	position := Position{Directory: sum.total.Source}
	for {
		page, err := ListDirectories.Call(ctx, position, retryOption)
		if err != nil {
			return nil, err
		}
		paths = append(paths, page.Names...)
		sum.total.Skipped += page.Skipped
		r.progress.setState(progressState{directories: len(paths)})
		if page.Next == "" {
			return paths, nil
		}
		position.After = page.Next
	}
}

// countAll counts width directories at a time. Each of width coroutines takes one path after
// another. They share paths and sum without a lock, because only one of them runs at a time, in an
// order that the history fixes.
func (r *root) countAll(ctx *replay.Context, paths []string, width int, sum *aggregate) error {
	next := 0
	take := func(ctx *replay.Context) (struct{}, error) {
		for next < len(paths) {
			path := paths[next]
			next++
			directory, err := CountDirectory.Call(ctx, filepath.Join(sum.total.Source, path))
			if err != nil {
				return struct{}{}, fmt.Errorf("count %s: %w", path, err)
			}
			sum.add(path, directory)
			// Set absolute numbers: this code runs again after a restart.
			r.progress.setState(progressState{directories: len(paths), done: sum.total.Directories, total: sum.total.Totals})
		}
		return struct{}{}, nil
	}
	coroutines := make([]*replay.Future[struct{}], min(width, len(paths)))
	for i := range coroutines {
		coroutines[i] = replay.Go(ctx, take)
	}
	_, err := replay.All(ctx, coroutines...)
	return err
}

// countDirectory is a child of the root. It counts all files of a page concurrently.
func countDirectory(ctx *replay.Context, path string) (Directory, error) {
	directory := Directory{Languages: make(map[string]Totals)}
	lines := sha256.New()
	position := Position{Directory: path}
	for {
		page, err := ListFiles.Call(ctx, position, retryOption)
		if directory.Unreadable.add(path, err) {
			break
		}
		if err != nil {
			return directory, err
		}
		files := make([]*replay.Future[File], len(page.Names))
		for i, name := range page.Names {
			files[i] = CountFile.Start(ctx, filepath.Join(path, name), retryOption)
		}
		// All are running, so awaiting them in order costs no time.
		for i, name := range page.Names {
			file, err := files[i].Await(ctx)
			if directory.Unreadable.add(filepath.Join(path, name), err) {
				continue
			}
			if err != nil {
				return directory, err
			}
			directory.add(file.Language, file.Totals)
			fmt.Fprintf(lines, "%s  %s\n", file.SHA256, name)
		}
		if page.Next == "" {
			break
		}
		position.After = page.Next
	}
	directory.Digest = hex.EncodeToString(lines.Sum(nil))
	return directory, nil
}

func (d *Directory) add(language string, t Totals) {
	d.Totals.add(t)
	of := d.Languages[language]
	of.add(t)
	d.Languages[language] = of
}

// add counts a failed activity and reports whether err is one. Other errors, such as a
// cancellation, are not about the file.
func (u *Unreadable) add(path string, err error) bool {
	var failed *replay.ActivityError
	if !errors.As(err, &failed) {
		return false
	}
	u.merge(Unreadable{Count: 1, First: []Failure{{Path: path, Reason: failed.Err.Error()}}})
	return true
}
