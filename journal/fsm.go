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
	machine   *state.Machine
	snapshots *checkpoints // nil in memory
	fence     *fence
	newest    *VersionError // says which protocols the node speaks; nil: any
	records   [][]byte      // scratch
	committed func(entryID) // is told of each entry; nil: nobody

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

func newFSM(machine *state.Machine, snapshots *checkpoints, fence *fence) *fsm {
	f := &fsm{machine: machine, snapshots: snapshots, fence: fence, waiters: map[chan struct{}]uint64{}}
	f.index, _ = machine.Applied()
	return f
}

// Apply implements raft.FSM. It returns an *applied or a *FencedError. After a
// start Raft begins behind its newest snapshot, and the state may have more.
func (f *fsm) Apply(log *raft.Log) any {
	if err := f.fence.err(); err != nil {
		return err
	}
	if log.Index <= f.appliedIndex() {
		return &applied{term: log.Term}
	}
	records, err := unpackEntry(f.records[:0], log.Data)
	if err != nil {
		return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	result := &applied{term: log.Term, outcomes: make([]uint64, len(records))}
	for i, record := range records {
		outcome, err := f.machine.Apply(record)
		if err != nil {
			var failed *state.StoreError
			if errors.Is(err, state.ErrCorrupt) || errors.As(err, &failed) {
				return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
			}
			if result.refusals == nil {
				result.refusals = make([]error, len(records))
			}
			result.refusals[i] = err
		}
		result.outcomes[i] = outcome
	}
	if err := f.speaks(); err != nil {
		return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	f.records = records
	clear(f.records) // an idle journal keeps no entry alive
	if err := f.machine.Advance(log.Index, log.Term); err != nil {
		return f.fence.draw(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	f.advance(log.Index)
	if f.committed != nil {
		f.committed(entryID{log.Index, log.Term})
	}
	return result
}

// Snapshot implements raft.FSM. Nobody waits: what is on disk when the snapshot
// is written is at least what is applied now.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.fence.err(); err != nil {
		return nil, err
	}
	if f.snapshots == nil {
		return memorySnapshot{f.machine.Snapshot()}, nil
	}
	index, _ := f.machine.Applied()
	return &diskSnapshot{f.machine, index}, nil
}

// Restore implements raft.FSM: the leader has sent a snapshot, which is on disk.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	if err := f.fence.err(); err != nil {
		return err
	}
	err := f.restore(r)
	if err == nil {
		err = f.speaks()
	}
	if err != nil {
		return f.fence.draw(fmt.Errorf("restore snapshot: %w", err))
	}
	index, _ := f.machine.Applied()
	if f.snapshots != nil {
		f.advance(index)
		f.snapshots.log.Info("the state is that of a snapshot", "index", index)
	}
	return nil
}

// speaks refuses a state that is of a newer protocol than the node speaks.
func (f *fsm) speaks() error {
	if f.newest == nil || f.machine.Protocol() <= f.newest.Newest {
		return nil
	}
	refusal := *f.newest
	refusal.Wanted = f.machine.Protocol()
	return &refusal
}

func (f *fsm) restore(r io.ReadCloser) error {
	if f.snapshots == nil {
		return f.machine.Restore(r)
	}
	if wrapper, ok := r.(raft.ReadCloserWrapper); ok {
		r = wrapper.WrappedReadCloser()
	}
	sent, ok := r.(*snapshotStream)
	if !ok {
		return fmt.Errorf("a snapshot that is a %T", r)
	}
	return f.machine.Install(func(dir string) error { return f.snapshots.install(sent.manifest, dir) })
}

// memorySnapshot writes a view of a state in memory.
type memorySnapshot struct {
	*state.Snapshot
}

// Persist implements raft.FSMSnapshot.
func (s memorySnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		_ = sink.Cancel() // the error that counts is the first
		return fmt.Errorf("persist snapshot: %w", err)
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (memorySnapshot) Release() {}

// diskSnapshot makes a checkpoint of the state, at index or behind.
type diskSnapshot struct {
	machine *state.Machine
	index   uint64
}

// Persist implements raft.FSMSnapshot.
func (s *diskSnapshot) Persist(sink raft.SnapshotSink) error {
	if counted, ok := sink.(*countedSink); ok {
		sink = counted.SnapshotSink
	}
	to, ok := sink.(*checkpointSink)
	if !ok {
		return fmt.Errorf("persist snapshot: to a %T", sink)
	}
	// It ends by itself, or when the store fails.
	err := s.machine.Flush(context.Background(), s.index)
	if err == nil {
		err = to.checkpoint(s.machine)
	}
	if err != nil {
		return fmt.Errorf("persist snapshot: %w", err)
	}
	return nil
}

// Release implements raft.FSMSnapshot.
func (*diskSnapshot) Release() {}

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
