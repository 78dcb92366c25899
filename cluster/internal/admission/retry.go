package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A call that finds no leader is retried after a pause that doubles from BackoffMin to BackoffMax.
// A jitter of one half keeps callers from retrying at the same time.
const (
	BackoffMin = 5 * time.Millisecond
	BackoffMax = 250 * time.Millisecond
)

// An Asker makes one attempt of a call. If the attempt reaches no node, the response is a failure
// like any other.
type Asker func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response

// A Retrier retries a call until the leader of a partition, or any node, answers it.
type Retrier struct {
	Closing        <-chan struct{}
	LeaderNotifier *Notifier // notified when another node leads
	RetryBudget    *RetryBudget
	StartLimiter   *StartLimiter // nil admits every start
	CallLimiter    CallLimiter   // the zero value admits every call
	// Highest journal index that the caller has seen; 0: none.
	SeenIndex uint64
}

// outcomeOf returns what a response with a failure says besides the failure.
func outcomeOf(failed *clusterpb.Response) *clusterpb.Response {
	return &clusterpb.Response{Cut: failed.Cut}
}

// Do retries a request until a leader has answered, ctx ends, or Closing is closed. Requests carry
// request IDs, so retrying is safe. Do also retries while the leader is busy, as long as ctx
// allows, but not a start that was shed from the start queue. While a call waits for a busy leader,
// it holds no slot. While it waits for a new leader, it keeps its slot, so that few calls reach
// that leader at once. With the failure of a call it returns a response that has only the cut.
func (r Retrier) Do(ctx context.Context, request *clusterpb.Request, ask Asker) (*clusterpb.Response, error) {
	r.RetryBudget.earn()
	slot := callSlot{limiter: r.CallLimiter}
	defer slot.release()
	ask = r.StartLimiter.intercept(r.Closing, &slot, slot.withSlot(ask))
	notExecuted := true
	delay, waitTime := BackoffMin, time.Duration(0)
	for {
		if err := ctx.Err(); err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: err}
		}
		changed := r.LeaderNotifier.Next()
		response := ask(ctx, request)
		failure := response.GetFailure()
		if failure == nil {
			return response, nil
		}
		if failure.Code == wire.CodeBusy && failure.NotExecuted && failure.Bound != string(BoundQueue) && retriesBusy(ctx) {
			slot.release()
			waitTime = r.RetryBudget.backoff(failure, waitTime)
			if hasTimeLeft(ctx, waitTime*3/2) && Sleep(ctx, r.Closing, jitter(waitTime)) == nil {
				continue
			}
		}
		if failure.Code == wire.CodeBusy && !notExecuted || failure.Code == wire.CodeForgotten {
			return outcomeOf(response), &UnavailableError{Err: &FailureError{failure}}
		}
		if !wire.IsRetryable(failure) {
			return outcomeOf(response), &FailureError{failure}
		}
		if !failure.NotExecuted {
			notExecuted, request.Retried = false, true
			if request.FirstIndex == nil {
				request.FirstIndex = proto.Uint64(r.SeenIndex)
			}
		}
		notified, err := SleepUntil(ctx, r.Closing, changed, jitter(delay))
		if err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: wire.WithLastAttempt(err, failure)}
		}
		if delay = min(2*delay, BackoffMax); notified {
			delay = BackoffMin
		}
	}
}

// noBusyRetries is the key of contexts whose calls are not retried under overload.
type noBusyRetries struct{}

// WithoutBusyRetries returns a context whose calls fail with a [actors.BusyError] under overload at
// once, instead of being retried until the context ends. It is for callers that can shed work
// themselves or have an alternative to waiting.
func WithoutBusyRetries(ctx context.Context) context.Context {
	return context.WithValue(ctx, noBusyRetries{}, true)
}

func retriesBusy(ctx context.Context) bool { return ctx.Value(noBusyRetries{}) == nil }

// hasTimeLeft reports whether a context has at least that much time left.
func hasTimeLeft(ctx context.Context, while time.Duration) bool {
	ends, bounded := ctx.Deadline()
	return !bounded || time.Until(ends) >= while
}

// jitter returns a random pause between half of delay and one and a half of it, so that calls
// rejected together do not retry together.
func jitter(delay time.Duration) time.Duration { return delay/2 + rand.N(max(delay, 1)) }

// A RetryBudget bounds how many calls are retried as soon as a busy leader allows: one for every
// ten calls, and a burst of ten. More would keep the leader busy. Beyond the budget, the wait of a
// call doubles with each retry.
type RetryBudget struct {
	mu    sync.Mutex
	spent float64 // of busyRetriesMax
}

const (
	busyRetriesMax = 10
	busyRetryShare = 0.1 // of a retry, earned by each call
	// busyBackoffMax bounds the wait before a retry, before jitter, unless the leader asks for
	// more.
	busyBackoffMax = 2 * time.Second
)

func (b *RetryBudget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-busyRetryShare, 0)
}

// backoff returns how long a call waits before its next retry. before is its previous wait.
func (b *RetryBudget) backoff(busy *clusterpb.Failure, before time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := time.Duration(busy.RetryAfter)
	if b.spent+1 <= busyRetriesMax {
		b.spent++
		return asked
	}
	return max(asked, min(2*max(before, asked), busyBackoffMax))
}
