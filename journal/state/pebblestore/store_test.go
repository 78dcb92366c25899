package pebblestore

import (
	"bytes"
	"errors"
	"log/slog"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

var _ store.Store = (*Store)(nil)

func openStore(t *testing.T, fs vfs.FS) *Store {
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

// The error contains what Pebble could not handle, whatever the text.
func TestOpen_ReportsENOSPC(t *testing.T) {
	fs := vfs.NewMem()
	if err := openStore(t, fs).Close(); err != nil {
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

func setKey(key, value string) func(store.Batch) error {
	return func(b store.Batch) error { return b.Set([]byte(key), []byte(value)) }
}

// wantValue checks what a store returns for a key, with Get and with Probe.
func wantValue(t *testing.T, s *Store, key string, want []byte) {
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

func TestProbe_SeesLastWrite(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	wantValue(t, s, "a", nil)
	for _, value := range []string{"1", "2"} {
		if err := s.Write("write", 0, setKey("a", value)); err != nil {
			t.Fatal(err)
		}
		wantValue(t, s, "a", []byte(value))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		wantValue(t, s, "a", []byte(value))
	}
	if err := s.Write("write", 0, func(b store.Batch) error { return b.Delete([]byte("a")) }); err != nil {
		t.Fatal(err)
	}
	wantValue(t, s, "a", nil)
}

var errBroken = errors.New("broken")

func TestWrite_FailedBatchIsNotWritten(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	err := s.Write("write", 0, func(b store.Batch) error { return errors.Join(setKey("a", "1")(b), errBroken) })
	var failed *store.Error
	if !errors.As(err, &failed) || !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	wantValue(t, s, "a", nil)
}

// Pebble may continue its background work, but none of it reaches the files.
func TestFail_BlocksFileWrites(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	guardedFS := s.rejectWritesOnceFailed(fs)
	f, err := guardedFS.Create("before", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fail("test", errBroken); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	_, written := f.Write([]byte("x"))
	_, created := guardedFS.Create("behind", vfs.WriteCategoryUnspecified)
	for what, err := range map[string]error{
		"a write": written, "a sync": f.Sync(), "a file": created,
		"a name": guardedFS.Rename("before", "behind"), "a link": guardedFS.Link("before", "behind"), "a removal": guardedFS.Remove("before"),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s succeeds: %v", what, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestFail_RejectsEveryWrite(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	_ = s.Fail("test", errBroken)
	_, checkpoint := s.Checkpoint("checkpoint")
	for what, err := range map[string]error{
		"Write": s.Write("write", 0, setKey("a", "1")), "Sync": s.Sync(), "Checkpoint": checkpoint, "Err": s.Err(),
		"Install": s.Install(func(string) error { t.Error("Install asked for files"); return nil }, nil, nil), "Fail": s.Fail("again", errors.New("other")),
	} {
		var failed *store.Error
		if !errors.As(err, &failed) || !errors.Is(err, errBroken) || failed.Op != "test" {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantValue(t, s, "a", nil)
}

func TestClose_LaterCallsReturnErrClosed(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	read := s.View("read", func(store.Reader) error { return nil })
	for _, err := range []error{read, s.Write("write", 0, setKey("a", "1")), s.Sync()} {
		if !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	}
	if s.Metrics() != nil || s.Err() != nil {
		t.Errorf("%v %v", s.Metrics(), s.Err())
	}
}

// A crash during an open can leave a database whose next open finds no log to replay, and so writes
// nothing.
func TestCheckpoint_CompleteBeforeFirstWrite(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	database := fs.PathJoin("state", s.db.name)
	if err := errors.Join(s.Write("write", 0, setKey("a", "1")), s.Sync(), s.Close()); err != nil {
		t.Fatal(err)
	}
	files, err := fs.List(database)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if path.Ext(name) == ".log" {
			if err := fs.Remove(fs.PathJoin(database, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := openStore(t, fs).Checkpoint("checkpoint"); err != nil {
		t.Fatal(err)
	}
	copied, err := pebble.Open("checkpoint", &pebble.Options{FS: fs, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	value, closer, err := copied.Get([]byte("a"))
	if err != nil || string(value) != "1" {
		t.Fatalf("%q, %v", value, err)
	}
	if err := errors.Join(closer.Close(), copied.Close()); err != nil {
		t.Error(err)
	}
}
