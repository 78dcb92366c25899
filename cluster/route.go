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

// A call that found no leader is tried again after a pause that grows from the
// first to the longest, give or take a half, so that callers do not come at once.
const (
	pauseFirst   = 5 * time.Millisecond
	pauseLongest = 250 * time.Millisecond
)

var dialBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}

// An asker tries a call once. The answer to one that it could not bring to anybody
// is a failure like any other.
type asker func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response

// bounded gives a context without a deadline one.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

// request fills in what a request to the leader of the group needs that another node
// is to answer.
func (g *group) request(r *clusterpb.Request) *clusterpb.Request {
	r.Protocol, r.Node, r.Group = g.config.protocol, g.config.NodeID, uint32(g.number+1)
	return r
}

// call brings a request to the leader and its answer back.
func (n *Node) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	ctx, cancel := bounded(ctx, n.config.CallTimeout)
	defer cancel()
	request.Protocol, request.Node = n.config.protocol, n.config.NodeID
	var response *clusterpb.Response
	err := n.recovered(request, func() (err error) {
		response, err = n.bring(ctx, request)
		return err
	})
	return response, err
}

// bring is call, in a context that is bounded.
func (n *Node) bring(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if n.concernsAll(request) {
		return n.gather(ctx, request)
	}
	g := n.groupFor(request)
	if request.GetMembers() != nil && request.Group == 0 {
		return g.membersNow(ctx, request)
	}
	way := route{
		closing: n.closing, moved: &g.moved, budget: &n.budget, throttle: &g.throttle, gate: g.gate,
		seen: max(g.seen.Load(), g.journal.AppliedIndex()),
	}
	response, err := way.persist(ctx, request, n.ask)
	g.seen.see(response.GetAppliedIndex())
	return response, err
}

// A route is what calls have in common that go to the leader of a group, or to whoever is
// near.
type route struct {
	closing  <-chan struct{}
	moved    *bell // rings when another node leads
	budget   *budget
	throttle *throttle // nil lets everybody pass
	gate     callGate  // its zero value, too
	// Up to which index of the journal the caller has seen everything; 0: nothing.
	seen uint64
}

// persist asks again and again until a leader has answered, ctx ends, or closing
// is closed. Requests carry request IDs, so that trying again is safe. A leader that
// is busy is asked again, too, as long as ctx allows, but for a start that has waited in
// line in vain; the place at the gate is left for that time, but kept while there is no
// leader, so that few are woken when there is one.
func (r route) persist(ctx context.Context, request *clusterpb.Request, ask asker) (*clusterpb.Response, error) {
	r.budget.earn()
	place := place{gate: r.gate}
	defer place.leave()
	ask = r.throttle.guard(r.closing, &place, place.guard(ask))
	notExecuted := true
	pause, patience := pauseFirst, time.Duration(0)
	for {
		if err := ctx.Err(); err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: err}
		}
		changed := r.moved.next()
		response := ask(ctx, request)
		failure := response.GetFailure()
		if failure == nil {
			return response, nil
		}
		if failure.Code == codeBusy && failure.NotExecuted && failure.Bound != string(BoundLine) && repeatsBusy(ctx) {
			place.leave()
			patience = r.budget.pause(failure, patience)
			if lasts(ctx, patience*3/2) && rest(ctx, r.closing, around(patience)) == nil {
				continue
			}
		}
		if failure.Code == codeBusy && !notExecuted || failure.Code == codeForgotten {
			return nil, &UnavailableError{Err: failed(failure)}
		}
		if !repeatable(failure) {
			return nil, failed(failure)
		}
		if !failure.NotExecuted {
			notExecuted, request.Again, request.FirstIndex = false, true, proto.Uint64(r.seen)
		}
		woken, err := restUntil(ctx, r.closing, changed, around(pause))
		if err != nil {
			return nil, &UnavailableError{NotExecuted: notExecuted, Err: whileRepeating(err, failure.Message)}
		}
		if pause = min(2*pause, pauseLongest); woken {
			pause = pauseFirst
		}
	}
}

// whileRepeating returns an error that ended a call, with what the last attempt met. Often
// that is the end of the same context, and is said once.
func whileRepeating(err error, last string) error {
	if strings.Contains(last, err.Error()) {
		return &remoteError{message: unprefixed(last), err: err}
	}
	return fmt.Errorf("%w; the last attempt: %s", err, unprefixed(last))
}

// noRepeats is the key of contexts whose calls are not repeated when they are refused.
type noRepeats struct{}

// WithoutBusyRepeats returns a context whose calls fail with a [BusyError] as soon as
// there is too much to do, instead of being repeated until it ends: for callers who can
// say no themselves, or have something better to do than to wait.
func WithoutBusyRepeats(ctx context.Context) context.Context {
	return context.WithValue(ctx, noRepeats{}, true)
}

func repeatsBusy(ctx context.Context) bool { return ctx.Value(noRepeats{}) == nil }

// lasts tells whether a context will not have ended after a while.
func lasts(ctx context.Context, while time.Duration) bool {
	ends, bounded := ctx.Deadline()
	return !bounded || time.Until(ends) >= while
}

// around returns a pause half as long to half as long again, so that those who
// were refused together do not come back together.
func around(pause time.Duration) time.Duration { return pause/2 + rand.N(max(pause, 1)) }

// A budget bounds how many calls are repeated as soon as a busy leader says: one
// for ten calls, and ten at once. Repeating more would keep it busy. Calls for which
// there is none left wait longer each time.
type budget struct {
	mu    sync.Mutex
	spent float64 // of busyRepeatsMax
}

const (
	busyRepeatsMax  = 10
	busyRepeatShare = 0.1 // of a repetition, earned by each call
	// busyPauseLongest is how long a call waits at most for its next repetition,
	// give or take a half, unless the leader asks for more.
	busyPauseLongest = 2 * time.Second
)

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent = max(b.spent-busyRepeatShare, 0)
}

// pause returns how long to wait before a call is repeated that has waited before
// that for so long.
func (b *budget) pause(busy *clusterpb.Failure, before time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := time.Duration(busy.RetryAfter)
	if b.spent+1 <= busyRepeatsMax {
		b.spent++
		return asked
	}
	return max(asked, min(2*max(before, asked), busyPauseLongest))
}

// rest waits for a pause, unless ctx ends or closing is closed first.
func rest(ctx context.Context, closing <-chan struct{}, pause time.Duration) error {
	_, err := restUntil(ctx, closing, nil, pause)
	return err
}

// restUntil is rest that ends when changed is closed, too, and tells whether it was.
func restUntil(ctx context.Context, closing, changed <-chan struct{}, pause time.Duration) (woken bool, err error) {
	select {
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	default:
	}
	timer := time.NewTimer(pause)
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

// rest waits for a pause, unless ctx or the node ends first.
func (n *Node) rest(ctx context.Context, pause time.Duration) error {
	return rest(ctx, n.closing, pause)
}

// poll waits until a condition holds.
func (n *Node) poll(ctx context.Context, holds func() bool) error {
	pause := time.Millisecond
	for !holds() {
		if err := n.rest(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
	return nil
}

// attempt asks the leader of the group that a request concerns, once: this node, or
// the one that it knows of.
func (n *Node) attempt(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if removed := n.removed(); removed != nil {
		return removed
	}
	g := n.groupFor(request)
	g.hold(ctx)
	if g.serving() != nil {
		return n.serve(ctx, request)
	}
	address := g.otherLeader()
	if address == "" {
		return notLeader("there is no leader now")
	}
	if g.forwarder.takes(request) {
		return g.forwarder.ask(ctx, request)
	}
	ctx, end := g.toLeader(ctx, address)
	defer end()
	return n.peers.ask(ctx, address, request)
}

// toLeader returns a context that ends when another node than the one at the address
// leads. end must be called.
func (g *group) toLeader(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, end = g.attempts.begin(ctx, address)
	g.abandonLate() // the leader may have changed since the address was read
	return limited, end
}

// abandonLate ends what is on its way to a node that does not lead any more.
func (g *group) abandonLate() {
	if _, leader := g.journal.Leader(); leader != "" {
		g.attempts.abandon(leader)
	}
}

func notLeader(message string) *clusterpb.Response {
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeNotLeader, Message: message, NotExecuted: true}}
}

// attempts are calls on their way to a leader, who may have lost the lead, or hang,
// without telling.
type attempts struct {
	mu   sync.Mutex
	open map[*attempt]struct{}
}

type attempt struct {
	address string
	since   time.Time
	cancel  context.CancelFunc
}

// begin returns a context that ends when the attempt is abandoned. end must be
// called.
func (a *attempts) begin(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, cancel := context.WithCancel(ctx)
	begun := &attempt{address: address, since: time.Now(), cancel: cancel}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = make(map[*attempt]struct{})
	}
	a.open[begun] = struct{}{}
	return limited, func() {
		cancel()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.open, begun)
	}
}

// abandon ends the attempts that are on their way to others than the leader.
func (a *attempts) abandon(leader string) {
	a.abandonIf(func(address string) bool { return address != leader })
}

func (a *attempts) abandonIf(lost func(address string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for open := range a.open {
		if lost(open.address) {
			open.cancel()
			delete(a.open, open)
		}
	}
}

// slow returns to whom an attempt has been on its way since before a moment, "" if
// to nobody.
func (a *attempts) slow(before time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for open := range a.open {
		if open.since.Before(before) {
			return open.address
		}
	}
	return ""
}
