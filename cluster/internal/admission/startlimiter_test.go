package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// An overloadedLeader accepts some starts per interval, rejects the others, and counts.
type overloadedLeader struct {
	acceptsPerInterval int
	bound              actors.Bound

	mu              sync.Mutex
	calls, rejected int

	intervalStart time.Time
	accepted      int // since then
}

func (r *overloadedLeader) ask(context.Context, *clusterpb.Request) *clusterpb.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if time.Since(r.intervalStart) >= limiterInterval {
		r.intervalStart, r.accepted = time.Now(), 0
	}
	if r.accepted < r.acceptsPerInterval {
		r.accepted++
		return new(clusterpb.Response)
	}
	r.rejected++
	return &clusterpb.Response{Failure: &clusterpb.Failure{
		Code: wire.CodeBusy, NotExecuted: true, RetryAfter: int64(100 * time.Millisecond), Bound: string(r.bound),
	}}
}

func newStartRequest() *clusterpb.Request {
	return &clusterpb.Request{Call: &clusterpb.Request_Start{Start: new(clusterpb.StartRequest)}}
}

// floodLeader makes ten thousand calls without retries, one per millisecond, and returns how many
// were accepted.
func floodLeader(ask Asker, request *clusterpb.Request) (taken int) {
	ctx := WithoutBusyRetries(context.Background())
	for range floodCalls {
		if ask(ctx, request).GetFailure() == nil {
			taken++
		}
		time.Sleep(time.Millisecond)
	}
	return taken
}

const (
	floodCalls     = 10_000
	floodIntervals = floodCalls * int(time.Millisecond) / int(limiterInterval)
)

func TestStartLimiter_FewStartsReachOverloadedLeader(t *testing.T) {
	for _, acceptsPerSlice := range []int{0, 1, 10, 50, 90} {
		t.Run(fmt.Sprint(acceptsPerSlice), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter, leader := new(StartLimiter), &overloadedLeader{acceptsPerInterval: acceptsPerSlice, bound: actors.BoundDelay}
				taken := floodLeader(limiter.intercept(nil, new(callSlot), leader.ask), newStartRequest())
				// The first interval is bounded only by its first rejection.
				if rejectedMax := floodIntervals*(acceptsPerSlice/4+limiterIncrement) + acceptsPerSlice; leader.rejected > rejectedMax || leader.rejected == 0 {
					t.Errorf("the leader rejected %d starts; want at most %d", leader.rejected, rejectedMax)
				}
				if capacity := floodIntervals * acceptsPerSlice; taken < capacity*3/5 {
					t.Errorf("%d were taken, of %d that could be", taken, capacity)
				}
				if rejected := int(limiter.rejected.Load()); rejected+leader.calls != floodCalls {
					t.Errorf("%d withheld, %d asked", rejected, leader.calls)
				}
			})
		})
	}
}

// A queueingLeader executes one start at a time, rejects starts that would wait longer than limit,
// and reports overload at three quarters of that.
type queueingLeader struct {
	serviceTime, limit time.Duration
	reportsOverload    bool // at three quarters of limit
	calls, rejected    int
	freeAt             time.Time
}

func (q *queueingLeader) ask(context.Context, *clusterpb.Request) *clusterpb.Response {
	q.calls++
	waits := max(time.Until(q.freeAt), 0)
	if waits > q.limit {
		q.rejected++
		return &clusterpb.Response{Failure: &clusterpb.Failure{
			Code: wire.CodeBusy, NotExecuted: true, RetryAfter: int64(q.limit), Bound: string(actors.BoundDelay),
		}}
	}
	q.freeAt = time.Now().Add(waits + q.serviceTime)
	return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		Overloaded: q.reportsOverload && waits > q.limit*3/4,
	}}}
}

func TestStartLimiter_OverloadReportReducesRejections(t *testing.T) {
	rejected := make(map[bool]int)
	for _, reportsOverload := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			limiter, leader := new(StartLimiter), &queueingLeader{serviceTime: 2 * time.Millisecond, limit: 100 * time.Millisecond, reportsOverload: reportsOverload}
			taken := floodLeader(limiter.intercept(nil, new(callSlot), leader.ask), newStartRequest())
			if capacity := floodCalls / 2; taken < capacity*9/10 {
				t.Errorf("%d were taken, of %d that could be", taken, capacity)
			}
			rejected[reportsOverload] = leader.rejected
		})
	}
	if rejected[true] > rejected[false]/2 || rejected[false] > floodCalls/100 {
		t.Errorf("the leader rejected %d starts, and %d if it reports overload", rejected[false], rejected[true])
	}
}

func TestStartLimiter_DetectsRecoveredLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &overloadedLeader{bound: actors.BoundInFlight}
		ask := new(StartLimiter).intercept(nil, new(callSlot), leader.ask)
		floodLeader(ask, newStartRequest())
		leader.acceptsPerInterval = 1000
		if taken := floodLeader(ask, newStartRequest()); taken < floodCalls-2*int(limiterResetDelay/time.Millisecond) {
			t.Errorf("%d of %d taken", taken, floodCalls)
		}
	})
}

func TestStartLimiter_ShedsOnlyStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bound := range []actors.Bound{actors.BoundInstance, BoundCalls} {
			hot := &overloadedLeader{bound: bound}
			floodLeader(new(StartLimiter).intercept(nil, new(callSlot), hot.ask), newStartRequest())
			if hot.calls != floodCalls {
				t.Errorf("bound %s: %d of %d starts were asked for", bound, hot.calls, floodCalls)
			}
		}
		limiter, full := new(StartLimiter), new(overloadedLeader)
		floodLeader(limiter.intercept(nil, new(callSlot), full.ask), newStartRequest())
		if full.calls == floodCalls {
			t.Error("what a leader of an earlier version rejects is not withheld")
		}
		before := full.calls
		floodLeader(limiter.intercept(nil, new(callSlot), full.ask), &clusterpb.Request{Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}})
		if asked := full.calls - before; asked != floodCalls {
			t.Errorf("%d of %d events were asked for", asked, floodCalls)
		}
	})
}

// newOverloadedRoute returns a route to a leader that accepts nothing, and whose limiter knows
// that.
func newOverloadedRoute(t *testing.T) (Retrier, *overloadedLeader) {
	t.Helper()
	leader := &overloadedLeader{bound: actors.BoundDelay}
	r := Retrier{Closing: make(chan struct{}), LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget), StartLimiter: new(StartLimiter)}
	floodLeader(r.StartLimiter.intercept(nil, new(callSlot), leader.ask), newStartRequest())
	return r, leader
}

// A start shed by the limiter gets the same error as one rejected by the leader.
func TestStartLimiter_ShedStartIsBusyWithoutRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := newOverloadedRoute(t)
		begin, asked := time.Now(), leader.calls
		for range limiterIncrement {
			_, err := r.Do(WithoutBusyRetries(t.Context()), newStartRequest(), leader.ask)
			var busy *actors.BusyError
			if !errors.As(err, &busy) || busy.RetryAfter < startRetryAfterMin || busy.Bound != actors.BoundDelay {
				t.Errorf("ended with %#v", err)
			}
		}
		if elapsed := time.Since(begin); elapsed != 0 || leader.calls == asked+limiterIncrement {
			t.Errorf("after %v, asked %d times", elapsed, leader.calls-asked)
		}
	})
}

// startMany makes n starts at once, and returns them in the order in which they ended.
func (r Retrier) startMany(ctx context.Context, n int, ask Asker) (ended []int, errs []error) {
	var mu sync.Mutex
	var calling sync.WaitGroup
	for i := range n {
		calling.Go(func() {
			_, err := r.Do(ctx, newStartRequest(), ask)
			mu.Lock()
			defer mu.Unlock()
			ended, errs = append(ended, i), append(errs, err)
		})
		synctest.Wait() // one after the other
	}
	calling.Wait()
	return ended, errs
}

func TestStartLimiter_LongQueueServesNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const starts = 500
		r, leader := newOverloadedRoute(t)
		leader.acceptsPerInterval = 20
		asked := leader.calls
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended, errs := r.startMany(ctx, starts, leader.ask)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if asked = leader.calls - asked; asked > starts*5/4 {
			t.Errorf("the leader was asked %d times for %d starts", asked, starts)
		}
		// Some are rejected and queued again.
		long, short := ended[:starts*3/10], ended[starts*9/10:]
		if most := slices.Sorted(slices.Values(long))[len(long)/10]; most < starts/2 {
			t.Errorf("admitted while the queue was long: %v", long)
		}
		if most := slices.Sorted(slices.Values(short))[len(short)/2]; most < starts/5 {
			t.Errorf("when it was short the last ones were: %v", short)
		}
		if waiting := r.StartLimiter.queued.Load(); waiting != 0 {
			t.Errorf("%d still wait", waiting)
		}
	})
}

func TestStartLimiter_BusyBeforeDeadlineIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := newOverloadedRoute(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended, errs := r.startMany(ctx, 300, leader.ask)
		for i, err := range errs {
			if !errors.Is(err, actors.ErrBusy) {
				t.Fatalf("start %d has ended with %v", ended[i], err)
			}
		}
		if ctx.Err() != nil {
			t.Error("some ended with their time")
		}
	})
}

func TestStartLimiter_WaitersEndWithNodeAndContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := newOverloadedRoute(t)
		closing := make(chan struct{})
		r.Closing = closing
		long, cancelLong := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLong()
		canceled, cancel := context.WithCancel(long)
		var calling sync.WaitGroup
		for range 100 {
			calling.Go(func() {
				if _, err := r.Do(canceled, newStartRequest(), leader.ask); !errors.Is(err, actors.ErrBusy) {
					t.Errorf("without its context: %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		calling.Wait()
		for range 100 {
			calling.Go(func() {
				if _, err := r.Do(long, newStartRequest(), leader.ask); !errors.Is(err, ErrClosed) {
					t.Errorf("without the node: %v", err)
				}
			})
		}
		synctest.Wait()
		close(closing)
		calling.Wait()
		if waiting := r.StartLimiter.queued.Load(); waiting != 0 {
			t.Errorf("%d still wait", waiting)
		}
	})
}

// For a minute, twice as many starts arrive as the leader accepts, and each could wait longer than
// that.
func TestStartLimiter_OverloadBoundsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, starts = 5 * time.Millisecond, 12_000
		r, leader := newOverloadedRoute(t)
		leader.acceptsPerInterval = int(limiterInterval / (2 * every))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var mu sync.Mutex
		var calling sync.WaitGroup
		taken, longest, most := 0, time.Duration(0), int64(0)
		begin := time.Now()
		for range starts {
			most = max(most, r.StartLimiter.queued.Load())
			calling.Go(func() {
				since := time.Now()
				_, err := r.Do(ctx, newStartRequest(), leader.ask)
				mu.Lock()
				defer mu.Unlock()
				longest = max(longest, time.Since(since))
				var busy *actors.BusyError
				if err == nil {
					taken++
				} else if !errors.As(err, &busy) || busy.Bound != BoundQueue || busy.RetryAfter != startQueueWait {
					t.Errorf("ended with %#v", err)
				}
			})
			time.Sleep(every)
		}
		capacity := int(time.Since(begin)/limiterInterval) * leader.acceptsPerInterval
		calling.Wait()
		if taken < capacity*3/5 {
			t.Errorf("%d were taken, of %d that could be", taken, capacity)
		}
		// Some are admitted, rejected, and queued again.
		if longest > 3*startQueueWait || most > startQueueShedAbove+int64((startQueueWait+startQueueRiseInterval)/every) {
			t.Errorf("up to %d waited, for up to %v", most, longest)
		}
	})
}

// A few callers that each make one call after the other get equal shares.
func TestStartLimiter_ShortQueueIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 50
		r, leader := newOverloadedRoute(t)
		leader.acceptsPerInterval = 20
		ask := func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			time.Sleep(limiterTick * 2 / 3) // callers return between two ticks
			return leader.ask(ctx, request)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var created [callers]int
		var calling sync.WaitGroup
		for caller := range created {
			calling.Go(func() {
				for hasTimeLeft(ctx, 10*time.Second) {
					if _, err := r.Do(ctx, newStartRequest(), ask); err != nil {
						t.Error(err)
					}
					created[caller]++
				}
			})
		}
		calling.Wait()
		if least, most := slices.Min(created[:]), slices.Max(created[:]); least < most/3 {
			t.Errorf("one has made %d calls, another %d", least, most)
		}
	})
}

// Slightly more starts arrive than the leader accepts, and most are admitted at once: then queued
// starts are not shed.
func TestStartLimiter_SlightOverloadShedsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, come, slices = 200, 205, 200
		now := time.Now()
		limiter := &StartLimiter{limit: limit, refilledAt: now, overloadedAt: now.Add(time.Hour)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var passing sync.WaitGroup
		pass := func() {
			if rejected := limiter.admit(ctx, nil); rejected != nil {
				t.Error(rejected)
			}
		}
		for range 2 * limit { // left from before
			passing.Go(pass)
		}
		for range slices * come {
			time.Sleep(limiterInterval / come)
			passing.Go(pass)
		}
		passing.Wait()
	})
}

func TestStartLimiter_StartWithSlotSkipsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newOverloadedRoute(t)
		r.CallLimiter = NewCallLimiter()
		asked, begin := 0, time.Now()
		_, err := r.Do(t.Context(), newStartRequest(), func(context.Context, *clusterpb.Request) *clusterpb.Response {
			if asked++; asked == 1 {
				begin = time.Now()
				return wire.NotLeader("not yet")
			}
			if elapsed := time.Since(begin); elapsed >= limiterTick {
				t.Errorf("asked again after %v", elapsed)
			}
			return new(clusterpb.Response)
		})
		if err != nil || asked != 2 || len(r.CallLimiter.slots) != 0 {
			t.Errorf("asked %d times, then %v; %d places are held", asked, err, len(r.CallLimiter.slots))
		}
	})
}

func TestStartLimiter_QueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newOverloadedRoute(t)
		for range startQueueMax {
			r.StartLimiter.queue.PushBack(&queuedStart{t.Context(), time.Now(), make(chan admitDecision, 1)})
		}
		for range limiterIncrement { // for starts admitted at once
			r.StartLimiter.admit(WithoutBusyRetries(t.Context()), nil)
		}
		begin := time.Now()
		if rejected := r.StartLimiter.admit(t.Context(), nil); rejected.GetFailure().GetCode() != wire.CodeBusy || time.Since(begin) != 0 {
			t.Errorf("answered %v after %v", rejected, time.Since(begin))
		}
	})
}

func TestStartLimiter_NoRetryFailsAtFirstRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := newRejectingLeader(busyOneSecond)
		begin := time.Now()
		_, err := Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget)}.Do(WithoutBusyRetries(t.Context()), new(clusterpb.Request), ask)
		if !errors.Is(err, actors.ErrBusy) || time.Since(begin) != 0 || len(*asked) != 1 {
			t.Errorf("%v after %v, asked %d times", err, time.Since(begin), len(*asked))
		}
		ask, _ = newRejectingLeader(&clusterpb.Failure{Code: wire.CodeNotLeader, NotExecuted: true})
		if _, err := (Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget)}).Do(WithoutBusyRetries(t.Context()), new(clusterpb.Request), ask); err != nil {
			t.Errorf("without a leader: %v", err)
		}
	})
}

// A leader that accepts all starts pauses briefly, and reports overload for the starts in flight
// then.
func TestStartLimiter_ForgetsBriefLeaderPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, stallStart, again = time.Millisecond, time.Second, 1300 * time.Millisecond
		begin := time.Now()
		leader := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			came := time.Since(begin)
			overloaded := came >= stallStart && came < again
			if overloaded {
				time.Sleep(again - came + (came-stallStart)*2/3) // one after the other
			}
			return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{Overloaded: overloaded}}}
		}
		r := Retrier{Closing: make(chan struct{}), LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget), StartLimiter: new(StartLimiter)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		var calling sync.WaitGroup
		last := time.Duration(0) // when the last start that had to wait was made
		for range 4 * time.Second / every {
			calling.Go(func() {
				since := time.Now()
				if _, err := r.Do(ctx, newStartRequest(), leader); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if time.Since(since) > limiterTick {
					last = max(last, since.Sub(begin))
				}
			})
			time.Sleep(every)
		}
		calling.Wait()
		if last > again+15*limiterInterval {
			t.Errorf("starts had to wait until %v after the pause", last-again)
		}
	})
}
