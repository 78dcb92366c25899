package backup

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// serving returns a server with a checkpoint that has a file.
func serving(t *testing.T) (s *Server, dir string) {
	t.Helper()
	root := t.TempDir()
	s = NewServer([]Partition{{Dir: root}}, slog.Default())
	s.pacer.applied = func() uint64 { return 0 }
	dir = filepath.Join(root, dirName)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "file"), []byte("0123456789"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.served = &clusterpb.BackupBegun{Id: "id"}
	s.expiry = time.AfterFunc(Lease, func() { _ = s.End("id", false, nil) })
	return s, dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestServer_BeginIsRefused(t *testing.T) {
	s, dir := serving(t)
	if _, err := s.Begin(t.Context(), nil); !errors.Is(err, ErrInProgress) {
		t.Errorf("while another is served: %v", err)
	}
	if err := s.Close(); err != nil || exists(dir) {
		t.Errorf("the checkpoint is left after Close, %v", err)
	}
	if _, err := s.Begin(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	inMemory := NewServer([]Partition{{}}, slog.Default())
	if _, err := inMemory.Begin(t.Context(), nil); !errors.Is(err, ErrInMemory) {
		t.Errorf("in memory: %v", err)
	}
	inMemory.making.Lock() // as while a checkpoint is made
	if _, err := inMemory.Begin(context.Background(), nil); !errors.Is(err, ErrInProgress) {
		t.Errorf("while another is made: %v", err)
	}
}

func TestServer_Read(t *testing.T) {
	s, dir := serving(t)
	for want, r := range map[string]*clusterpb.ReadBackupRequest{
		"0123":       {Id: "id", File: "file", Size: 4},
		"789":        {Id: "id", File: "file", Size: 9, Offset: 7},
		"":           {Id: "id", File: "file", Size: 9, Offset: 70},
		"0123456789": {Id: "id", File: "file", Size: 1 << 30},
	} {
		if got, err := s.Read(t.Context(), r); string(got) != want || err != nil {
			t.Errorf("%v: %q, %v", r, got, err)
		}
	}
	for _, r := range []*clusterpb.ReadBackupRequest{
		{Id: "other", File: "file", Size: 1}, {Id: "id", Partition: 1, File: "file", Size: 1}, {Id: "id", File: "../LOCK", Size: 1},
		{Id: "id", File: `..\LOCK`, Size: 1}, {Id: "id", File: "..", Size: 1}, {Id: "id", Size: 1},
	} {
		if got, err := s.Read(t.Context(), r); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: %q, %v", r, got, err)
		}
	}
	if err := s.End("other", false, nil); err != nil || !exists(dir) {
		t.Errorf("the end of another checkpoint removes this one, %v", err)
	}
	if err := errors.Join(s.End("id", false, nil), s.End("id", false, nil)); err != nil || exists(dir) {
		t.Errorf("the checkpoint is left after End, %v", err)
	}
}

// A checkpoint that is not read is removed after the lease, and not before: each read renews it.
func TestServer_LeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := serving(t)
		for range 5 {
			time.Sleep(Lease - time.Second)
			if _, err := s.Read(t.Context(), &clusterpb.ReadBackupRequest{Id: "id", File: "file", Size: 1}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(Lease + time.Second)
		synctest.Wait()
		if _, err := s.Read(t.Context(), &clusterpb.ReadBackupRequest{Id: "id", File: "file", Size: 1}); !errors.Is(err, ErrNotFound) || exists(dir) {
			t.Errorf("after the lease: %v", err)
		}
	})
}

// The checkpoint of a process that was killed is removed by the next one.
func TestNewServer_RemovesOldCheckpoint(t *testing.T) {
	s, dir := serving(t)
	s.expiry.Stop() // the process is gone
	NewServer(s.partitions, slog.Default())
	if exists(dir) {
		t.Error("the checkpoint is left")
	}
}
