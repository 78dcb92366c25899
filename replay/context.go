package replay

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Context is the first argument of orchestration code; durable calls take it. It is deliberately
// not a [context.Context], so that passing it to an HTTP call does not compile.
//
// A Context is valid only in the coroutine that received it, until that coroutine ends. A durable
// call on a goroutine that the code started with the go statement has no effect: the goroutine ends
// as if by [runtime.Goexit]. The instance stalls and reports the line of the call
// ([ForeignGoroutine]). A durable call with the Context of another instance panics.
type Context struct {
	x     *Execution
	scope *scope
}

// InstanceID returns the ID of the instance.
func (c *Context) InstanceID() string { return c.x.instance }

// Execution returns the number of the execution, starting at 1. Each continue-as-new starts the
// next one.
func (c *Context) Execution() uint64 { return c.x.number }

// Version returns the version of the code that the execution runs.
func (c *Context) Version() string { return c.x.startInfo.version }

// Tags returns the tags that were set when the instance was started. The caller must not change the
// map.
func (c *Context) Tags() map[string]string { return c.x.startInfo.tags }

// Now returns the cluster time at which the current event was recorded. Cluster time does not
// follow steps of a machine's clock, never goes back, and is the same on every replay. Do not
// compare it with time.Now of an activity.
func (c *Context) Now() time.Time { return c.x.now }

// Replaying reports whether the code is being replayed. Use it for logs and metrics only: code that
// branches on it contradicts its own history.
func (c *Context) Replaying() bool { return c.x.replaying }

// Log returns a logger that carries the instance and execution and is silent on replay, so that
// each line appears once. A line may be repeated if a node dies after writing it and before
// committing the turn.
func (c *Context) Log() *slog.Logger {
	return slog.New(&replayLogHandler{c.x.logger.Handler(), c.x}).
		With("instance", c.x.instance, "execution", c.x.number)
}

// replayLogHandler drops log records during replay and eviction.
type replayLogHandler struct {
	slog.Handler
	x *Execution
}

func (h *replayLogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return !h.x.replaying && !h.x.evicting && !h.x.monitor.abandoned.Load() && h.Handler.Enabled(ctx, level)
}

func (h *replayLogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &replayLogHandler{h.Handler.WithAttrs(attrs), h.x}
}

func (h *replayLogHandler) WithGroup(name string) slog.Handler {
	return &replayLogHandler{h.Handler.WithGroup(name), h.x}
}

// Timer schedules a durable timer that fires d after [Context.Now], never earlier, and at once if d
// is not positive. The future's value is the time at which the timer was due.
func (c *Context) Timer(d time.Duration) *Future[time.Time] {
	c.x.currentCoroutine("a durable call")
	fireAt := c.x.now.UnixNano()
	fireAt += min(int64(max(d, 0)), math.MaxInt64-fireAt) // must not overflow
	event := &journalpb.Event{Body: &journalpb.Event_TimerCreated{
		TimerCreated: &journalpb.TimerCreated{FireAt: fireAt},
	}}
	return scheduleFuture[time.Time](c, "", event)
}

// Sleep waits durably for d. It returns [ErrCanceled] or [ErrTimeout] if the scope of c ends first.
func (c *Context) Sleep(d time.Duration) error {
	_, err := c.Timer(d).Await(c)
	return err
}

// sleepUntil waits until a time in Unix nanoseconds; 0 does not wait.
func (c *Context) sleepUntil(at int64) error {
	if at == 0 {
		return nil
	}
	return c.Sleep(time.Unix(0, at).Sub(c.x.now))
}
