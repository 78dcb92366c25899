package replay

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A Context is the first argument of orchestration code; durable calls take it. It is deliberately
// not a [context.Context], so that passing it to an HTTP call does not compile.
//
// A Context is valid only in the coroutine that received it, until that coroutine ends. A durable
// call on a goroutine that the code started with the go statement has no effect: the goroutine ends
// as if by [runtime.Goexit]. The instance stalls and reports the line of the call
// ([ForeignGoroutine]). A durable call with the Context of another instance panics.
type Context struct{ scope host.Scope }

// execution returns the execution that the Context belongs to.
func (c *Context) execution() host.Execution { return c.scope.Execution() }

// InstanceID returns the ID of the instance. In the copied part of the history of a fork it is that
// of the source.
func (c *Context) InstanceID() string { return c.execution().Recorder().Instance }

// Execution returns the number of the execution, starting at 1. Each continue-as-new starts the
// next one. In the copied part of a history it is that of the source.
func (c *Context) Execution() uint64 { return c.execution().Recorder().Number }

// Name returns the name of the orchestration.
func (c *Context) Name() string { return c.execution().Name() }

// Version returns the version of the code that the execution runs.
func (c *Context) Version() string { return c.execution().Version() }

// Attempt returns the number of the run's attempt, 1 for the first: 1 plus the attempts that failed
// and were retried (see [Retry]) since the run began or its code last continued as new.
func (c *Context) Attempt() int { return c.execution().Attempt() }

// Tags returns the tags that were set when the instance was started. The caller must not change the
// map.
func (c *Context) Tags() map[string]string { return c.execution().Tags() }

// Now returns the cluster time at which the current event was recorded. Cluster time does not
// follow steps of a machine's clock, never goes back, and is the same on every replay. Do not
// compare it with time.Now of an activity.
func (c *Context) Now() time.Time { return c.execution().Now() }

// Replaying reports whether the code is being replayed. Use it for logs and metrics only: code that
// branches on it contradicts its own history.
func (c *Context) Replaying() bool { return c.execution().Replaying() }

// Log returns a logger that carries the instance and execution and is silent on replay, so that
// each line appears once. A line may be repeated if a node dies after writing it and before
// committing the turn.
func (c *Context) Log() *slog.Logger { return c.execution().Logger() }

// Err returns why the scope of c has ended, [ErrCanceled] or [ErrTimeout]; nil while it has not.
// During eviction it returns [ErrEvicting].
func (c *Context) Err() error {
	if c.execution().Evicting() {
		return ErrEvicting
	}
	return c.scope.Observe(c.scope.Cause())
}

// Timer schedules a durable timer that fires d after [Context.Now], never earlier, and at once if d
// is not positive. The future's value is the time at which the timer was due.
func (c *Context) Timer(d time.Duration) *Future[time.Time] {
	return (*Future[time.Time])(c.scope.StartTimer(d))
}

// Sleep waits durably for d. It returns [ErrCanceled] or [ErrTimeout] if the scope of c ends first.
func (c *Context) Sleep(d time.Duration) error {
	_, err := c.Timer(d).Await(c)
	return err
}

// Random returns a source of random numbers that yields the same sequence on every replay. Its seed
// derives from instance, incarnation, execution and start time. Use it for spreading and sampling,
// not for secrets.
func (c *Context) Random() *rand.Rand { return c.execution().Random() }

// UUID returns a UUID (RFC 9562, version 4) that is the same on every replay.
func (c *Context) UUID() string {
	var b [16]byte
	random := c.Random()
	binary.LittleEndian.PutUint64(b[:], random.Uint64())
	binary.LittleEndian.PutUint64(b[8:], random.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// WithCancel returns a Context whose scope ends when cancel is called or the scope of ctx ends.
// Then its open operations are canceled, and awaits in it return [ErrCanceled].
func WithCancel(ctx *Context) (inner *Context, cancel func()) {
	inner = &Context{ctx.scope.Nested()}
	return inner, func() {
		ctx.execution().Check("cancel")
		inner.scope.End(ErrCanceled)
	}
}

// WithTimeout is [WithCancel] with a timeout. After d the scope ends, and awaits in it return
// [ErrTimeout]. cancel also stops the timer; call it when the scope is no longer needed.
func WithTimeout(ctx *Context, d time.Duration) (inner *Context, cancel func()) {
	inner, end := WithCancel(ctx)
	limit := ctx.Timer(d)
	if p := limit.core(); p.Seq() == 0 {
		p.OnResolved(func() {
			if p.Err() == nil {
				inner.scope.End(ErrTimeout)
			}
		})
	}
	return inner, func() {
		limit.Cancel(ctx)
		end()
	}
}

// WithoutCancel returns a Context that no cancellation of ctx reaches, for clean-up where
// [Context.OnClose] does not fit. It ends with the body of the orchestration.
func WithoutCancel(ctx *Context) *Context { return &Context{ctx.scope.Shielded()} }
