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

// The names are what the journal keeps: a body may be renamed or moved, a name
// may not be changed while a census is under way.
var (
	Census          = replay.Orchestration[Request, Report]("census")
	CountDirectory  = replay.Orchestration[string, Directory]("count directory")
	ListDirectories = replay.Activity[Position, Page]("list directories")
	ListFiles       = replay.Activity[Position, Page]("list files")
	CountFile       = replay.Activity[string, File]("count file")
)

// A Request is what the root is started with. All that decides what the code
// does must be recorded, and so the width is in here: another one on the next
// start would make the code disagree with its history.
type Request struct {
	Source string
	Width  int
}

// A Directory is what became of one directory, not counting those below it.
type Directory struct {
	Totals
	Languages  map[string]Totals
	Unreadable Unreadable
	// The SHA-256 of a line for each file in order of names, "digest  name", as
	// sha256sum prints it: LC_ALL=C sha256sum * | sha256sum gives the same.
	Digest string
}

// definitions binds the bodies to what they work on.
func definitions(tree *tree, progress *progress) []replay.Definition {
	root := &root{progress: progress}
	return []replay.Definition{
		Census.Bind(root.census),
		CountDirectory.Bind(countDirectory),
		ListDirectories.Bind(counted(progress, tree.listDirectories)),
		ListFiles.Bind(counted(progress, tree.listFiles)),
		CountFile.Bind(counted(progress, tree.countFile)),
	}
}

// patience is for files that cannot be read just now. Those that never can be
// say so themselves. A limit there must be: a broken disk is not to keep the
// census waiting for ever.
var patience = replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 3})

// A root holds what the root's code shows to people. It decides nothing by it.
type root struct{ progress *progress }

// census is the root: which directories there are, what is in each, the sum.
func (r *root) census(ctx *replay.Context, request Request) (Report, error) {
	sum := newSum(request.Source, ctx.Now())
	paths, err := r.directories(ctx, sum)
	if err != nil {
		return Report{}, err
	}
	if err := r.countAll(ctx, paths, request.Width, sum); err != nil {
		return Report{}, err
	}
	return sum.report(ctx.Now()), nil
}

// directories lists them, page after page.
func (r *root) directories(ctx *replay.Context, sum *sum) ([]string, error) {
	var paths []string
	position := Position{Directory: sum.total.Source}
	for {
		page, err := ListDirectories.Call(ctx, position, patience)
		if err != nil {
			return nil, err
		}
		paths = append(paths, page.Names...)
		sum.total.Skipped += page.Skipped
		r.progress.stands(standing{directories: len(paths)})
		if page.Next == "" {
			return paths, nil
		}
		position.After = page.Next
	}
}

// countAll counts width directories at a time. As many coroutines take the next
// path when they are done with one. They share paths and sum without a lock,
// because only one of them runs at a time, and which one the history says.
func (r *root) countAll(ctx *replay.Context, paths []string, width int, sum *sum) error {
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
			// Not "one more" but where it stands: this code runs again when the
			// program is started again.
			r.progress.stands(standing{directories: len(paths), done: sum.total.Directories, total: sum.total.Totals})
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

// countDirectory is a child of the root: the files of one directory, all that a
// page holds at once.
func countDirectory(ctx *replay.Context, path string) (Directory, error) {
	directory := Directory{Languages: make(map[string]Totals)}
	lines := sha256.New()
	position := Position{Directory: path}
	for {
		page, err := ListFiles.Call(ctx, position, patience)
		if directory.Unreadable.add(path, err) {
			break
		}
		if err != nil {
			return directory, err
		}
		files := make([]*replay.Future[File], len(page.Names))
		for i, name := range page.Names {
			files[i] = CountFile.Start(ctx, filepath.Join(path, name), patience)
		}
		// All are under way, so it costs no time to take them in order.
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

// add counts what could not be read and tells whether err says so. Any other
// error (that the instance was cancelled, say) is not about the file.
func (u *Unreadable) add(path string, err error) bool {
	var failed *replay.ActivityError
	if !errors.As(err, &failed) {
		return false
	}
	u.merge(Unreadable{Count: 1, First: []Failure{{Path: path, Reason: failed.Err.Error()}}})
	return true
}
