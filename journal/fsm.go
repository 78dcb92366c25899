package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
)

// fsm applies committed entries to the state machine. Raft calls it from one
// goroutine.
type fsm struct {
	machine *state.Machine
	fence   *fence
	records [][]byte // scratch

	mu      sync.Mutex
	index   uint64 // of the last entry applied
	waiters map[chan struct{}]uint64
}

// applied is what became of an entry.
type applied struct {
	term     uint64
	outcomes []uint64 // one for each record; see state.Machine.Apply
	refusals []error  // one for each record, or none at all
}

func (a *applied) refusal(i int) error {
	if a.refusals == nil {
		return nil
	}
	return a.refusals[i]
}

func newFSM(machine *state.Machine, fence *fence) *fsm {
	return &fsm{machine: machine, fence: fence, waiters: map[chan struct{}]uint64{}}
}

// Apply implements raft.FSM. It returns an *applied or a *FencedError.
func (f *fsm) Apply(log *raft.Log) any {
	if err := f.fence.err(); err != nil {
		return err
	}
	records, err := unpackEntry(f.records[:0], log.Data)
	if err != nil {
		return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	result := &applied{term: log.Term, outcomes: make([]uint64, len(records))}
	for i, record := range records {
		outcome, err := f.machine.Apply(record)
		if errors.Is(err, state.ErrCorrupt) {
			return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
		}
		if err != nil && result.refusals == nil {
			result.refusals = make([]error, len(records))
		}
		if err != nil {
			result.refusals[i] = err
		}
		result.outcomes[i] = outcome
	}
	f.records = records
	clear(f.records) // an idle journal keeps no entry alive
	f.advance(log.Index)
	return result
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.fence.err(); err != nil {
		return nil, err
	}
	return fsmSnapshot{f.machine.Snapshot()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	if err := f.fence.err(); err != nil {
		return err
	}
	if err := f.machine.Restore(r); err != nil {
		return f.fence.draw(err)
	}
	return nil
}

// fsmSnapshot writes a view of the state to wherever Raft keeps snapshots.
type fsmSnapshot struct {
	*state.Snapshot
}

// Persist implements raft.FSMSnapshot.
func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		_ = sink.Cancel() // the error that counts is the first
		return fmt.Errorf("persist snapshot: %w", err)
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (fsmSnapshot) Release() {}

// advance notes that an entry has been applied and wakes those who wait for it.
func (f *fsm) advance(index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	for ch, want := range f.waiters {
		if want <= index {
			delete(f.waiters, ch)
			close(ch)
		}
	}
}

// appliedIndex returns the index of the last entry applied.
func (f *fsm) appliedIndex() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index
}

// await returns when the entry at index has been applied.
func (f *fsm) await(ctx context.Context, index uint64) error {
	f.mu.Lock()
	if f.index >= index {
		f.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	f.waiters[ch] = index
	f.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-f.fence.drawn:
		return f.fence.err()
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiters, ch)
		return ctx.Err()
	}
}
