package cluster

import (
	"container/list"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A throttle keeps starts back where they are called while the leader has too many: what
// it costs to bring a start there, and its refusal back, is then left for work that
// ends. It lets through as many as the leader takes, a few less when the leader says
// that it is crowded, and a few more when it does not, as TCP does with segments (RFC
// 5681), which learns of a queue from marks before it learns of it from losses (RFC 3168).
//
// Starts that are to be repeated wait here for their turn, in the order of arrival as long
// as the line is short. When it is not, the newest are first: whoever has waited longest
// is nearest to giving up, so that everybody would be served when it is too late. (Maurer,
// Fail at Scale, ACM Queue 13(8), 2015.) While starts come faster than they are taken,
// those at the other end have no prospect: they are sent away after a while, which bounds
// how many wait, and what they take. A burst that is over is waited out. The zero value
// is ready.
type throttle struct {
	withheld atomic.Uint64 // starts that were refused here
	waiting  atomic.Int64  // starts that wait here

	mu     sync.Mutex
	limit  float64 // starts in a slice; 0: all are let through
	tokens float64 // starts that may be let through at once
	filled time.Time
	rate   float64 // starts taken in a slice, of late
	now    slice
	met    time.Time     // when the leader was too busy, or crowded, last
	eased  time.Time     // when the limit was lowered last
	again  time.Duration // how long the last start took: when to try again
	line   list.List     // of *waiting
	flow   flow
	pump   *time.Timer // runs while somebody waits
}

// A flow is how many starts have come, to be let through at once or to wait, and how many
// were let through in a while, and whether more had come in the while before.
type flow struct {
	began         time.Time
	came, through int
	rises         bool
}

// A slice is what came of starts in a while.
type slice struct {
	began time.Time
	taken int
	met   bool // a leader that was too busy, or crowded
}

// A waiting start is told once whether it is let through.
type waiting struct {
	ctx     context.Context
	since   time.Time
	verdict chan verdict
}

// A verdict is what becomes of a start that waits.
type verdict int

const (
	late     verdict = iota // its time is nearly over
	hopeless                // it has waited for long, and more come than are taken
	through
)

const (
	throttleSlice  = 100 * time.Millisecond
	throttleMemory = time.Second
	throttleSpare  = 4 // starts in each slice, whatever was taken
	// What a slice counts in the rate: a moment in which the leader takes nothing leaves
	// most of it.
	throttleWeight = 0.1
	// What becomes of the limit when the leader refuses starts, when it is crowded, and
	// after a slice in which it was neither.
	throttleRefused = 0.8
	throttleCrowded = 0.9
	throttleGrowth  = 1.125
	// For which part of a slice nothing is let through when the leader has refused a
	// start: it would refuse others as well.
	throttlePause = 0.5
	// How much of a slice's starts may be let through at once: more than come due in a tick,
	// as ticks are late when there is much to do.
	throttleBurst = 0.25
	throttleTick  = 10 * time.Millisecond
	// How many starts wait; more are refused at once. How long those beyond the first few
	// wait while so many times as many come as are let through; and how long that is
	// watched for.
	lineMax   = 65_536
	lineFree  = 128
	lineWait  = 2 * time.Second
	lineRise  = 1.1
	lineWatch = 500 * time.Millisecond
	// The line is long when it would take so long to let all through.
	lineLong = time.Second
	// Bounds of how long those who are refused are asked to wait.
	throttleAgainMin = 50 * time.Millisecond
	throttleAgainMax = 2 * time.Second
)

// guard has the starts among the requests pass the throttle before they are asked, but
// for one that has a place at the gate: it was let through, found no leader, and would
// keep the place from others while it waits here. A nil throttle lets all pass.
func (t *throttle) guard(closing <-chan struct{}, place *place, ask asker) asker {
	if t == nil {
		return ask
	}
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		if request.GetStart() == nil {
			return ask(ctx, request)
		}
		if !place.held {
			if refused := t.pass(ctx, closing); refused != nil {
				return refused
			}
		}
		begin := time.Now()
		response := ask(ctx, request)
		t.learn(response, begin)
		return response
	}
}

// pass returns nil when a start is let through, at once or after a wait, or else its
// refusal.
func (t *throttle) pass(ctx context.Context, closing <-chan struct{}) (refused *clusterpb.Response) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, waits := time.Now(), repeatsBusy(ctx)
	behind := waits && t.line.Len() > 0 && !t.newestFirst()
	if !behind && t.lets(now) {
		t.flow.came++
		return nil
	}
	if !waits || t.line.Len() >= lineMax || !lasts(ctx, t.again) {
		return t.refuse()
	}
	w := &waiting{ctx, now, make(chan verdict, 1)}
	place := t.wait(w)
	t.mu.Unlock()
	came, closed := late, false
	select {
	case came = <-w.verdict:
	case <-ctx.Done():
	case <-closing:
		closed = true
	}
	t.mu.Lock()
	t.unwait(place)
	switch {
	case closed:
		return notLeader("the start was not sent")
	case came == through:
		return nil
	case came == hopeless:
		return t.withhold(lineWait, BoundLine, "more starts come than the leader takes")
	}
	return t.refuse()
}

// refuse refuses a start for the leader. t.mu is held.
func (t *throttle) refuse() *clusterpb.Response {
	return t.withhold(t.again, actors.BoundDelay, "the leader takes no more starts")
}

// withhold refuses a start. t.mu is held.
func (t *throttle) withhold(again time.Duration, bound BusyBound, reason string) *clusterpb.Response {
	t.withheld.Add(1)
	return &clusterpb.Response{Failure: failure(&BusyError{RetryAfter: again, Bound: bound, Reason: reason})}
}

// lets tells whether one more start is let through now. t.mu is held.
func (t *throttle) lets(now time.Time) bool {
	t.turn(now)
	if t.limit == 0 {
		return true
	}
	t.tokens += t.limit * now.Sub(t.filled).Seconds() / throttleSlice.Seconds()
	t.tokens, t.filled = min(t.tokens, max(throttleBurst*t.limit, 1)), now
	if t.tokens < 1 {
		return false
	}
	t.tokens--
	t.flow.through++
	return true
}

// turn begins another slice when one is over. t.mu is held.
func (t *throttle) turn(now time.Time) {
	over := t.now
	slices := now.Sub(over.began).Seconds() / throttleSlice.Seconds()
	if slices < 1 {
		return
	}
	left := math.Pow(1-throttleWeight, slices)
	t.rate, t.now = left*t.rate+(1-left)*float64(over.taken)/slices, slice{began: now}
	if t.limit == 0 {
		return
	}
	if !over.met && over.taken > 0 {
		t.limit = throttleGrowth*t.limit + throttleSpare
	}
	if t.line.Len() == 0 && now.Sub(t.met) >= throttleMemory {
		t.limit = 0
	}
}

// learn takes notice of what has become of a start that was let through at a time. A refusal
// for the sake of one instance, or for want of a place on the way, says nothing of the
// leader.
func (t *throttle) learn(response *clusterpb.Response, begin time.Time) {
	failure := response.GetFailure()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case failure == nil:
		t.now.taken, t.again = t.now.taken+1, min(max(now.Sub(begin), throttleAgainMin), throttleAgainMax)
		if response.GetStart().GetCrowded() {
			t.meet(now, begin, throttleCrowded)
		}
	case failure.Code == codeBusy && failure.Bound != string(actors.BoundInstance) && failure.Bound != string(BoundCalls):
		t.meet(now, begin, throttleRefused)
		t.tokens = min(t.tokens, -throttlePause*t.limit)
	}
}

// meet takes notice of a leader that has too much to do: what is left of the limit is a
// share. It is lowered once in a slice at most, and only by starts that were let through
// at that limit: those before say nothing of it. (TCP lowers its window once for all that
// was under way, RFC 3168 and RFC 6582, lest a moment in which nothing moved be taken
// for many.) The first limit is what was taken of late. t.mu is held.
func (t *throttle) meet(now, begin time.Time, left float64) {
	t.met, t.now.met = now, true
	switch {
	case t.limit == 0:
		t.limit, t.tokens, t.filled = max(t.rate, float64(t.now.taken))+throttleSpare, 0, now
		t.again = max(t.again, throttleAgainMin)
	case begin.Before(t.eased) || now.Sub(t.eased) < throttleSlice:
		return
	default:
		t.limit = max(left*t.limit, throttleSpare)
	}
	t.eased = now
}

// wait has a start wait. t.mu is held.
func (t *throttle) wait(w *waiting) *list.Element {
	place := t.line.PushBack(w)
	t.waiting.Store(int64(t.line.Len()))
	if t.line.Len() == 1 {
		t.flow = flow{began: w.since}
		if t.pump == nil {
			t.pump = time.AfterFunc(throttleTick, t.serve)
		} else {
			t.pump.Reset(throttleTick)
		}
	}
	t.flow.came++
	return place
}

// unwait is for a start that does not wait any more. t.mu is held.
func (t *throttle) unwait(place *list.Element) {
	t.line.Remove(place) // no matter if it is not there any more
	t.waiting.Store(int64(t.line.Len()))
}

// serve lets starts through that wait, and sends those away whose time is nearly over, or
// who have no prospect.
func (t *throttle) serve() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for t.line.Len() > 0 && !lasts(t.first().ctx, t.again) {
		t.tell(t.line.Front(), late)
	}
	for t.line.Len() > 0 && t.lets(now) {
		foremost := t.line.Front()
		if t.newestFirst() {
			foremost = t.line.Back()
		}
		t.tell(foremost, through)
	}
	if over := t.flow; now.Sub(over.began) >= lineWatch {
		t.flow = flow{began: now, rises: float64(over.came) > lineRise*float64(over.through)}
	}
	for t.flow.rises && t.line.Len() > lineFree && now.Sub(t.first().since) >= lineWait {
		t.tell(t.line.Front(), hopeless)
	}
	if t.line.Len() > 0 {
		t.pump.Reset(throttleTick)
	}
}

// newestFirst tells in which order those who wait are let through. t.mu is held.
func (t *throttle) newestFirst() bool {
	soon := t.limit * lineLong.Seconds() / throttleSlice.Seconds()
	return t.flow.rises || float64(t.line.Len()) > soon
}

// first is who has waited longest. t.mu is held.
func (t *throttle) first() *waiting { return t.line.Front().Value.(*waiting) }

// tell ends the wait of a start. t.mu is held.
func (t *throttle) tell(place *list.Element, v verdict) {
	place.Value.(*waiting).verdict <- v
	t.unwait(place)
}
