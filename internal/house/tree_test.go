package house

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/tenuto-dev/tenuto"

// repositoryRoot is the path of the repository relative to this package.
const repositoryRoot = "../.."

// skippedDirs are directories whose packages follow other rules, and those where examples store
// data.
var skippedDirs = []string{"internal/tools", "bench/peers", "data"}

// packageDirs lists the directories under root that contain Go files, relative to root and with
// slashes.
func packageDirs(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		if entry.IsDir() {
			if isSkipped(relative) {
				return fs.SkipDir
			}
			return nil
		}
		if dir := path.Dir(relative); isGoFile(entry.Name()) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		return nil
	})
	slices.Sort(dirs)
	return dirs, err
}

// sourceFiles lists the Go files under root, except tests.
func sourceFiles(root string) ([]string, error) {
	dirs, err := packageDirs(root)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if isGoFile(entry.Name()) && !strings.HasSuffix(entry.Name(), "_test.go") {
				files = append(files, path.Join(dir, entry.Name()))
			}
		}
	}
	return files, nil
}

func isSkipped(dir string) bool {
	base := path.Base(dir)
	if dir == "." {
		return false
	}
	return base == "testdata" || base[0] == '.' || base[0] == '_' || slices.Contains(skippedDirs, dir)
}

// isGoFile ignores the files that the go command ignores, such as lock and backup files of editors.
func isGoFile(name string) bool {
	return strings.HasSuffix(name, ".go") && name[0] != '.' && name[0] != '_'
}

// makeTree writes files, named by their slash-separated paths, to a new directory.
func makeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// expectNoViolations reports every violation that check finds in the repository.
func expectNoViolations(t *testing.T, check func(root string) ([]string, error)) {
	t.Helper()
	violations, err := check(repositoryRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range violations {
		t.Error(violation)
	}
}

// expectViolations fails unless check finds exactly the wanted violations in the tree, in any
// order. Each wanted violation is part of the text.
func expectViolations(t *testing.T, check func(root string) ([]string, error), files map[string]string, expected ...string) {
	t.Helper()
	violations, err := check(makeTree(t, files))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range expected {
		at := slices.IndexFunc(violations, func(v string) bool { return strings.Contains(v, want) })
		if at < 0 {
			t.Errorf("no violation says %q", want)
			continue
		}
		violations = slices.Delete(violations, at, at+1)
	}
	for _, violation := range violations {
		t.Errorf("not a violation: %s", violation)
	}
}

func TestPackageDirs(t *testing.T) {
	root := makeTree(t, map[string]string{
		"journal/journal.go":            "package journal",
		"journal/state/state_test.go":   "package state",
		"journal/testdata/broken.go":    "not Go",
		"cluster/.hidden/hidden.go":     "package hidden",
		"cluster/DESIGN.md":             "no Go file here",
		"replay/.#lock.go":              "an editor's",
		"internal/tools/gen/main.go":    "package main",
		"examples/data/really/hello.go": "package hello",
		"data/node/left.go":             "package left",
	})
	dirs, err := packageDirs(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"examples/data/really", "journal", "journal/state"}
	if !slices.Equal(dirs, want) {
		t.Errorf("got %q, want %q", dirs, want)
	}
}
