package actors

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// recovery is the progress of recovering the journal's open operations while messages arrive. An
// instance takes no turn before its operations are recovered. Otherwise the turn could cancel an
// operation that is not recovered, or schedule one that would be recovered a second time. Instances
// with waiting messages are recovered first.
type recovery struct {
	context   context.Context // of the partition
	journal   Journal
	recoverer recoverer
	waker     waker
	logger    *slog.Logger

	mu             *sync.Mutex // the partition's, which guards the fields below
	ended          bool
	cursor         string          // instances with smaller IDs are recovered
	recoveredEarly map[string]bool // instances recovered ahead of the cursor
	waiting        []*instance     // have messages and are not recovered
	// Functions to call after an instance is recovered.
	deferred map[string][]func()
}

// A recoverer recovers one open operation.
type recoverer interface {
	recoverOperation(open *journalpb.Operation)
}

// A waker sends messages to the actors of instances.
type waker interface {
	send(in *instance, message any)
}

// isRecovered reports whether the operations of an instance are recovered. The partition's lock is
// held.
func (r *recovery) isRecovered(id string) bool {
	return r.ended || id < r.cursor || r.recoveredEarly[id]
}

// wait lets an instance with messages wait until its operations are recovered. The partition's lock
// is held.
func (r *recovery) wait(in *instance) { r.waiting = append(r.waiting, in) }

// deferUntilRecovered calls f after the operations of an instance are recovered, or the partition
// is closed. It reports false, without calling f, if they are already recovered. Client calls and
// worker slots bound the number of deferred functions.
func (r *recovery) deferUntilRecovered(id string, f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isRecovered(id) {
		return false
	}
	if r.deferred == nil {
		r.deferred = make(map[string][]func())
	}
	r.deferred[id] = append(r.deferred[id], f)
	return true
}

func (r *recovery) runDeferred(id string) {
	r.mu.Lock()
	due := r.deferred[id]
	delete(r.deferred, id)
	r.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// run recovers the open operations of all instances, until the partition is closed.
func (r *recovery) run() {
	defer r.end()
	start, operations := time.Now(), 0
	current, done := "", false
	var ops []*journalpb.Operation // of the current instance
	for open := range r.journal.OpenOperations() {
		if r.context.Err() != nil {
			return
		}
		operations++
		if open.Ref.Instance != current {
			r.recoverInstance(ops)
			ops = ops[:0]
			current = open.Ref.Instance
			done = r.advance(current)
		}
		if !done {
			ops = append(ops, open)
		}
	}
	r.recoverInstance(ops)
	r.logger.Info("open operations recovered", "operations", operations, "took", time.Since(start))
}

// advance moves the cursor to next and recovers instances that have messages. It reports whether
// next is recovered.
func (r *recovery) advance(next string) (done bool) {
	r.mu.Lock()
	last := r.cursor
	r.cursor = next
	waiting := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	r.runDeferred(last) // end runs those of instances without open operations
	for _, in := range waiting {
		if in.id >= next {
			r.recoverInstance(slices.Collect(r.journal.InstanceOperations(in.id)))
		}
		r.mu.Lock()
		if in.id >= next {
			r.recoveredEarly[in.id] = true
		}
		r.waker.send(in, wakeUp{})
		r.mu.Unlock()
		r.runDeferred(in.id)
	}
	return r.recoveredEarly[next] // only this goroutine writes it
}

// end ends the recovery, and calls the functions still deferred. It wakes the waiting instances
// unless the partition was closed first.
func (r *recovery) end() {
	r.mu.Lock()
	if r.context.Err() == nil {
		for _, in := range r.waiting {
			r.waker.send(in, wakeUp{})
		}
	}
	deferred := r.deferred
	r.ended, r.recoveredEarly, r.waiting, r.deferred = true, nil, nil, nil
	r.mu.Unlock()
	for _, due := range deferred {
		for _, f := range due {
			f()
		}
	}
}

// recoverInstance recovers the open operations of one instance. Timers that came due without a
// leader fire in the order of their due times.
func (r *recovery) recoverInstance(ops []*journalpb.Operation) {
	slices.SortStableFunc(ops, func(a, b *journalpb.Operation) int { return cmp.Compare(a.FireAt, b.FireAt) })
	for _, open := range ops {
		r.recoverer.recoverOperation(open)
	}
}
