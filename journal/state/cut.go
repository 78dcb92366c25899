package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// ErrCutMissed means that no checkpoint was made at a cut: it was recorded before the request, a
// later cut was recorded instead of it, a flush was in progress, or another request waited. Another
// cut may succeed.
var ErrCutMissed = errors.New("no checkpoint was made at the cut")

// A cutRequest asks for a checkpoint of the state right after the entry that records a cut.
type cutRequest struct {
	cut  uint64
	dir  string
	done chan struct{} // closed when info and err are set
	info CheckpointInfo
	err  error
}

func (r *cutRequest) end(info CheckpointInfo, err error) {
	r.info, r.err = info, err
	close(r.done)
}

// CheckpointAtCut waits until a cut is recorded, and makes a checkpoint of the state right after that
// entry in the directory dir, which must not exist and must be on the file system of the store.
// Further entries are applied meanwhile. Only one call may wait at a time.
//
// Errors: [ErrCutMissed]; the error of ctx if it ends before the cut is recorded; a *StoreError;
// errors.ErrUnsupported for a machine without a store.
func (m *Machine) CheckpointAtCut(ctx context.Context, cut uint64, dir string) (CheckpointInfo, error) {
	if m.store == nil {
		return CheckpointInfo{}, errors.ErrUnsupported
	}
	r := &cutRequest{cut: cut, dir: dir, done: make(chan struct{})}
	if err := m.requestCut(r); err != nil {
		return CheckpointInfo{}, err
	}
	select {
	case <-ctx.Done():
		if m.withdrawCut(r) {
			return CheckpointInfo{}, fmt.Errorf("wait for the cut: %w", ctx.Err())
		}
	case <-r.done:
	case <-m.store.Failed():
		return CheckpointInfo{}, m.store.Err()
	}
	select { // the cut is recorded, and its flush is in progress
	case <-r.done:
		return r.info, r.err
	case <-m.store.Failed():
		return CheckpointInfo{}, m.store.Err()
	}
}

// requestCut makes a request wait for its cut, unless the cut is missed already.
func (m *Machine) requestCut(r *cutRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cutRequest != nil || m.metadata.cut >= r.cut {
		return ErrCutMissed
	}
	m.cutRequest = r
	return nil
}

// withdrawCut withdraws a request, and reports whether it was still waiting for its cut.
func (m *Machine) withdrawCut(r *cutRequest) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	waiting := m.cutRequest == r
	if waiting {
		m.cutRequest = nil
	}
	return waiting
}

// serveCutRequest starts the flush of a requested checkpoint if the last entry has recorded its cut.
// fl.mu must be held, and the last entry must be applied completely.
func (fl *flusher) serveCutRequest() {
	r := fl.cutRequest
	if r == nil || fl.metadata.cut < r.cut {
		return
	}
	fl.cutRequest = nil
	if fl.metadata.cut > r.cut || fl.current != nil {
		r.end(CheckpointInfo{}, ErrCutMissed)
		return
	}
	info := CheckpointInfo{Index: fl.index, Term: fl.term}
	fl.startFlush(func() {
		database, err := fl.store.Checkpoint(r.dir)
		info.Database = database
		r.end(info, err)
	})
}

// Lineages returns the latest lineages of the partition, oldest first; none if it was founded and
// never restored. They are shared and must not be changed.
func (m *Machine) Lineages() []*journalpb.Lineage {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.metadata.lineages
}

// Cut returns the latest cut of the cluster that this partition has recorded, 0 before the first.
func (m *Machine) Cut() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.metadata.cut
}
