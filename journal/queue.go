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
	// Where to put what came of the record before done is called; nil if nobody
	// asks.
	outcome *uint64
	since   time.Time // when it was put into the queue
}

// queue holds what waits to be packed, bounded in entries and bytes. It takes
// proposals during a reign only; what is left when the reign ends is handed to
// the packer with the reason, never to the next reign.
type queue struct {
	entriesMax, bytesMax int

	mu        sync.Mutex
	changed   sync.Cond
	waiting   []proposal
	bytes     int
	refusal   error      // why nothing is taken in; nil during a reign
	refused   []proposal // to be failed with refusedBy
	refusedBy error
	ended     bool
	// refusing holds a token when there is something in refused.
	refusing chan struct{}
}

func newQueue(entriesMax, bytesMax int) *queue {
	q := &queue{entriesMax: entriesMax, bytesMax: bytesMax, refusal: ErrNotLeader, refusing: make(chan struct{}, 1)}
	q.changed.L = &q.mu
	return q
}

// put takes a proposal in, or says why not.
func (q *queue) put(p proposal) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.refusal != nil:
		return q.refusal
	case len(q.waiting) >= q.entriesMax || q.bytes+len(p.record) > q.bytesMax:
		return ErrBusy
	}
	p.since = time.Now()
	q.waiting = append(q.waiting, p)
	q.bytes += len(p.record)
	q.changed.Signal()
	return nil
}

// accept begins a reign, unless the queue has been closed for good.
func (q *queue) accept() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.final() {
		q.refusal = nil
	}
}

// refuse ends a reign. The first of ErrClosed and *FencedError stays.
func (q *queue) refuse(reason error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.final() {
		return
	}
	q.refusal, q.refusedBy = reason, reason
	q.refused = append(q.refused, q.waiting...)
	q.waiting, q.bytes = nil, 0
	q.changed.Signal()
	notify(q.refusing)
}

// takeRefused returns what is to be failed with refusal, which may be nothing.
func (q *queue) takeRefused() (batch []proposal, refusal error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch, q.refused = q.refused, nil
	return batch, q.refusedBy
}

// size returns what waits to be packed.
func (q *queue) size() (entries, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting), q.bytes
}

// final reports whether the queue never takes anything in again.
func (q *queue) final() bool {
	return q.refusal != nil && !errors.Is(q.refusal, ErrNotLeader)
}

// end makes take return open = false once everything is taken.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.changed.Signal()
}

// take waits for proposals and returns as many as fit into one entry. With a
// refusal they are to be failed with it. Only the packer calls it.
func (q *queue) take(entriesMax, bytesMax int) (batch []proposal, refusal error, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.refused) == 0 && len(q.waiting) == 0 {
		if q.ended {
			return nil, nil, false
		}
		q.changed.Wait()
	}
	if len(q.refused) > 0 {
		batch, q.refused = q.refused, nil
		return batch, q.refusedBy, true
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
		batch, q.waiting = q.waiting, make([]proposal, 0, n) // as many may come until the next time
		return batch, nil, true
	}
	batch = append(batch, q.waiting[:n]...)
	clear(q.waiting[:n])
	q.waiting = q.waiting[n:]
	return batch, nil, true
}
