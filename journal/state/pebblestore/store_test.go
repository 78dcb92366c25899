package pebblestore

import (
	"bytes"
	"errors"
	"log/slog"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

var _ store.Store = (*Store)(nil)

func opened(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open(Options{FS: fs, Dir: "state", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// What the database cannot go on after is found in the error, whatever text it gives it.
func TestFullDiskIsInTheErrorOfOpen(t *testing.T) {
	fs := vfs.NewMem()
	if err := opened(t, fs).Close(); err != nil {
		t.Fatal(err)
	}
	injected := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasPrefix(path.Base(op.Path), "MANIFEST") {
			return syscall.ENOSPC
		}
		return nil
	}))
	if _, err := Open(Options{FS: injected, Dir: "state", Logger: slog.New(slog.DiscardHandler)}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
}

func set(key, value string) func(store.Batch) error {
	return func(b store.Batch) error { return b.Set([]byte(key), []byte(value)) }
}

// has checks what a store shows of a key, however it is asked.
func has(t *testing.T, s *Store, key string, want []byte) {
	t.Helper()
	err := s.View("read", func(r store.Reader) error {
		got, err := r.Get([]byte(key))
		probed, probeErr := r.Probe([]byte(key))
		if !bytes.Equal(got, want) || !bytes.Equal(probed, want) {
			t.Errorf("%s is %q, and %q when it is probed; it should be %q", key, got, probed, want)
		}
		return errors.Join(err, probeErr)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestProbeSeesWhatWasWrittenLast(t *testing.T) {
	s := opened(t, vfs.NewMem())
	has(t, s, "a", nil)
	for _, value := range []string{"1", "2"} {
		if err := s.Write("write", 0, set("a", value)); err != nil {
			t.Fatal(err)
		}
		has(t, s, "a", []byte(value))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		has(t, s, "a", []byte(value))
	}
	if err := s.Write("write", 0, func(b store.Batch) error { return b.Delete([]byte("a")) }); err != nil {
		t.Fatal(err)
	}
	has(t, s, "a", nil)
}

var errBroken = errors.New("broken")

func TestBatchThatIsGivenUpIsNotWritten(t *testing.T) {
	s := opened(t, vfs.NewMem())
	err := s.Write("write", 0, func(b store.Batch) error { return errors.Join(set("a", "1")(b), errBroken) })
	var failed *store.Error
	if !errors.As(err, &failed) || !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	has(t, s, "a", nil)
}

// The database may go on with what it was doing: none of that gets through.
func TestNothingReachesTheFilesBehindAnError(t *testing.T) {
	fs := vfs.NewMem()
	s := opened(t, fs)
	below := s.cutOff(fs)
	f, err := below.Create("before", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fail("test", errBroken); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	_, written := f.Write([]byte("x"))
	_, created := below.Create("behind", vfs.WriteCategoryUnspecified)
	for what, err := range map[string]error{
		"a write": written, "a sync": f.Sync(), "a file": created,
		"a name": below.Rename("before", "behind"), "a link": below.Link("before", "behind"), "a removal": below.Remove("before"),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s gets through: %v", what, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestStoreThatHasFailedTakesNothing(t *testing.T) {
	s := opened(t, vfs.NewMem())
	_ = s.Fail("test", errBroken)
	_, checkpoint := s.Checkpoint("checkpoint")
	for what, err := range map[string]error{
		"Write": s.Write("write", 0, set("a", "1")), "Sync": s.Sync(), "Checkpoint": checkpoint, "Err": s.Err(),
		"Install": s.Install(func(string) error { t.Error("files are asked for"); return nil }, nil, nil), "Fail": s.Fail("again", errors.New("other")),
	} {
		var failed *store.Error
		if !errors.As(err, &failed) || !errors.Is(err, errBroken) || failed.Op != "test" {
			t.Errorf("%s: %v", what, err)
		}
	}
	has(t, s, "a", nil)
}

func TestClosedStoreSaysSo(t *testing.T) {
	s := opened(t, vfs.NewMem())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	read := s.View("read", func(store.Reader) error { return nil })
	for _, err := range []error{read, s.Write("write", 0, set("a", "1")), s.Sync()} {
		if !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	}
	if s.Metrics() != nil || s.Err() != nil {
		t.Errorf("%v %v", s.Metrics(), s.Err())
	}
}
