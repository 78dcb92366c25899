package snapshot

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
)

// diskSnapshot writes a checkpoint of the state at index or later.
type diskSnapshot struct {
	machine *state.Machine
	index   uint64
}

// New returns a snapshot that will contain at least the entry at index.
func New(machine *state.Machine, index uint64) raft.FSMSnapshot {
	return &diskSnapshot{machine, index}
}

// Persist implements raft.FSMSnapshot.
func (s *diskSnapshot) Persist(sink raft.SnapshotSink) error {
	if counted, ok := sink.(*notifyingSink); ok {
		sink = counted.SnapshotSink
	}
	to, ok := sink.(*Sink)
	if !ok {
		return fmt.Errorf("persist snapshot: unexpected sink type %T", sink)
	}
	// Flush ends by itself, or when the store fails.
	err := s.machine.Flush(context.Background(), s.index)
	if err == nil {
		err = to.Checkpoint(s.machine)
	}
	if err != nil {
		return fmt.Errorf("persist snapshot: %w", err)
	}
	return nil
}

// Release implements raft.FSMSnapshot.
func (*diskSnapshot) Release() {}
