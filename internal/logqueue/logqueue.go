package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// patience is how long a caller waits for the handler to write a record. A handler that
	// works writes it before the caller goes on, so that no record is lost when the process
	// ends right after it.
	patience = 5 * time.Millisecond
	// waitingMax is how many records wait for a handler that is slow. Later ones are dropped
	// and counted.
	waitingMax = 1024
)

// New returns a logger that writes what the given one writes, in the same order, and never
// waits long for its handler. While the handler is slow its callers do not wait at all; when
// more than 1,024 records wait the others are dropped, and their number is logged when the
// handler goes on. The handler is called by one goroutine at a time. That goroutine ends
// when nothing waits. A logger that came from New is returned as it is.
func New(to *slog.Logger) *slog.Logger {
	if _, ok := to.Handler().(*handler); ok {
		return to
	}
	return slog.New(&handler{to.Handler(), &queue{root: to.Handler()}})
}

type noWait struct{}

// NoWait returns a context for callers that hold a lock which others need in order to log:
// they do not wait for the handler at all.
func NoWait(ctx context.Context) context.Context { return context.WithValue(ctx, noWait{}, true) }

// handler is a slog.Handler that puts records into a queue.
type handler struct {
	to    slog.Handler
	queue *queue
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.to.WithAttrs(attrs), h.queue}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.to.WithGroup(name), h.queue}
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	e := &entry{context.WithoutCancel(ctx), h.to, record.Clone(), make(chan struct{})}
	if slow := h.queue.add(e); !slow && ctx.Value(noWait{}) == nil {
		h.queue.await(e)
	}
	return nil
}

// entry is a record that waits for its handler.
type entry struct {
	ctx     context.Context
	to      slog.Handler
	record  slog.Record
	written chan struct{} // closed when the handler has returned
}

// write calls the handler. Its panic is not the node's.
func (e *entry) write() {
	defer close(e.written)
	defer func() { _ = recover() }()
	_ = e.to.Handle(e.ctx, e.record) // there is nowhere to report it
}

// queue holds the records for one user's handler, in order.
type queue struct {
	root slog.Handler // gets the number of records dropped

	mu      sync.Mutex
	waiting []*entry
	writing bool // a goroutine writes
	slow    bool // the handler has taken longer than patience, and is not done with all yet
	dropped int
}

// await waits until a record is written, or the handler turns out to be slow.
func (q *queue) await(e *entry) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-e.written:
	case <-timer.C:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.slow = q.writing
	}
}

// add queues a record, and reports whether nobody is to wait for it.
func (q *queue) add(e *entry) (slow bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= waitingMax {
		q.dropped++
		return true
	}
	q.waiting = append(q.waiting, e)
	if !q.writing {
		q.writing = true
		go q.write()
	}
	return q.slow
}

// write writes what waits, and ends when nothing does.
func (q *queue) write() {
	for e := q.next(); e != nil; e = q.next() {
		e.write()
	}
}

func (q *queue) next() *entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		return e
	}
	if dropped := q.dropped; dropped > 0 {
		q.dropped = 0
		record := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped: the handler was slow", 0)
		record.AddAttrs(slog.Int("dropped", dropped))
		return &entry{context.Background(), q.root, record, make(chan struct{})}
	}
	q.waiting, q.writing, q.slow = nil, false, false
	return nil
}
