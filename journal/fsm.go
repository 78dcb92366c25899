package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// fsm applies committed entries to the state machine. Raft calls it from one goroutine.
type fsm struct {
	machine     *state.Machine
	snapshots   *snapshot.Store // nil in memory
	failStop    *failStop
	supported   *VersionError            // the protocols that this node speaks; nil: any
	records     [][]byte                 // reused by each Apply
	onCommitted func(index, term uint64) // called for each entry; may be nil

	mu      sync.Mutex
	index   uint64 // of the last entry applied
	waiters map[chan struct{}]uint64
}

// applyResult is the result of one entry.
type applyResult struct {
	term       uint64
	outcomes   []uint64 // one per record; see state.Machine.Apply
	rejections []error  // one per record, or none at all
}

func (a *applyResult) rejection(i int) error {
	if a.rejections == nil {
		return nil
	}
	return a.rejections[i]
}

func newFSM(machine *state.Machine, snapshots *snapshot.Store, failStop *failStop) *fsm {
	f := &fsm{machine: machine, snapshots: snapshots, failStop: failStop, waiters: map[chan struct{}]uint64{}}
	f.index, _ = machine.Applied()
	return f
}

// Apply implements raft.FSM. It returns an *applyResult or a *NodeFailedError. Entries that the
// state has already applied are skipped.
func (f *fsm) Apply(log *raft.Log) any {
	if err := f.failStop.Err(); err != nil {
		return err
	}
	if log.Index <= f.appliedIndex() {
		return &applyResult{term: log.Term}
	}
	records, err := entry.Unpack(f.records[:0], log.Data)
	if err != nil {
		return f.failStop.Fail(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	result := &applyResult{term: log.Term, outcomes: make([]uint64, len(records))}
	for i, record := range records {
		outcome, err := f.machine.Apply(record)
		if err != nil {
			var failed *state.StoreError
			if errors.Is(err, state.ErrCorrupt) || errors.As(err, &failed) {
				return f.failStop.Fail(fmt.Errorf("apply entry %d: %w", log.Index, err))
			}
			if result.rejections == nil {
				result.rejections = make([]error, len(records))
			}
			result.rejections[i] = err
		}
		result.outcomes[i] = outcome
	}
	if err := f.checkProtocol(); err != nil {
		return f.failStop.Fail(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	f.records = records
	clear(f.records) // so that the memory of the entry can be freed
	if err := f.machine.Advance(log.Index, log.Term); err != nil {
		return f.failStop.Fail(fmt.Errorf("apply entry %d: %w", log.Index, err))
	}
	f.advance(log.Index)
	if f.onCommitted != nil {
		f.onCommitted(log.Index, log.Term)
	}
	return result
}

// Snapshot implements raft.FSM. It does not block: the snapshot will contain at least what is
// applied now.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.failStop.Err(); err != nil {
		return nil, err
	}
	if f.snapshots == nil {
		return memorySnapshot{f.machine.Snapshot()}, nil
	}
	index, _ := f.machine.Applied()
	return snapshot.New(f.machine, index), nil
}

// Restore implements raft.FSM. Raft calls it when a snapshot from the leader is on disk.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	if err := f.failStop.Err(); err != nil {
		return err
	}
	err := f.restore(r)
	if err == nil {
		err = f.checkProtocol()
	}
	if err != nil {
		return f.failStop.Fail(fmt.Errorf("restore snapshot: %w", err))
	}
	index, _ := f.machine.Applied()
	if f.snapshots != nil {
		f.advance(index)
		f.snapshots.Logger.Info("state replaced by snapshot", "index", index)
	}
	return nil
}

// checkProtocol returns an error if the state requires a newer protocol than the node speaks.
func (f *fsm) checkProtocol() error {
	if f.supported == nil || f.machine.Protocol() <= f.supported.Newest {
		return nil
	}
	rejection := *f.supported
	rejection.Required = f.machine.Protocol()
	return &rejection
}

func (f *fsm) restore(r io.ReadCloser) error {
	if f.snapshots == nil {
		return f.machine.Restore(r)
	}
	return f.snapshots.InstallStream(r, f.machine)
}

// memorySnapshot writes a view of a state in memory.
type memorySnapshot struct {
	*state.Snapshot
}

// Persist implements raft.FSMSnapshot.
func (s memorySnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		_ = sink.Cancel() // the first error counts
		return fmt.Errorf("persist snapshot: %w", err)
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (memorySnapshot) Release() {}

// advance records that an entry has been applied and wakes its waiters.
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

// await returns after the entry at index has been applied.
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
	case <-f.failStop.failed:
		return f.failStop.Err()
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.waiters, ch)
		return ctx.Err()
	}
}
