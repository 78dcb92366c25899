package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

// A target with which no node could be started is refused before anything is read, and nothing is
// left beside it.
func TestRestore_InvalidTargets(t *testing.T) {
	parent := t.TempDir()
	file, full := filepath.Join(parent, "file"), filepath.Join(parent, "full")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(full, 0o700), os.WriteFile(filepath.Join(full, "x"), nil, 0o600),
		os.Symlink("nowhere", filepath.Join(parent, "dangling")), os.Symlink("full", filepath.Join(parent, "toFull"))); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	good := Target{Dir: filepath.Join(parent, "new"), NodeID: "n1"}
	for name, c := range map[string]struct {
		field  string
		change func(*Target)
	}{
		"no ID":             {"Target.NodeID", func(t *Target) { t.NodeID = "" }},
		"a path as ID":      {"Target.NodeID", func(t *Target) { t.NodeID = "../x" }},
		"a line as ID":      {"Target.NodeID", func(t *Target) { t.NodeID = "n1\ncluster x" }},
		"a long ID":         {"Target.NodeID", func(t *Target) { t.NodeID = strings.Repeat("x", 65) }},
		"a path as cluster": {"Target.ClusterID", func(t *Target) { t.ClusterID = "a/b" }},
		"no port":           {"Target.Address", func(t *Target) { t.Address = "10.0.0.1" }},
		"a long address":    {"Target.Address", func(t *Target) { t.Address = strings.Repeat("x", 300) + ":1" }},
		"no directory":      {"Target.Dir", func(t *Target) { t.Dir = "" }},
		"a file":            {"Target.Dir", func(t *Target) { t.Dir = file }},
		"a full directory":  {"Target.Dir", func(t *Target) { t.Dir = full }},
		"a link to nothing": {"Target.Dir", func(t *Target) { t.Dir = filepath.Join(parent, "dangling") }},
		"a link to files":   {"Target.Dir", func(t *Target) { t.Dir = filepath.Join(parent, "toFull") }},
	} {
		to := good
		c.change(&to)
		_, err := Restore(t.Context(), to, &failingReader{errors.New("read")})
		if invalid, ok := errors.AsType[*replay.InvalidError](err); !ok || !strings.HasSuffix(invalid.Field, c.field) {
			t.Errorf("%s: %v, want an InvalidError of %s", name, err, c.field)
		}
		if after, err := os.ReadDir(parent); err != nil || len(after) != len(before) {
			t.Fatalf("%s: %v is left, %v", name, after, err)
		}
	}
	if _, err := Restore(t.Context(), good, nil); err == nil || !strings.Contains(err.Error(), "nil at index 0") {
		t.Errorf("nil as a backup: %v", err)
	}
}

// Two processes that restore to one directory do not disturb each other: the second is refused.
func TestRestore_TwoAtOnce(t *testing.T) {
	to := Target{Dir: filepath.Join(t.TempDir(), "node"), NodeID: "n1"}
	refused := errors.New("refused")
	for range 3 { // what the first one leaves locks nothing
		var second error
		_, err := Restore(t.Context(), to, readerFunc(func([]byte) (int, error) {
			_, second = Restore(t.Context(), to, bytes.NewReader(nil))
			return 0, refused
		}))
		if _, ok := errors.AsType[*journal.LockedError](second); !ok || !errors.Is(err, refused) {
			t.Errorf("the second: %v, the first: %v", second, err)
		}
	}
}

// The context of a restore is checked while a backup is read, and an error of a reader does not
// mean that the backup is damaged.
func TestRestore_ReadErrors(t *testing.T) {
	stream := streamOf(describe(testID, "", strings.Repeat("x", 10*partBytes)))
	to := Target{Dir: filepath.Join(t.TempDir(), "node"), NodeID: "n1"}
	lost := errors.New("connection lost")
	for at := range 4 {
		at = at * len(stream) / 4
		ctx, cancel := context.WithCancel(t.Context())
		ends := readerFunc(func([]byte) (int, error) { cancel(); return 0, nil })
		_, err := Restore(ctx, to, io.MultiReader(bytes.NewReader(stream[:at]), ends))
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrDamaged) {
			t.Errorf("a context that ends after %d bytes: %v", at, err)
		}
		_, err = Restore(t.Context(), to, io.MultiReader(bytes.NewReader(stream[:at]), &failingReader{lost}))
		if !errors.Is(err, lost) || errors.Is(err, ErrDamaged) {
			t.Errorf("a reader that fails after %d bytes: %v", at, err)
		}
		if _, err = Restore(t.Context(), to, bytes.NewReader(stream[:at])); !errors.Is(err, ErrDamaged) {
			t.Errorf("a stream of %d bytes: %v", at, err)
		}
	}
}

// Bytes after the end of a backup, such as another backup, are not ignored.
func TestRestore_BytesAfterEnd(t *testing.T) {
	stream := streamOf(&Info{Format: formatFiles, ID: testID, Cluster: "c", Partitions: []Partition{{}}})
	accept := func(*Info) error { return nil }
	if _, err := readStream(bytes.NewReader(stream), accept, nil); err != nil {
		t.Fatal(err)
	}
	for name, rest := range map[string][]byte{"a byte": {0}, "another backup": stream} {
		if _, err := readStream(io.MultiReader(bytes.NewReader(stream), bytes.NewReader(rest)), accept, nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s after the end: %v", name, err)
		}
	}
}

// A writer that omits a part without an error gets no backup.
func TestWrite_WriterOmitsPart(t *testing.T) {
	content := strings.Repeat("x", 3*partBytes)
	for omitted := range 12 {
		calls := 0
		lossy := writerFunc(func(b []byte) (int, error) {
			if calls++; calls == omitted+1 {
				return len(b) - 1, nil
			}
			return len(b), nil
		})
		if err := sourceOf(describe(testID, "", content), content).write(t.Context(), lossy, nil); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("in call %d: %v", omitted+1, err)
		}
	}
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
