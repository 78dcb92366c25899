package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// waitTimeout is how long a caller waits for the handler to write a record. A working handler
	// writes it before the caller continues, so that no record is lost when the process exits
	// right afterwards.
	waitTimeout = 5 * time.Millisecond
	// queueMax is how many records may wait for a slow handler. Further records are dropped and
	// counted.
	queueMax = 1024
)

// New returns a logger that writes to the given logger's handler, in order, without blocking for
// long. While the handler is slow, callers do not wait. When 1,024 records wait, further ones are
// dropped, and their number is logged when the handler resumes. One goroutine at a time calls the
// handler, and ends when no record waits. If New made the given logger, it returns that logger.
func New(to *slog.Logger) *slog.Logger {
	if _, ok := to.Handler().(*handler); ok {
		return to
	}
	return slog.New(&handler{to.Handler(), &queue{baseHandler: to.Handler()}})
}

// Flush waits until the handler has written what was logged before, at most for limit. It is for a
// caller after which the process may exit. A logger that New has not made has written it already.
func Flush(logger *slog.Logger, limit time.Duration) {
	h, ok := logger.Handler().(*handler)
	if !ok {
		return
	}
	h.queue.mu.Lock()
	last := h.queue.last
	h.queue.mu.Unlock()
	if last == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-last.written: // and all before it
	case <-timer.C:
	}
}

type noWait struct{}

// NoWait returns a context for callers that hold a lock which other callers of the logger need. A
// caller with this context does not wait for the handler at all.
func NoWait(ctx context.Context) context.Context { return context.WithValue(ctx, noWait{}, true) }

// handler is a slog.Handler that queues records.
type handler struct {
	inner slog.Handler
	queue *queue
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.inner.WithAttrs(attrs), h.queue}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.inner.WithGroup(name), h.queue}
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	e := &entry{context.WithoutCancel(ctx), h.inner, record.Clone(), make(chan struct{})}
	if slow := h.queue.add(e); !slow && ctx.Value(noWait{}) == nil {
		h.queue.await(e)
	}
	return nil
}

// entry is a record that waits for its handler.
type entry struct {
	ctx     context.Context
	handler slog.Handler
	record  slog.Record
	written chan struct{} // closed when the handler has returned
}

// write calls the handler. A panic of the handler must not stop the node.
func (e *entry) write() {
	defer close(e.written)
	defer func() { _ = recover() }()
	_ = e.handler.Handle(e.ctx, e.record) // an error cannot be reported anywhere
}

// queue holds the records for one handler, in order.
type queue struct {
	baseHandler slog.Handler // logs the number of dropped records

	mu      sync.Mutex
	waiting []*entry
	last    *entry // the last one that was added
	writing bool   // a goroutine is writing
	slow    bool   // the handler took longer than waitTimeout and still has records to write
	dropped int
}

// await waits until a record is written, or marks the handler as slow after waitTimeout.
func (q *queue) await(e *entry) {
	timer := time.NewTimer(waitTimeout)
	defer timer.Stop()
	select {
	case <-e.written:
	case <-timer.C:
		q.mu.Lock()
		defer q.mu.Unlock()
		q.slow = q.writing
	}
}

// add queues a record, and reports whether the caller must not wait for it.
func (q *queue) add(e *entry) (slow bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= queueMax {
		q.dropped++
		return true
	}
	q.waiting, q.last = append(q.waiting, e), e
	if !q.writing {
		q.writing = true
		go q.write()
	}
	return q.slow
}

// write writes queued records until there are none.
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
		return &entry{context.Background(), q.baseHandler, record, make(chan struct{})}
	}
	q.waiting, q.last, q.writing, q.slow = nil, nil, false, false
	return nil
}
