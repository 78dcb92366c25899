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

// A Position is where a page of a listing begins: behind After, in the order of
// the listing; at its beginning if After is empty.
type Position struct {
	Directory string
	After     string
}

// A Page is a part of a listing.
type Page struct {
	Names   []string
	Skipped int    // what is neither a file nor a directory, or has no name in UTF-8
	Next    string // After of the next page; empty when this is the last
}

// A File is what was found in one file.
type File struct {
	Totals
	Language string
	SHA256   string
}

// pageBytes bounds a page, so that two limits hold whatever the names are. Its
// record must fit into a payload of 1 MiB, where JSON may need six bytes for
// one. And to start something for each of its names must fit into one step of
// the orchestration, 4 MiB, where each takes nameOverhead on top.
const (
	pageBytes    = 160 << 10
	nameOverhead = 128
)

// A tree is the activities: all that touches the file system.
type tree struct {
	ledger    *ledger
	delay     time.Duration // at most, with each file
	pageBytes int           // defaults to pageBytes
}

// full tells whether a page has no room for another name. It has room for one.
func (t *tree) full(used int, path string) bool {
	limit := t.pageBytes
	if limit == 0 {
		limit = pageBytes
	}
	return used > 0 && used+weight(path) > limit
}

func weight(path string) int { return len(path) + nameOverhead }

// recordable tells whether the entry is a file or a directory whose name
// survives being written down: JSON has only UTF-8.
func recordable(entry fs.DirEntry) bool {
	return (entry.IsDir() || entry.Type().IsRegular()) && utf8.ValidString(entry.Name())
}

// listFiles lists the regular files of one directory by name.
func (t *tree) listFiles(_ context.Context, from Position) (Page, error) {
	entries, err := os.ReadDir(from.Directory)
	if err != nil {
		return Page{}, final(err)
	}
	first := sort.Search(len(entries), func(i int) bool { return entries[i].Name() > from.After })
	var page Page
	used := 0
	for _, entry := range entries[first:] {
		if entry.IsDir() || !recordable(entry) {
			continue
		}
		path := filepath.Join(from.Directory, entry.Name())
		if t.full(used, path) {
			page.Next = page.Names[len(page.Names)-1]
			break
		}
		used += weight(path)
		page.Names = append(page.Names, entry.Name())
	}
	return page, nil
}

// listDirectories lists the directories of a tree that hold regular files, each
// before those below it, as paths from its top.
func (t *tree) listDirectories(ctx context.Context, from Position) (Page, error) {
	w := &walk{context: ctx, tree: t, top: from.Directory, after: walkKey(from.After)}
	err := w.directory(".")
	switch {
	case errors.Is(err, errFull):
		w.page.Next = w.last
	case err != nil:
		return Page{}, final(err)
	}
	return w.page, nil
}

var errFull = errors.New("the page is full")

// A walk fills one page with directories.
type walk struct {
	context context.Context
	tree    *tree
	top     string
	after   string // the key of the last directory that an earlier page has seen
	last    string // the last one seen on this
	page    Page
	used    int
}

// walkKey orders paths as the walk meets them: those below a directory right
// behind it. No name holds a zero.
func walkKey(path string) string {
	if path == "." {
		return "\x00"
	}
	return strings.ReplaceAll(path, "/", "\x00")
}

// directory walks one directory and those below it, as far as the page goes.
func (w *walk) directory(path string) error {
	key := walkKey(path)
	below := path == "." || strings.HasPrefix(w.after, key+"\x00")
	if key < w.after && !below {
		return w.context.Err() // it and all below it were on an earlier page
	}
	entries, err := os.ReadDir(filepath.Join(w.top, path))
	if err != nil && path == "." {
		return err
	}
	if key > w.after {
		if err := w.see(path, entries, err); err != nil {
			return err
		}
	}
	for _, entry := range entries {
		if !entry.IsDir() || !recordable(entry) {
			continue
		}
		if err := w.directory(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// see puts a directory on the page if there are files in it. One that cannot be
// read is put there too: it is the child's to say so.
func (w *walk) see(path string, entries []fs.DirEntry, failure error) error {
	files, skipped := failure != nil, 0
	for _, entry := range entries {
		switch {
		case !recordable(entry):
			skipped++
		case !entry.IsDir():
			files = true
		}
	}
	if files {
		if w.tree.full(w.used, path) {
			return errFull
		}
		w.used += weight(path)
		w.page.Names = append(w.page.Names, path)
	}
	w.page.Skipped += skipped
	w.last = path
	return w.context.Err()
}

// buffers are shared by the many files that are read at once.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// countFile reads one file, however large, through one buffer.
func (t *tree) countFile(ctx context.Context, path string) (File, error) {
	if err := t.ledger.note(path); err != nil {
		return File{}, err
	}
	if err := t.wait(ctx); err != nil {
		return File{}, err
	}
	source, err := os.Open(path)
	if err != nil {
		return File{}, final(err)
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
			return File{}, final(err)
		}
	}
	if last != '\n' {
		file.Lines++ // a last line need not end in a newline
	}
	file.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return file, nil
}

// wait is a slow disk for those who want to see something.
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

// final says of errors that no second attempt would mend that there is to be
// none. The path is left out: who reports the error knows it.
func final(err error) error {
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

// A ledger is where executions of countFile are written down, beside the
// journal and unknown to it. A nil one writes nothing.
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

// note writes a whole line at once, so that neither a kill nor another writer
// can cut it.
func (l *ledger) note(path string) error {
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

// languageOf judges by the extension alone.
func languageOf(path string) string {
	if language, ok := languages[strings.ToLower(filepath.Ext(path))]; ok {
		return language
	}
	return otherLanguage
}
