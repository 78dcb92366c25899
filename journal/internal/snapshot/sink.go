package snapshot

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// Sink is a snapshot that is being written, from a checkpoint of this node's state or
// from the bytes that the leader sends.
type Sink struct {
	store    *Store
	manifest Manifest
	path     string
	receiver *receiver // nil for a checkpoint
	done     bool
}

// ID implements raft.SnapshotSink.
func (s *Sink) ID() string { return s.manifest.ID }

// Size returns the size of the snapshot in bytes. It is called after Close.
func (s *Sink) Size() int64 { return s.manifest.streamSize() }

// Checkpoint writes the state of a machine.
func (s *Sink) Checkpoint(machine *state.Machine) error {
	c := s.store
	dir := c.FS.PathJoin(s.path, FilesDir)
	point, err := machine.Checkpoint(dir)
	if err != nil {
		return err
	}
	s.manifest.Applied, s.manifest.AppliedTerm, s.manifest.Database = point.Index, point.Term, point.Database
	files, checksums, err := c.checksumFiles(dir, point.Database)
	if err != nil {
		return err
	}
	s.manifest.Files = files
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checksums = checksums
	return nil
}

// Write implements raft.SnapshotSink: it takes the stream that Open returns.
//
// It rejects a snapshot that ends no later than this node's last entry. Such a snapshot was meant
// for another node that had this address, or it arrives after a later one. Raft would install it:
// undo later changes of the state, delete the log with later entries that were acknowledged, and
// panic when it reads one of them.
//
// But it accepts the snapshot if the log has a conflicting entry at the snapshot's index: that
// entry and those after it were never committed, and never will be.
func (s *Sink) Write(p []byte) (int, error) {
	m := s.manifest
	if lastLocal := s.store.LastLocalIndex(); s.receiver == nil && m.Index <= lastLocal && !s.store.HasConflict(m.Index, m.Term) {
		return 0, fmt.Errorf("snapshot ends at entry %d, but this node has entry %d", m.Index, lastLocal)
	}
	if s.receiver == nil {
		s.receiver = s.startReceiver()
	}
	return s.receiver.Write(p)
}

// Close implements raft.SnapshotSink. Afterwards the whole snapshot exists, or none of it.
func (s *Sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	s.store.finishMu.Lock()
	defer s.store.finishMu.Unlock()
	if err := s.finish(); err != nil {
		return errors.Join(fmt.Errorf("finish snapshot: %w", err), s.store.FS.RemoveAll(s.path))
	}
	if err := s.store.removeOld(); err != nil {
		s.store.Logger.Warn("cannot remove old snapshots", "error", err)
	}
	return nil
}

func (s *Sink) finish() error {
	c := s.store
	if s.receiver != nil {
		if err := s.receiver.close(); err != nil {
			return err
		}
	}
	if len(s.manifest.Files) == 0 {
		return errors.New("snapshot without files")
	}
	content, err := s.manifest.Encode()
	if err != nil {
		return err
	}
	final := c.FS.PathJoin(c.Dir, s.manifest.ID)
	return errors.Join(
		diskfile.Write(c.FS, c.FS.PathJoin(s.path, ManifestFile), content),
		diskfile.SyncDir(c.FS, c.FS.PathJoin(s.path, FilesDir)),
		diskfile.SyncDir(c.FS, s.path),
		c.FS.RemoveAll(final), // a snapshot of the same entries: it was sent twice
		c.FS.Rename(s.path, final),
		diskfile.SyncDir(c.FS, c.Dir),
	)
}

// Cancel implements raft.SnapshotSink.
func (s *Sink) Cancel() error {
	if s.done {
		return nil
	}
	s.done = true
	if s.receiver != nil {
		_ = s.receiver.close() // errors of an incomplete snapshot do not matter
	}
	return s.store.FS.RemoveAll(s.path)
}
