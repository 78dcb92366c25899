package raftlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// FileName is the name of the file with the log.
const FileName = "raft.db"

// openBolt opens the bolt file at path. A new file is created under another name, so that an
// incomplete one never exists.
func openBolt(path string, noSync bool) (*Raw, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := createBolt(path); err != nil {
			return nil, fmt.Errorf("create log: %w", err)
		}
	}
	if err := checkBolt(path); err != nil {
		return nil, err
	}
	store, err := newBolt(path, noSync)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return NewRaw(store, path, store.Close), nil
}

func createBolt(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	store, err := newBolt(fresh, false)
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return diskfile.SyncDir(vfs.Default, filepath.Dir(path))
}

func newBolt(path string, noSync bool) (*raftboltdb.BoltStore, error) {
	return raftboltdb.New(raftboltdb.Options{
		Path:   path,
		NoSync: noSync,
		BoltOptions: &bbolt.Options{
			// Without these two, a single write after a large truncation takes ten times as long.
			NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
			// The directory is locked. So only this process can hold the lock on the file, after a
			// Close that has failed.
			Timeout: time.Second,
		},
	})
}
