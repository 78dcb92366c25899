package admission

import (
	"container/list"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A StartLimiter delays starts on the calling node while the leader is overloaded. This saves the
// cost of sending and rejecting them, which is better spent on running work. The limiter admits as
// many starts as the leader accepts: fewer when the leader reports overload, more when it does not.
// TCP limits segments in the same way (RFC 5681). Reports of overload come before rejections, as
// TCP's congestion marks come before losses (RFC 3168).
//
// Starts that may be retried wait here. While the queue is short, they are admitted in the order of
// arrival. When it is long, the newest go first: the oldest are the closest to their timeout, and
// first-in first-out would serve every start too late. (Maurer, Fail at Scale, ACM Queue 13(8),
// 2015.) While starts arrive faster than they are admitted, the oldest are shed after
// startQueueWait. That bounds the length of the queue and its memory. A temporary burst waits until
// it is admitted. The zero value is ready.
type StartLimiter struct {
	rejected atomic.Uint64 // starts rejected here
	queued   atomic.Int64  // starts in queue

	mu           sync.Mutex
	limit        float64 // starts per interval; 0: no limit
	tokens       float64 // starts that may be admitted now
	refilledAt   time.Time
	rate         float64 // starts accepted per interval, averaged
	current      interval
	overloadedAt time.Time     // when the leader last rejected a start or reported overload
	decreasedAt  time.Time     // when the limit was last lowered
	retryAfter   time.Duration // delay before a retry: duration of the last accepted start
	queue        list.List     // of *queuedStart
	traffic      traffic
	timer        *time.Timer // runs while the queue is not empty
}

// Rejected returns how many starts were rejected here.
func (s *StartLimiter) Rejected() uint64 { return s.rejected.Load() }

// Queued returns how many starts wait here.
func (s *StartLimiter) Queued() int { return int(s.queued.Load()) }

// traffic counts starts over a period of startQueueRiseInterval: those that were admitted at once
// or queued (arrived), and those that were admitted. isRising reports whether startQueueRiseFactor
// times as many arrived as were admitted in the period before.
type traffic struct {
	began             time.Time
	arrived, admitted int
	isRising          bool
}

// An interval records the outcomes of starts over a period of limiterInterval.
type interval struct {
	began      time.Time
	accepted   int
	overloaded bool // the leader rejected a start or reported overload
}

// A queuedStart receives one decision.
type queuedStart struct {
	ctx      context.Context
	queuedAt time.Time
	decision chan admitDecision
}

// An admitDecision ends the wait of a queued start.
type admitDecision int

const (
	decisionExpired admitDecision = iota // too little time is left until its deadline
	decisionShed                         // it has waited long, and starts arrive faster than they are admitted
	decisionAdmitted
)

// BoundQueue bounds the starts that wait here for the leader.
const BoundQueue = actors.Bound("queue")

const (
	limiterInterval   = 100 * time.Millisecond
	limiterResetDelay = time.Second
	limiterIncrement  = 4 // starts per interval: the smallest limit, and added to each raised limit
	// Weight of an interval in the rate: low, so that a moment in which the leader accepts nothing
	// changes it little.
	limiterRateWeight = 0.1
	// Factors of the limit: when the leader rejects starts, when it reports overload, and after an
	// interval with neither.
	limiterDecreaseRejected   = 0.8
	limiterDecreaseOverloaded = 0.9
	limiterIncrease           = 1.125
	// Part of an interval in which nothing is admitted after a rejection: the leader would reject
	// other starts as well.
	limiterPause = 0.5
	// Part of an interval's starts that may be admitted at once: more than are due in a tick,
	// because ticks are late under load.
	limiterBurst = 0.25
	limiterTick  = 10 * time.Millisecond
	// Bounds of the queue. Beyond startQueueMax, starts are rejected at once. Beyond
	// startQueueShedAbove, they are shed after startQueueWait, if startQueueRiseFactor times as
	// many arrive as are admitted over startQueueRiseInterval.
	startQueueMax          = 65_536
	startQueueShedAbove    = 128
	startQueueWait         = 2 * time.Second
	startQueueRiseFactor   = 1.1
	startQueueRiseInterval = 500 * time.Millisecond
	// The queue is long if admitting all of it would take longer than this.
	startQueueLongWait = time.Second
	// Bounds of the retry delay in rejections.
	startRetryAfterMin = 50 * time.Millisecond
	startRetryAfterMax = 2 * time.Second
)

// intercept makes starts pass the limiter before they are sent. A start that already has a call
// slot passes: it was admitted, found no leader, and would hold the slot while it waits here. A nil
// limiter admits everything.
func (s *StartLimiter) intercept(closing <-chan struct{}, slot *callSlot, ask Asker) Asker {
	if s == nil {
		return ask
	}
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		if request.GetStart() == nil {
			return ask(ctx, request)
		}
		if !slot.acquired {
			if rejected := s.admit(ctx, closing); rejected != nil {
				return rejected
			}
		}
		begin := time.Now()
		response := ask(ctx, request)
		s.observe(response, begin)
		return response
	}
}

// admit returns nil if a start is admitted, at once or after a wait, or else its rejection.
func (s *StartLimiter) admit(ctx context.Context, closing <-chan struct{}) (rejected *clusterpb.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, waits := time.Now(), retriesBusy(ctx)
	behind := waits && s.queue.Len() > 0 && !s.isNewestFirst()
	if !behind && s.allow(now) {
		s.traffic.arrived++
		return nil
	}
	if !waits || s.queue.Len() >= startQueueMax || !hasTimeLeft(ctx, s.retryAfter) {
		return s.reject()
	}
	w := &queuedStart{ctx, now, make(chan admitDecision, 1)}
	slot := s.enqueue(w)
	s.mu.Unlock()
	came, closed := decisionExpired, false
	select {
	case came = <-w.decision:
	case <-ctx.Done():
	case <-closing:
		closed = true
	}
	s.mu.Lock()
	s.remove(slot)
	switch {
	case closed:
		return wire.NotLeader("the start was not sent")
	case came == decisionAdmitted:
		return nil
	case came == decisionShed:
		return s.rejectWith(startQueueWait, BoundQueue, "starts arrive faster than the leader accepts them")
	}
	return s.reject()
}

// reject rejects a start without asking the leader. s.mu must be held.
func (s *StartLimiter) reject() *clusterpb.Response {
	return s.rejectWith(s.retryAfter, actors.BoundDelay, "the leader accepts no more starts for now")
}

// rejectWith rejects a start. s.mu must be held.
func (s *StartLimiter) rejectWith(again time.Duration, bound actors.Bound, reason string) *clusterpb.Response {
	s.rejected.Add(1)
	return &clusterpb.Response{Failure: wire.Busy(&actors.BusyError{RetryAfter: again, Bound: bound, Reason: reason})}
}

// allow reports whether one more start is admitted now. s.mu must be held.
func (s *StartLimiter) allow(now time.Time) bool {
	s.nextInterval(now)
	if s.limit == 0 {
		return true
	}
	s.tokens += s.limit * now.Sub(s.refilledAt).Seconds() / limiterInterval.Seconds()
	s.tokens, s.refilledAt = min(s.tokens, max(limiterBurst*s.limit, 1)), now
	if s.tokens < 1 {
		return false
	}
	s.tokens--
	s.traffic.admitted++
	return true
}

// nextInterval begins a new interval if the current one is over. s.mu must be held.
func (s *StartLimiter) nextInterval(now time.Time) {
	over := s.current
	slices := now.Sub(over.began).Seconds() / limiterInterval.Seconds()
	if slices < 1 {
		return
	}
	left := math.Pow(1-limiterRateWeight, slices)
	s.rate, s.current = left*s.rate+(1-left)*float64(over.accepted)/slices, interval{began: now}
	if s.limit == 0 {
		return
	}
	if !over.overloaded && over.accepted > 0 {
		s.limit = limiterIncrease*s.limit + limiterIncrement
	}
	if s.queue.Len() == 0 && now.Sub(s.overloadedAt) >= limiterResetDelay {
		s.limit = 0
	}
}

// observe records the outcome of an admitted start. A rejection because of one instance's bound, or
// for lack of a call slot, says nothing about the leader.
func (s *StartLimiter) observe(response *clusterpb.Response, begin time.Time) {
	failure := response.GetFailure()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case failure == nil:
		s.current.accepted, s.retryAfter = s.current.accepted+1, min(max(now.Sub(begin), startRetryAfterMin), startRetryAfterMax)
		if response.GetStart().GetOverloaded() {
			s.decreaseLimit(now, begin, limiterDecreaseOverloaded)
		}
	case failure.Code == wire.CodeBusy && failure.Bound != string(actors.BoundInstance) && failure.Bound != string(BoundCalls):
		s.decreaseLimit(now, begin, limiterDecreaseRejected)
		s.tokens = min(s.tokens, -limiterPause*s.limit)
	}
}

// decreaseLimit multiplies the limit by left when the leader is overloaded: at most once per
// interval, and only because of starts admitted under the current limit. (TCP lowers its window
// once for all segments in flight, RFC 3168 and RFC 6582, so that one stall does not count many
// times.) The first limit is the recent rate. s.mu must be held.
func (s *StartLimiter) decreaseLimit(now, begin time.Time, left float64) {
	s.overloadedAt, s.current.overloaded = now, true
	switch {
	case s.limit == 0:
		s.limit, s.tokens, s.refilledAt = max(s.rate, float64(s.current.accepted))+limiterIncrement, 0, now
		s.retryAfter = max(s.retryAfter, startRetryAfterMin)
	case begin.Before(s.decreasedAt) || now.Sub(s.decreasedAt) < limiterInterval:
		return
	default:
		s.limit = max(left*s.limit, limiterIncrement)
	}
	s.decreasedAt = now
}

// enqueue adds a start to the queue. s.mu must be held.
func (s *StartLimiter) enqueue(w *queuedStart) *list.Element {
	slot := s.queue.PushBack(w)
	s.queued.Store(int64(s.queue.Len()))
	if s.queue.Len() == 1 {
		s.traffic = traffic{began: w.queuedAt}
		if s.timer == nil {
			s.timer = time.AfterFunc(limiterTick, s.processQueue)
		} else {
			s.timer.Reset(limiterTick)
		}
	}
	s.traffic.arrived++
	return slot
}

// remove removes a start from the queue. s.mu must be held.
func (s *StartLimiter) remove(slot *list.Element) {
	s.queue.Remove(slot) // no effect if it was removed before
	s.queued.Store(int64(s.queue.Len()))
}

// processQueue admits queued starts, and ends the wait of those that are expired or to be shed.
func (s *StartLimiter) processQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for s.queue.Len() > 0 && !hasTimeLeft(s.oldest().ctx, s.retryAfter) {
		s.resolve(s.queue.Front(), decisionExpired)
	}
	for s.queue.Len() > 0 && s.allow(now) {
		next := s.queue.Front()
		if s.isNewestFirst() {
			next = s.queue.Back()
		}
		s.resolve(next, decisionAdmitted)
	}
	if over := s.traffic; now.Sub(over.began) >= startQueueRiseInterval {
		s.traffic = traffic{began: now, isRising: float64(over.arrived) > startQueueRiseFactor*float64(over.admitted)}
	}
	for s.traffic.isRising && s.queue.Len() > startQueueShedAbove && now.Sub(s.oldest().queuedAt) >= startQueueWait {
		s.resolve(s.queue.Front(), decisionShed)
	}
	if s.queue.Len() > 0 {
		s.timer.Reset(limiterTick)
	}
}

// isNewestFirst reports whether the newest queued starts are admitted first. s.mu must be held.
func (s *StartLimiter) isNewestFirst() bool {
	soon := s.limit * startQueueLongWait.Seconds() / limiterInterval.Seconds()
	return s.traffic.isRising || float64(s.queue.Len()) > soon
}

// oldest returns the start that has waited longest. s.mu must be held.
func (s *StartLimiter) oldest() *queuedStart { return s.queue.Front().Value.(*queuedStart) }

// resolve ends the wait of a start. s.mu must be held.
func (s *StartLimiter) resolve(slot *list.Element, v admitDecision) {
	slot.Value.(*queuedStart).decision <- v
	s.remove(slot)
}
