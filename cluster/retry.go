package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A call that finds no leader is retried after a pause that doubles from backoffMin to backoffMax.
// A jitter of one half keeps callers from retrying at the same time.
const (
	backoffMin = 5 * time.Millisecond
	backoffMax = 250 * time.Millisecond
)

var dialBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}

// An asker makes one attempt of a call. If the attempt reaches no node, the response is a failure
// like any other.
type asker func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response

// withDefaultTimeout adds a timeout to a context without a deadline.
func withDefaultTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// prepareRequest sets the fields that a request to the partition's leader on another node needs.
func (g *partition) prepareRequest(r *clusterpb.Request) *clusterpb.Request {
	r.Protocol, r.Node, r.Partition = g.config.protocol, g.config.NodeID, uint32(g.number+1)
	return r
}

// call sends a request to the leader and returns its response.
func (n *Node) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	ctx, cancel := withDefaultTimeout(ctx, n.config.CallTimeout)
	defer cancel()
	request.Protocol, request.Node = n.config.protocol, n.config.NodeID
	var response *clusterpb.Response
	err := n.recoverCall(request, func() (err error) {
		response, err = n.callBounded(ctx, request)
		return err
	})
	return response, err
}

// callBounded is call with a context that has a deadline.
func (n *Node) callBounded(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if n.concernsAllPartitions(request) {
		return n.fanOut(ctx, request)
	}
	g := n.partitionFor(request)
	if request.GetMembers() != nil && request.Partition == 0 {
		return g.currentMembers(ctx, request)
	}
	call := callRetrier{
		closing: n.closing, leaderNotifier: &g.leaderNotifier, retryBudget: &n.retryBudget, startLimiter: &g.startLimiter, callLimiter: g.callLimiter,
		seenIndex: max(g.seenIndex.Load(), g.journal.AppliedIndex()),
	}
	response, err := call.do(ctx, request, n.ask)
	g.seenIndex.advance(response.GetAppliedIndex())
	return response, err
}

// A callRetrier retries a call until the leader of a partition, or any node, answers it.
type callRetrier struct {
	closing        <-chan struct{}
	leaderNotifier *notifier // notified when another node leads
	retryBudget    *retryBudget
	startLimiter   *startLimiter // nil admits every start
	callLimiter    callLimiter   // the zero value admits every call
	// Highest journal index that the caller has seen; 0: none.
	seenIndex uint64
}

// do retries a request until a leader has answered, ctx ends, or closing is closed. Requests carry
// request IDs, so retrying is safe. do also retries while the leader is busy, as long as ctx
// allows, but not a start that was shed from the start queue. While a call waits for a busy leader,
// it holds no slot. While it waits for a new leader, it keeps its slot, so that few calls reach
// that leader at once.
func (r callRetrier) do(ctx context.Context, request *clusterpb.Request, ask asker) (*clusterpb.Response, error) {
	r.retryBudget.earn()
	slot := callSlot{limiter: r.callLimiter}
	defer slot.release()
	ask = r.startLimiter.intercept(r.closing, &slot, slot.withSlot(ask))
	notExecuted := true
	delay, waitTime := backoffMin, time.Duration(0)
	for {
		if err := ctx.Err(); err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: err}
		}
		changed := r.leaderNotifier.next()
		response := ask(ctx, request)
		failure := response.GetFailure()
		if failure == nil {
			return response, nil
		}
		if failure.Code == codeBusy && failure.NotExecuted && failure.Bound != string(BoundQueue) && retriesBusy(ctx) {
			slot.release()
			waitTime = r.retryBudget.backoff(failure, waitTime)
			if hasTimeLeft(ctx, waitTime*3/2) && sleep(ctx, r.closing, jitter(waitTime)) == nil {
				continue
			}
		}
		if failure.Code == codeBusy && !notExecuted || failure.Code == codeForgotten {
			return nil, &UnavailableError{Err: fromFailure(failure)}
		}
		if !isRetryable(failure) {
			return nil, fromFailure(failure)
		}
		if !failure.NotExecuted {
			notExecuted, request.Retried, request.FirstIndex = false, true, proto.Uint64(r.seenIndex)
		}
		notified, err := sleepUntil(ctx, r.closing, changed, jitter(delay))
		if err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: retryError(err, failure.Message)}
		}
		if delay = min(2*delay, backoffMax); notified {
			delay = backoffMin
		}
	}
}

// retryError adds the failure of the last attempt to the error that ended a call. If the failure's
// text contains that error, the result does not repeat it.
func retryError(err error, last string) error {
	if strings.Contains(last, err.Error()) {
		return &remoteError{message: trimPrefix(last), err: err}
	}
	return fmt.Errorf("%w; last attempt: %s", err, trimPrefix(last))
}

// noBusyRetries is the key of contexts whose calls are not retried under overload.
type noBusyRetries struct{}

// WithoutBusyRetries returns a context whose calls fail with a [BusyError] under overload at once,
// instead of being retried until the context ends. It is for callers that can shed work themselves
// or have an alternative to waiting.
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

// A retryBudget bounds how many calls are retried as soon as a busy leader allows: one for every
// ten calls, and a burst of ten. More would keep the leader busy. Beyond the budget, the wait of a
// call doubles with each retry.
type retryBudget struct {
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

func (b *retryBudget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-busyRetryShare, 0)
}

// backoff returns how long a call waits before its next retry. before is its previous wait.
func (b *retryBudget) backoff(busy *clusterpb.Failure, before time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := time.Duration(busy.RetryAfter)
	if b.spent+1 <= busyRetriesMax {
		b.spent++
		return asked
	}
	return max(asked, min(2*max(before, asked), busyBackoffMax))
}

// sleep waits for delay, unless ctx ends or closing is closed first.
func sleep(ctx context.Context, closing <-chan struct{}, delay time.Duration) error {
	_, err := sleepUntil(ctx, closing, nil, delay)
	return err
}

// sleepUntil is sleep that also returns when changed is closed, and reports whether it was.
func sleepUntil(ctx context.Context, closing, changed <-chan struct{}, delay time.Duration) (notified bool, err error) {
	select {
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	default:
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-changed:
		return true, nil
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// sleep waits for delay, unless ctx ends or the node closes first.
func (n *Node) sleep(ctx context.Context, delay time.Duration) error {
	return sleep(ctx, n.closing, delay)
}

// poll waits until a condition holds.
func (n *Node) poll(ctx context.Context, holds func() bool) error {
	delay := time.Millisecond
	for !holds() {
		if err := n.sleep(ctx, delay); err != nil {
			return err
		}
		delay = min(2*delay, 20*time.Millisecond)
	}
	return nil
}

// callLeader sends one attempt of a call to the leader of the request's partition: this node, or
// the leader that it knows.
func (n *Node) callLeader(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if removed := n.removedFailure(); removed != nil {
		return removed
	}
	g := n.partitionFor(request)
	g.awaitLeader(ctx)
	if g.servingPartition() != nil {
		return n.serve(ctx, request)
	}
	address := g.otherLeader()
	if address == "" {
		return notLeaderResponse("no leader")
	}
	if g.forwarder.canBatch(request) {
		return g.forwarder.ask(ctx, request)
	}
	ctx, end := g.leaderContext(ctx, address)
	defer end()
	return n.peers.ask(ctx, address, request)
}

// leaderContext returns a context that is canceled when a node at another address leads. end must
// be called.
func (g *partition) leaderContext(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, end = g.leaderCalls.begin(ctx, address)
	g.cancelStaleCalls() // the leader may have changed since the address was read
	return limited, end
}

// cancelStaleCalls cancels calls in flight to a former leader.
func (g *partition) cancelStaleCalls() {
	if _, leader := g.journal.Leader(); leader != "" {
		g.leaderCalls.cancelExcept(leader)
	}
}

func notLeaderResponse(message string) *clusterpb.Response {
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeNotLeader, Message: message, NotExecuted: true}}
}

// inFlightCalls are the calls in flight to a leader. They can be canceled, because a leader may
// hang or lose leadership without an answer.
type inFlightCalls struct {
	mu    sync.Mutex
	calls map[*inFlightCall]struct{}
}

type inFlightCall struct {
	address string
	since   time.Time
	cancel  context.CancelFunc
}

// begin returns a context that ends when cancelIf cancels the call. end must be called.
func (a *inFlightCalls) begin(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, cancel := context.WithCancel(ctx)
	begun := &inFlightCall{address: address, since: time.Now(), cancel: cancel}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = make(map[*inFlightCall]struct{})
	}
	a.calls[begun] = struct{}{}
	return limited, func() {
		cancel()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.calls, begun)
	}
}

// cancelExcept cancels the calls to all addresses but the leader's.
func (a *inFlightCalls) cancelExcept(leader string) {
	a.cancelIf(func(address string) bool { return address != leader })
}

func (a *inFlightCalls) cancelIf(lost func(address string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for open := range a.calls {
		if lost(open.address) {
			open.cancel()
			delete(a.calls, open)
		}
	}
}

// slowAddress returns the address of a call in flight since before a time, "" if there is none.
func (a *inFlightCalls) slowAddress(before time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for open := range a.calls {
		if open.since.Before(before) {
			return open.address
		}
	}
	return ""
}
