package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/replay"
)

var ignoreTimes = cmpopts.IgnoreFields(Report{}, "Began", "Ended")

// testTimeout ends a test that hangs.
const testTimeout = 5 * time.Minute

// takeCensus takes a census in this process, in memory if dir is empty.
func takeCensus(t *testing.T, dir, source string, width int, definitions []replay.Definition) Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	report, err := cluster.Call(ctx, node.Client(), Census, censusID, Request{Source: source, Width: width})
	if err != nil {
		t.Fatal(err)
	}
	if took := report.Ended.Sub(report.Began); took <= 0 || took > testTimeout {
		t.Errorf("it took %v by the journal", took)
	}
	return report
}

func newQuietProgress(t *testing.T) *progress {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "terminal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return newProgress(out)
}

// oddTree creates a tree of edge cases.
func oddTree(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	for path, content := range map[string]string{
		"top.go":           "package top\n",
		"a/empty.txt":      "",
		"a/newline.md":     "\n",
		"a/two.go":         "package a\n\n// no newline at the end",
		"a/b/deep.py":      "pass\n",
		"a-b/before.C":     "int x;\n", // '-' sorts before '/', but the walk comes here after a/b
		"a.b/x":            "no extension",
		"+/plus.S":         "NOP\n", // sorts before "."
		"only/sub/dirs.go": "package dirs\n",
		"ä ö/<&>\n\".go":   "package quoted\n",
		"big/big.txt":      strings.Repeat("0123456789\n", 50_000),
		"same/1.txt":       "12345",
		"same2/2.txt":      "54321",
	} {
		writeFile(t, filepath.Join(top, path), content)
	}
	for i := range 40 {
		writeFile(t, filepath.Join(top, "wide", fmt.Sprintf("%d.json", i)), fmt.Sprint(i))
	}
	for _, err := range []error{
		os.MkdirAll(filepath.Join(top, "nothing", "at", "all"), 0o700),
		os.Symlink(filepath.Join(top, "top.go"), filepath.Join(top, "link.go")),
		os.Symlink(filepath.Join(top, "a"), filepath.Join(top, "nothing", "link")),
		syscall.Mkfifo(filepath.Join(top, "only", "pipe.go"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCensus_OddTree(t *testing.T) {
	top := oddTree(t)
	want := independentReport(t, top)
	if want.Files != 53 || want.Skipped != 3 || want.Directories != 12 {
		t.Fatalf("the test itself counts %d files in %d directories, %d skipped", want.Files, want.Directories, want.Skipped)
	}
	for _, c := range []struct{ pageBytes, width int }{{0, 64}, {0, 1}, {1, 2}, {400, 3}} {
		t.Run(fmt.Sprintf("pages of %d bytes, width %d", c.pageBytes, c.width), func(t *testing.T) {
			progress := newQuietProgress(t)
			got := takeCensus(t, "", top, c.width, definitions(&tree{pageBytes: c.pageBytes}, progress))
			if diff := cmp.Diff(want, got, ignoreTimes); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			all := progressState{directories: want.Directories, done: want.Directories, total: want.Totals}
			if progress.state != all {
				t.Errorf("the progress ends at %+v, want %+v", progress.state, all)
			}
			if n := progress.executed.Load(); n < want.Files+int64(want.Directories)+1 {
				t.Errorf("%d activities were executed", n)
			}
		})
	}
}

func TestCensus_EmptyTree(t *testing.T) {
	top := t.TempDir()
	got := takeCensus(t, "", top, 8, definitions(new(tree), newQuietProgress(t)))
	if diff := cmp.Diff(independentReport(t, top), got, ignoreTimes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Unreadable files are counted and listed, and the others are unaffected. The activities
// simulate the errors, because tests may run as root.
func TestCensus_UnreadableFiles(t *testing.T) {
	top := t.TempDir()
	for _, path := range []string{"fine.go", "a/fine.go", "a/secret.go", "a/broken.go", "closed/x.go", "gone/x.go"} {
		writeFile(t, filepath.Join(top, path), "package x\n")
	}
	failures := map[string]error{"secret.go": syscall.EACCES, "broken.go": syscall.EIO, "closed": syscall.EPERM, "gone": syscall.ENOENT}
	real := new(tree)
	root := &root{progress: newQuietProgress(t)}
	attempts := make(chan string, 16)
	fail := func(path string) error {
		if err := failures[filepath.Base(path)]; err != nil {
			attempts <- filepath.Base(path)
			return markNonRetryable(&fs.PathError{Op: "open", Path: path, Err: err})
		}
		return nil
	}
	got := takeCensus(t, "", top, 2, []replay.Definition{
		Census.Bind(root.census),
		CountDirectory.Bind(countDirectory),
		ListDirectories.Bind(real.listDirectories),
		ListFiles.Bind(func(ctx context.Context, from Position) (Page, error) {
			if err := fail(from.Directory); err != nil {
				return Page{}, err
			}
			return real.listFiles(ctx, from)
		}),
		CountFile.Bind(func(ctx context.Context, path string) (File, error) {
			if err := fail(path); err != nil {
				return File{}, err
			}
			return real.countFile(ctx, path)
		}),
	})
	want := Unreadable{Count: 4, First: []Failure{
		{filepath.Join(top, "a/broken.go"), "input/output error"},
		{filepath.Join(top, "a/secret.go"), "permission denied"},
		{filepath.Join(top, "closed"), "operation not permitted"},
		{filepath.Join(top, "gone"), "no such file or directory"},
	}}
	if diff := cmp.Diff(want, got.Unreadable); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Files != 2 || got.Directories != 4 {
		t.Errorf("%d files in %d directories, want the other 2 in all 4", got.Files, got.Directories)
	}
	close(attempts)
	made := make(map[string]int)
	for name := range attempts {
		made[name]++
	}
	// Only temporary errors are retried.
	if diff := cmp.Diff(map[string]int{"secret.go": 1, "broken.go": 3, "closed": 1, "gone": 1}, made); diff != "" {
		t.Errorf("attempts, -want +got:\n%s", diff)
	}
}

// A missing tree fails the census.
func TestCensus_MissingTree(t *testing.T) {
	node, err := cluster.Start(t.Context(), cluster.Config{InMemory: true, Definitions: definitions(new(tree), newQuietProgress(t)),
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	_, err = cluster.Call(t.Context(), node.Client(), Census, censusID, Request{Source: filepath.Join(t.TempDir(), "no"), Width: 1})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}

// The number and order of merges do not change the listed failures.
func TestUnreadable_IsBounded(t *testing.T) {
	var up, down Unreadable
	for i := range 100 {
		up.merge(Unreadable{1, []Failure{{Path: fmt.Sprintf("%03d", i)}}})
		down.merge(Unreadable{1, []Failure{{Path: fmt.Sprintf("%03d", 99-i)}}})
	}
	if diff := cmp.Diff(up, down); diff != "" || up.Count != 100 || len(up.First) != failuresMax {
		t.Errorf("%d of %d named, -up +down:\n%s", len(up.First), up.Count, diff)
	}
}

func TestCensus_GoSourceTree(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the whole source tree of Go, twice")
	}
	top, filesMin := goSource(t), int64(10_000)
	if shorttest.Race { // the activities of a part run as concurrently
		top, filesMin = filepath.Join(top, "internal"), 500
	}
	want := independentReport(t, top)
	progress := newQuietProgress(t)
	got := takeCensus(t, t.TempDir(), top, 64, definitions(new(tree), progress))
	if diff := cmp.Diff(want, got, ignoreTimes); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Files < filesMin {
		t.Errorf("only %d files: is this the source tree of Go?", got.Files)
	}
	t.Log(durationText(got, progress))
}

func goSource(t *testing.T) string {
	t.Helper()
	o := options{}
	if err := o.findSource(); err != nil {
		t.Fatal(err)
	}
	return o.source
}

func TestFlags(t *testing.T) {
	top := oddTree(t)
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a journal in the tree", []string{"-src", top, "-dir", filepath.Join(top, "data")}, "must not be in the counted tree"},
		{"no tree", []string{"-src", filepath.Join(top, "no"), "-dir", t.TempDir()}, "no such file"},
		{"no width", []string{"-src", top, "-dir", t.TempDir(), "-width", "0"}, "at least 1"},
		{"something else", []string{"-src", top, "tree"}, "unexpected argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), c.args, &out, os.NewFile(0, os.DevNull))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}

// runMainEnv makes the test binary run the program.
const runMainEnv = "CENSUS_IS_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runMainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// programPath returns the path of the program for the duration of the test.
func programPath(t *testing.T) string {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(runMainEnv, "1")
	return binary
}

// ledgerLines returns the executions in a ledger after an offset.
func ledgerLines(t *testing.T, path string, offset int64) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content[offset:]), "\n"), "\n")
}

// duplicates returns the repeated elements of a list.
func duplicates(list []string) []string {
	list = slices.Sorted(slices.Values(list))
	var twice []string
	for i := 1; i < len(list); i++ {
		if list[i] == list[i-1] {
			twice = append(twice, list[i])
		}
	}
	return twice
}
