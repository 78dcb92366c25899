package main

import (
	"bytes"
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
