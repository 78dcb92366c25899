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
func (o *recovery) isRecovered(id string) bool {
	return o.ended || id < o.cursor || o.recoveredEarly[id]
}

// wait lets an instance with messages wait until its operations are recovered. The partition's lock
// is held.
func (o *recovery) wait(in *instance) { o.waiting = append(o.waiting, in) }

// deferUntilRecovered calls f after the operations of an instance are recovered, or the partition
// is closed. It reports false, without calling f, if they are already recovered. Client calls and
// worker slots bound the number of deferred functions.
func (o *recovery) deferUntilRecovered(id string, f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isRecovered(id) {
		return false
	}
	if o.deferred == nil {
		o.deferred = make(map[string][]func())
	}
	o.deferred[id] = append(o.deferred[id], f)
	return true
}

func (o *recovery) runDeferred(id string) {
	o.mu.Lock()
	due := o.deferred[id]
	delete(o.deferred, id)
	o.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// run recovers the open operations of all instances, until the partition is closed.
func (o *recovery) run() {
	defer o.end()
	start, operations := time.Now(), 0
	current, done := "", false
	var ops []*journalpb.Operation // of the current instance
	for open := range o.journal.OpenOperations() {
		if o.context.Err() != nil {
			return
		}
		operations++
		if open.Ref.Instance != current {
			o.recoverInstance(ops)
			ops = ops[:0]
			current = open.Ref.Instance
			done = o.advance(current)
		}
		if !done {
			ops = append(ops, open)
		}
	}
	o.recoverInstance(ops)
	o.logger.Info("open operations recovered", "operations", operations, "took", time.Since(start))
}

// advance moves the cursor to next and recovers instances that have messages. It reports whether
// next is recovered.
func (o *recovery) advance(next string) (done bool) {
	o.mu.Lock()
	last := o.cursor
	o.cursor = next
	waiting := o.waiting
	o.waiting = nil
	o.mu.Unlock()
	o.runDeferred(last) // end runs those of instances without open operations
	for _, in := range waiting {
		if in.id >= next {
			o.recoverInstance(slices.Collect(o.journal.InstanceOperations(in.id)))
		}
		o.mu.Lock()
		if in.id >= next {
			o.recoveredEarly[in.id] = true
		}
		o.waker.send(in, wakeUp{})
		o.mu.Unlock()
		o.runDeferred(in.id)
	}
	return o.recoveredEarly[next] // only this goroutine writes it
}

// end ends the recovery, and calls the functions still deferred. It wakes the waiting instances
// unless the partition was closed first.
func (o *recovery) end() {
	o.mu.Lock()
	if o.context.Err() == nil {
		for _, in := range o.waiting {
			o.waker.send(in, wakeUp{})
		}
	}
	deferred := o.deferred
	o.ended, o.recoveredEarly, o.waiting, o.deferred = true, nil, nil, nil
	o.mu.Unlock()
	for _, due := range deferred {
		for _, f := range due {
			f()
		}
	}
}

// recoverInstance recovers the open operations of one instance. Timers that came due without a
// leader fire in the order of their due times.
func (o *recovery) recoverInstance(ops []*journalpb.Operation) {
	slices.SortStableFunc(ops, func(a, b *journalpb.Operation) int { return cmp.Compare(a.FireAt, b.FireAt) })
	for _, open := range ops {
		o.recoverer.recoverOperation(open)
	}
}
