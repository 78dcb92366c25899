package replay

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Context is what orchestration code makes its durable calls with. It is not
// a [context.Context], on purpose: handing it to an HTTP call must not compile.
//
// It is valid in the coroutine that it was given to, and not after that ends. A
// durable call on a goroutine that the code has started with the go statement has no
// effect but these: the goroutine ends as if by [runtime.Goexit], and the instance
// stalls with the line of the call ([CalledOutside]). With the Context of another
// instance a durable call panics.
type Context struct {
	x     *Execution
	scope *scope
}

// InstanceID returns the ID of the instance.
func (c *Context) InstanceID() string { return c.x.instance }

// Execution returns the number of the execution, from 1; each continue-as-new
// begins the next.
func (c *Context) Execution() uint64 { return c.x.number }

// Version returns the version of the code that the execution runs.
func (c *Context) Version() string { return c.x.origin.version }

// Tags returns what the instance was tagged with when it was started. The map
// must not be changed.
func (c *Context) Tags() map[string]string { return c.x.origin.tags }

// Now returns the time at which the event that is being consumed was recorded,
// by the cluster time: that of the leaders, which no step of a machine's clock moves.
// It is the same on every replay and never goes back. So it must not be compared with
// the time.Now of an activity.
func (c *Context) Now() time.Time { return c.x.now }

// Replaying tells whether the code is repeating what it did before. It serves
// logs and metrics; code that decides by it breaks its own history.
func (c *Context) Replaying() bool { return c.x.replaying }

// Log returns a logger that carries the instance and is silent on replay, so
// that each line appears once. (A line may be repeated when a node dies between
// writing it and committing the turn.)
func (c *Context) Log() *slog.Logger {
	return slog.New(&quietHandler{c.x.logger.Handler(), c.x}).
		With("instance", c.x.instance, "execution", c.x.number)
}

// quietHandler drops what is logged on replay.
type quietHandler struct {
	slog.Handler
	x *Execution
}

func (h *quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return !h.x.replaying && !h.x.dropping && !h.x.watch.abandoned.Load() && h.Handler.Enabled(ctx, level)
}

func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quietHandler{h.Handler.WithAttrs(attrs), h.x}
}

func (h *quietHandler) WithGroup(name string) slog.Handler {
	return &quietHandler{h.Handler.WithGroup(name), h.x}
}

// Timer schedules a timer that fires d after [Context.Now], never earlier; at
// once if d is not positive. It is durable: it survives the node that set it.
// The future's value is the time for which it was set.
func (c *Context) Timer(d time.Duration) *Future[time.Time] {
	c.x.running("a durable call")
	fireAt := c.x.now.UnixNano()
	fireAt += min(int64(max(d, 0)), math.MaxInt64-fireAt) // a far one is not to wrap around
	event := &journalpb.Event{Body: &journalpb.Event_TimerCreated{
		TimerCreated: &journalpb.TimerCreated{FireAt: fireAt},
	}}
	return call[time.Time](c, "", event)
}

// Sleep waits for d, durably. The error is [ErrCanceled] when the scope of c
// ends first.
func (c *Context) Sleep(d time.Duration) error {
	_, err := c.Timer(d).Await(c)
	return err
}

// sleepUntil waits until a time, Unix nanoseconds; 0 is no time to wait for.
func (c *Context) sleepUntil(at int64) error {
	if at == 0 {
		return nil
	}
	return c.Sleep(time.Unix(0, at).Sub(c.x.now))
}
