package raftlogtest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// DirImage is a directory of a journal in memory.
type DirImage map[string][]byte

// ReadDirImage reads a directory.
func ReadDirImage(t testing.TB, dir string) DirImage {
	t.Helper()
	im := DirImage{}
	for _, name := range FilesOf(t, dir) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		im[name] = content
	}
	return im
}

// Write writes the image to a directory and removes everything else from it.
func (im DirImage) Write(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, content := range im {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Names returns the files whose names begin with prefix, sorted.
func (im DirImage) Names(prefix string) []string {
	var names []string
	for name := range im {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Bit is one bit of an image.
type Bit struct {
	Name string
	At   int
	Mask byte
}

// String describes the bit.
func (b Bit) String() string { return fmt.Sprintf("%s at %d, mask %#x", b.Name, b.At, b.Mask) }

// RandomBit picks a bit of the named files. Each file is equally likely, so that small files are
// hit too.
func (im DirImage) RandomBit(r *rand.Rand, names []string) Bit {
	for {
		b := Bit{Name: names[r.IntN(len(names))], Mask: 1 << r.IntN(8)}
		if n := len(im[b.Name]); n > 0 {
			b.At = r.IntN(n)
			return b
		}
	}
}

// Flip flips a bit.
func (im DirImage) Flip(b Bit) { im[b.Name][b.At] ^= b.Mask }

// FilesOf lists the non-empty files below a directory.
func FilesOf(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		names = append(names, strings.TrimPrefix(path, dir+string(filepath.Separator)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
