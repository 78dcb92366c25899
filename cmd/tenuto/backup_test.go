package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A damaged backup in a directory is named, not passed over for an older one.
func TestBackupFiles_Damaged(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"newest.backup", "README"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b backupFiles
	if err := b.read([]string{dir}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, _, openErr := b.open()
	for what, err := range map[string]error{"open": openErr, "show": b.show(streams{out: &out})} {
		if err == nil || !strings.Contains(err.Error(), "newest.backup") || strings.Contains(err.Error(), "README") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !strings.HasPrefix(out.String(), "TIME ") {
		t.Errorf("list on the standard output: %q", out.String())
	}
}

// A file that is written, or whose writer fails, is not found under its name, and nothing is
// replaced.
func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path, failure := filepath.Join(dir, "backup"), errors.New("connection lost")
	for _, want := range []error{failure, nil} {
		err := writeWhole(path, func(to io.Writer) error {
			_, err := io.WriteString(to, "content")
			if _, statErr := os.Lstat(path); !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("found while it is written: %v", statErr)
			}
			return errors.Join(err, want)
		})
		entries, readErr := os.ReadDir(dir)
		if !errors.Is(err, want) || readErr != nil || (len(entries) == 1) != (want == nil) {
			t.Errorf("%v, want %v; %v is left, %v", err, want, entries, readErr)
		}
	}
	if err := writeWhole(path, func(io.Writer) error { return nil }); err == nil {
		t.Error("a file was replaced")
	}
	if content, err := os.ReadFile(path); string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
}
