package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
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

// CheckpointAtCut waits until a cut is recorded, and makes a checkpoint of the state right after
// that entry in the directory dir, which must not exist and must be on the file system of the
// store. Further entries are applied meanwhile. Only one call may wait at a time.
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
		if r.withdraw(m) {
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

// withdraw withdraws a request, and reports whether it was still waiting for its cut.
func (r *cutRequest) withdraw(m *Machine) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	waiting := m.cutRequest == r
	if waiting {
		m.cutRequest = nil
	}
	return waiting
}

// serveCutRequest starts the flush of a requested checkpoint if the last entry has recorded its
// cut. fl.mu must be held, and the last entry must be applied completely.
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

// Comparison returns the number of the latest comparison of the replicas, 0 before the first, and
// the ID at which it began.
func (fl *flusher) Comparison() (number uint64, from string) {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	return fl.metadata.comparison.number, fl.metadata.comparison.from
}

// Quarantines returns the replicas of instances that are in quarantine, in order of instances and
// nodes. They are shared and must not be changed.
func (fl *flusher) Quarantines() []*journalpb.Quarantine {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	return fl.metadata.quarantines
}

// ErrViewMissed means that no view was taken at a comparison: it was recorded before the request, a
// later one was recorded instead of it, a flush was in progress, or another view is wanted. Another
// comparison may succeed.
var ErrViewMissed = errors.New("no view was taken at the comparison")

// PauseMax bounds how long a machine applies nothing because of a view.
const PauseMax = 5 * time.Second

// A PendingView waits until a comparison is recorded. Close must be called.
type PendingView struct {
	machine *Machine
	number  uint64
	pause   bool

	done chan struct{} // closed when view and err are set
	view *View
	err  error

	resumeOnce sync.Once
	resumed    chan struct{} // closed when the machine may go on
	limit      *time.Timer   // of the pause; nil without one
	// released says that Close was called; end then closes the view. Guarded by the machine's mu.
	released bool
}

// end sets the outcome, once.
func (p *PendingView) end(view *View, err error) {
	p.machine.mu.Lock()
	released := p.released
	p.view, p.err = view, err
	p.machine.mu.Unlock()
	if released && view != nil {
		_ = view.Close()
	}
	close(p.done)
}

// PrepareView requests a view of the state right after the entry that records a comparison. It
// returns when no flush is in progress; until the comparison is recorded, a flush begins only if
// memory requires it. With pause, nothing is applied after that entry until Resume or Close is
// called, or for PauseMax from now on.
//
// Errors: [ErrViewMissed]; the error of ctx; a *StoreError; errors.ErrUnsupported for a machine
// without a store.
func (m *Machine) PrepareView(ctx context.Context, number uint64, pause bool) (*PendingView, error) {
	if m.store == nil {
		return nil, errors.ErrUnsupported
	}
	p := &PendingView{machine: m, number: number, pause: pause, done: make(chan struct{}), resumed: make(chan struct{})}
	if err := p.request(); err != nil {
		return nil, err
	}
	if pause {
		p.limit = time.AfterFunc(PauseMax, p.Resume)
	}
	for {
		m.mu.RLock()
		inFlight := m.current
		m.mu.RUnlock()
		if inFlight == nil {
			return p, nil
		}
		select {
		case <-inFlight.done:
		case <-m.store.Failed():
			p.Close()
			return nil, m.store.Err()
		case <-ctx.Done():
			p.Close()
			return nil, fmt.Errorf("prepare a view: %w", ctx.Err())
		}
	}
}

func (p *PendingView) request() error {
	m := p.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pendingView != nil || m.metadata.comparison.number >= p.number {
		return ErrViewMissed
	}
	m.pendingView = p
	return nil
}

// Wait returns the view when it is taken. Close closes it. The errors are those of PrepareView, and
// of ctx: after Close no view is taken any more.
func (p *PendingView) Wait(ctx context.Context) (*View, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a view: %w", ctx.Err())
	case <-p.machine.store.Failed():
		return nil, p.machine.store.Err()
	}
	p.machine.mu.RLock()
	defer p.machine.mu.RUnlock()
	return p.view, p.err
}

// Resume ends the pause. It may be called more than once.
func (p *PendingView) Resume() { p.resumeOnce.Do(func() { close(p.resumed) }) }

// Close ends the request, the pause and the view, if there is one. It may be called more than once.
func (p *PendingView) Close() {
	p.Resume()
	if p.limit != nil {
		p.limit.Stop()
	}
	m := p.machine
	m.mu.Lock()
	p.released = true
	view := p.view
	if m.pendingView == p {
		m.pendingView = nil
		m.startFlushIfDue()
	}
	m.mu.Unlock()
	if view != nil {
		_ = view.Close() // only an iterator that is open makes it fail
	}
}

// holdsFlush reports whether a flush should wait, so that the next one is that of a view.
func (fl *flusher) holdsFlush() bool {
	return fl.pendingView != nil && fl.dirtyBytes < fl.options.FlushBytes*3/2
}

// servePendingView starts the flush of a requested view if the last entry has recorded its
// comparison. It returns the request if the caller must then wait until it is resumed. fl.mu must
// be held, and the last entry must be applied completely.
func (fl *flusher) servePendingView() (paused *PendingView) {
	p := fl.pendingView
	if p == nil || fl.metadata.comparison.number < p.number {
		return nil
	}
	fl.pendingView = nil
	if fl.metadata.comparison.number > p.number || fl.current != nil {
		go p.end(nil, ErrViewMissed) // it takes fl.mu
		return nil
	}
	view := &View{Index: fl.index, machine: p.machine}
	fl.startFlush(func() {
		snapshot, err := fl.store.Snapshot()
		if err != nil {
			p.end(nil, err)
			return
		}
		view.snapshot = snapshot
		p.end(view, nil)
	})
	if !p.pause {
		return nil
	}
	fl.paused = p
	return p
}

// awaitResumed waits until a pause ends.
func (fl *flusher) awaitResumed(p *PendingView) {
	select {
	case <-p.resumed:
	case <-fl.store.Failed():
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.paused = nil
}

// ReplaceInstance replaces an instance by the one in an encoded InstanceSnapshot, or removes it if
// that is empty. Nothing else changes it meanwhile, because the machine is paused: the view must be
// taken. It keeps parts of encoded.
//
// Errors: [ErrViewMissed] if the pause has ended, and nothing was changed; one that wraps
// ErrCorrupt; a *StoreError.
func (p *PendingView) ReplaceInstance(id string, encoded []byte) error {
	var fresh *instance
	if len(encoded) > 0 {
		var err error
		if fresh, err = decodeInstance(encoded); err != nil {
			return err
		}
		if fresh.id != id {
			return fmt.Errorf("the copy is of instance %q: %w", fresh.id, ErrCorrupt)
		}
		fresh.memBytes = idleBytes + len(id)
		if !fresh.isRunning() {
			fresh.attempts = nil // only open activities have attempts
		}
	}
	m := p.machine
	release, err := m.blockFlushes() // then the store has everything that is in memory
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-p.resumed:
		return ErrViewMissed
	default:
	}
	if m.paused != p {
		return ErrViewMissed
	}
	if in := m.instances[id]; in != nil {
		m.evict(in)
	}
	removals, err := p.removalsOf(id, fresh)
	if err != nil {
		return err
	}
	m.removals = append(m.removals, removals...)
	m.purged[id] = m.generation
	if fresh != nil {
		m.markDirty(fresh)
		m.addAppended(fresh, memberships{}, false)
		m.dirtyBytes += len(encoded)
	}
	m.watchers.notify(id, fresh != nil && fresh.isRunning())
	return nil
}

// removalsOf returns the removals of all keys that the store has of an instance: those that follow
// from its stored header, which may be wrong, and from the right instance, nil if there is none. It
// subtracts the instance from the counts. m.mu must be held, and no flush be in progress.
func (p *PendingView) removalsOf(id string, right *instance) (removals []removal, err error) {
	m := p.machine
	all := memberships{busy: true, unbegun: true, child: true, hasCondition: true}
	var stored *instance
	var timers []timerKey
	uncounted := false
	counted := func(from store.Reader, in *instance) (*index.Entries, error) {
		in.facet = m.facets.of(in)
		entries, isStored := in.newEntries(), true
		var err error
		entries.EachAbsent(id, nil, func(key []byte) {
			value, getErr := from.Get(key)
			err, isStored = errors.Join(err, getErr), isStored && value != nil
		})
		if isStored && !uncounted && in.facet.count > 0 {
			uncounted = true
			m.facets.remove(in)
		}
		in.facet = nil
		return entries, err
	}
	err = m.store.view("repair an instance", 0, func(from store.Reader) error {
		key := idKey(nil, keyInstance, id)
		value, err := from.Get(key)
		if err != nil {
			return err
		}
		if record, wrong := verifyValue(key, value); wrong == nil {
			stored, _ = parseHeader(id, record)
		}
		if timers, err = timersOf(from, id); err != nil {
			return err
		}
		if stored != nil {
			r := removal{id: id, number: stored.instanceNumber, chunks: 2, sets: all, timers: timers}
			if r.entries, err = counted(from, stored); err != nil {
				return err
			}
			removals = append(removals, r)
		}
		if right == nil {
			return nil
		}
		rightly := *right
		r := removal{id: id, chunks: 1, sets: all, timers: timers} // there is no instance 0
		if r.entries, err = counted(from, &rightly); err != nil {
			return err
		}
		removals = append(removals, r)
		return nil
	})
	return removals, err
}

// timersOf returns the timers of an instance that the store has. It reads the keys of all timers.
func timersOf(from store.Reader, id string) (timers []timerKey, err error) {
	iter, err := from.NewIter([]byte{keyTimer}, endOfKind(keyTimer))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	for ok := iter.First(); ok; ok = iter.Next() {
		if !bytes.HasSuffix(iter.Key(), []byte(id)) {
			continue
		}
		var t timerKey
		if t.parse(iter.Key()) == nil && t.instance == id {
			timers = append(timers, t)
		}
	}
	return timers, iter.Error()
}
