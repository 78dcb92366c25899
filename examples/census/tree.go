package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Position is where a page of a listing begins: directly after the entry After, or at the
// beginning if After is empty.
type Position struct {
	Directory string
	After     string
}

// A Page is a part of a listing.
type Page struct {
	Names   []string
	Skipped int    // entries that are neither files nor directories, or have no UTF-8 name
	Next    string // After of the next page; empty on the last page
}

// A File is the result for one file.
type File struct {
	Totals
	Language string
	SHA256   string
}

// pageBytes bounds a page so that two limits hold for any names. The page must fit into a
// payload of 1 MiB, in which JSON may need six bytes for one. And the operations for all its
// names must fit into one step of 4 MiB, in which each takes nameOverhead more.
const (
	pageBytes    = 160 << 10
	nameOverhead = 128
)

// A tree holds the activities, which contain all access to the file system.
type tree struct {
	ledger    *ledger
	delay     time.Duration // the maximum, for each file
	pageBytes int           // defaults to pageBytes
}

// isFull reports whether a page has no room for another name. A page always has room for one.
func (t *tree) isFull(used int, path string) bool {
	limit := t.pageBytes
	if limit == 0 {
		limit = pageBytes
	}
	return used > 0 && used+recordSize(path) > limit
}

func recordSize(path string) int { return len(path) + nameOverhead }

// isRecordable reports whether the entry is a file or directory whose name JSON can represent,
// that is, in UTF-8.
func isRecordable(entry fs.DirEntry) bool {
	return (entry.IsDir() || entry.Type().IsRegular()) && utf8.ValidString(entry.Name())
}

// listFiles lists the regular files of one directory by name.
func (t *tree) listFiles(_ context.Context, from Position) (Page, error) {
	entries, err := os.ReadDir(from.Directory)
	if err != nil {
		return Page{}, markNonRetryable(err)
	}
	first := sort.Search(len(entries), func(i int) bool { return entries[i].Name() > from.After })
	var page Page
	used := 0
	for _, entry := range entries[first:] {
		if entry.IsDir() || !isRecordable(entry) {
			continue
		}
		path := filepath.Join(from.Directory, entry.Name())
		if t.isFull(used, path) {
			page.Next = page.Names[len(page.Names)-1]
			break
		}
		used += recordSize(path)
		page.Names = append(page.Names, entry.Name())
	}
	return page, nil
}

// listDirectories lists the directories that contain regular files, parents first, as paths
// relative to the root of the tree.
func (t *tree) listDirectories(ctx context.Context, from Position) (Page, error) {
	w := &walk{context: ctx, tree: t, top: from.Directory, after: walkKey(from.After)}
	err := w.directory(".")
	switch {
	case errors.Is(err, errPageFull):
		w.page.Next = w.last
	case err != nil:
		return Page{}, markNonRetryable(err)
	}
	return w.page, nil
}

var errPageFull = errors.New("the page is full")

// A walk fills one page with directories.
type walk struct {
	context context.Context
	tree    *tree
	top     string
	after   string // the key of the last directory of earlier pages
	last    string // the last directory of this page
	page    Page
	used    int
}

// walkKey maps paths to keys in the order of the walk: subdirectories directly follow their
// parent. No name contains a zero byte.
func walkKey(path string) string {
	if path == "." {
		return "\x00"
	}
	return strings.ReplaceAll(path, "/", "\x00")
}

// directory walks one directory and its subdirectories until the page is full.
func (w *walk) directory(path string) error {
	key := walkKey(path)
	below := path == "." || strings.HasPrefix(w.after, key+"\x00")
	if key < w.after && !below {
		return w.context.Err() // completely on earlier pages
	}
	entries, err := os.ReadDir(filepath.Join(w.top, path))
	if err != nil && path == "." {
		return err
	}
	if key > w.after {
		if err := w.addDirectory(path, entries, err); err != nil {
			return err
		}
	}
	for _, entry := range entries {
		if !entry.IsDir() || !isRecordable(entry) {
			continue
		}
		if err := w.directory(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// addDirectory adds a directory to the page if it contains files. It also adds an unreadable
// one, so that its child reports the error.
func (w *walk) addDirectory(path string, entries []fs.DirEntry, failure error) error {
	files, skipped := failure != nil, 0
	for _, entry := range entries {
		switch {
		case !isRecordable(entry):
			skipped++
		case !entry.IsDir():
			files = true
		}
	}
	if files {
		if w.tree.isFull(w.used, path) {
			return errPageFull
		}
		w.used += recordSize(path)
		w.page.Names = append(w.page.Names, path)
	}
	w.page.Skipped += skipped
	w.last = path
	return w.context.Err()
}

// buffers are shared by concurrent reads.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// countFile reads one file of any size through one buffer.
func (t *tree) countFile(ctx context.Context, path string) (File, error) {
	if err := t.ledger.record(path); err != nil {
		return File{}, err
	}
	if err := t.wait(ctx); err != nil {
		return File{}, err
	}
	source, err := os.Open(path)
	if err != nil {
		return File{}, markNonRetryable(err)
	}
	defer source.Close()
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)

	file := File{Totals: Totals{Files: 1}, Language: languageOf(path)}
	hash := sha256.New()
	last := byte('\n')
	for {
		n, err := source.Read(buffer[:])
		if n > 0 {
			hash.Write(buffer[:n])
			file.Bytes += int64(n)
			file.Lines += int64(bytes.Count(buffer[:n], []byte{'\n'}))
			last = buffer[n-1]
		}
		if err == io.EOF {
			break
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return File{}, markNonRetryable(err)
		}
	}
	if last != '\n' {
		file.Lines++ // a last line need not end in a newline
	}
	file.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return file, nil
}

// wait simulates a slow disk.
func (t *tree) wait(ctx context.Context) error {
	if t.delay <= 0 {
		return nil
	}
	select {
	case <-time.After(rand.N(t.delay)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// markNonRetryable marks errors that a retry cannot fix. It removes the path, which the caller
// reports.
func markNonRetryable(err error) error {
	never := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	if never {
		return replay.NonRetryable(err)
	}
	return err
}

// A ledger records executions of countFile independently of the journal. A nil ledger records
// nothing.
type ledger struct{ file *os.File }

func openLedger(path string) (*ledger, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return &ledger{file}, nil
}

// record writes a whole line at once, so that neither a kill nor another writer can split it.
func (l *ledger) record(path string) error {
	if l == nil {
		return nil
	}
	_, err := l.file.WriteString(path + "\n")
	return err
}

func (l *ledger) close() {
	if l != nil {
		_ = l.file.Close()
	}
}

var languages = map[string]string{
	".go": "Go", ".mod": "Go module", ".sum": "Go module", ".work": "Go module",
	".s": "Assembly", ".asm": "Assembly",
	".c": "C", ".h": "C", ".cc": "C++", ".cpp": "C++", ".cxx": "C++", ".hpp": "C++",
	".m": "Objective-C", ".swift": "Swift", ".rs": "Rust", ".zig": "Zig",
	".java": "Java", ".kt": "Kotlin", ".scala": "Scala", ".cs": "C#",
	".py": "Python", ".rb": "Ruby", ".pl": "Perl", ".php": "PHP", ".lua": "Lua",
	".js": "JavaScript", ".mjs": "JavaScript", ".ts": "TypeScript", ".tsx": "TypeScript",
	".html": "HTML", ".tmpl": "Template", ".css": "CSS", ".svg": "SVG", ".xml": "XML",
	".sh": "Shell", ".bash": "Shell", ".rc": "Shell", ".bat": "Batch", ".sql": "SQL",
	".proto": "Protobuf", ".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML",
	".md": "Markdown", ".txt": "Text", ".rst": "Text",
}

const otherLanguage = "other"

// languageOf uses only the extension.
func languageOf(path string) string {
	if language, ok := languages[strings.ToLower(filepath.Ext(path))]; ok {
		return language
	}
	return otherLanguage
}
