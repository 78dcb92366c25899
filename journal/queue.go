package journal

import (
	"errors"
	"sync"
	"time"
)

// proposal is a record on its way into the log.
type proposal struct {
	record []byte // encoded as the field Entry.records
	done   func(error)
	// outcome receives the result of the record before done is called; may be nil.
	outcome  *uint64
	queuedAt time.Time // when put was called
}

// queue holds the proposals that wait to be packed, bounded in number and bytes. It accepts
// proposals only during a leadership. When the leadership ends, pack calls done with an error for
// all that are left, so the next leadership never proposes them.
type queue struct {
	entriesMax, bytesMax int

	mu          sync.Mutex
	changed     sync.Cond
	waiting     []proposal
	bytes       int
	rejection   error      // why put fails; nil during a leadership
	rejected    []proposal // to be failed with rejectedErr
	rejectedErr error
	ended       bool
	free        [][]proposal // empty slices of resolved batches, to be used again
	// rejectedReady holds a token when rejected may not be empty.
	rejectedReady chan struct{}
}

func newQueue(entriesMax, bytesMax int) *queue {
	q := &queue{entriesMax: entriesMax, bytesMax: bytesMax, rejection: ErrNotLeader, rejectedReady: make(chan struct{}, 1)}
	q.changed.L = &q.mu
	return q
}

// put queues a proposal, or returns why not.
func (q *queue) put(p proposal) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.rejection != nil:
		return q.rejection
	case len(q.waiting) >= q.entriesMax || q.bytes+len(p.record) > q.bytesMax:
		return ErrBusy
	}
	p.queuedAt = time.Now()
	q.waiting = append(q.waiting, p)
	q.bytes += len(p.record)
	q.changed.Signal()
	return nil
}

// accept makes the queue accept proposals, since a leadership begins. After a permanent rejection
// it does nothing.
func (q *queue) accept() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isFinal() {
		q.rejection = nil
	}
}

// reject makes the queue reject proposals, also the waiting ones, with reason. The first ErrClosed
// or *NodeFailedError is permanent.
func (q *queue) reject(reason error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isFinal() {
		return
	}
	q.rejection, q.rejectedErr = reason, reason
	q.rejected = append(q.rejected, q.waiting...)
	q.waiting, q.bytes = nil, 0
	q.changed.Signal()
	notify(q.rejectedReady)
}

// takeRejected returns the proposals to fail with rejection; there may be none.
func (q *queue) takeRejected() (batch []proposal, rejection error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch, q.rejected = q.rejected, nil
	return batch, q.rejectedErr
}

// size returns the size of what waits to be packed.
func (q *queue) size() (entries, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting), q.bytes
}

// isFinal reports whether the queue will never accept a proposal again.
func (q *queue) isFinal() bool {
	return q.rejection != nil && !errors.Is(q.rejection, ErrNotLeader)
}

// end makes take return open = false after everything is taken.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.changed.Signal()
}

// take waits for proposals and returns as many as fit into one entry. If rejection is set, they
// must be failed with it. Only pack calls take.
func (q *queue) take(entriesMax, bytesMax int) (batch []proposal, rejection error, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.rejected) == 0 && len(q.waiting) == 0 {
		if q.ended {
			return nil, nil, false
		}
		q.changed.Wait()
	}
	if len(q.rejected) > 0 {
		batch, q.rejected = q.rejected, nil
		return batch, q.rejectedErr, true
	}
	n, size := 0, 0
	for n < len(q.waiting) && n < entriesMax {
		if size += len(q.waiting[n].record); n > 0 && size > bytesMax {
			break
		}
		q.bytes -= len(q.waiting[n].record)
		n++
	}
	if n == len(q.waiting) {
		batch, q.waiting = q.waiting, q.takeFree()
		return batch, nil, true
	}
	batch = append(q.takeFree(), q.waiting[:n]...)
	clear(q.waiting[:n])
	q.waiting = q.waiting[n:]
	return batch, nil, true
}

// Of the slices of resolved batches at most freeMax are kept, each of at most freeCapMax proposals.
const (
	freeMax    = 8
	freeCapMax = 1024
)

func (q *queue) takeFree() []proposal {
	if len(q.free) == 0 {
		return nil
	}
	last := len(q.free) - 1
	batch := q.free[last]
	q.free = q.free[:last]
	return batch
}

// recycle keeps the memory of a batch for later ones. The caller must not use it afterwards.
func (q *queue) recycle(batch []proposal) {
	if cap(batch) > freeCapMax {
		return
	}
	clear(batch)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.free) < freeMax {
		q.free = append(q.free, batch[:0])
	}
}

// notify puts a token into a channel of capacity one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
