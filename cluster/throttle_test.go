package cluster

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
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A refuser is a leader that takes some starts in each slice of time, and counts.
type refuser struct {
	takes int
	bound actors.Bound

	mu             sync.Mutex
	asked, refused int

	began time.Time
	taken int // since then
}

func (r *refuser) ask(context.Context, *clusterpb.Request) *clusterpb.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if time.Since(r.began) >= throttleSlice {
		r.began, r.taken = time.Now(), 0
	}
	if r.taken < r.takes {
		r.taken++
		return new(clusterpb.Response)
	}
	r.refused++
	return &clusterpb.Response{Failure: &clusterpb.Failure{
		Code: codeBusy, NotExecuted: true, RetryAfter: int64(100 * time.Millisecond), Bound: string(r.bound),
	}}
}

func startRequest() *clusterpb.Request {
	return &clusterpb.Request{Call: &clusterpb.Request_Start{Start: new(clusterpb.StartRequest)}}
}

// flood makes ten thousand calls that are not repeated, one a millisecond, and returns
// how many were taken.
func flood(ask asker, request *clusterpb.Request) (taken int) {
	ctx := WithoutBusyRepeats(context.Background())
	for range floodCalls {
		if ask(ctx, request).GetFailure() == nil {
			taken++
		}
		time.Sleep(time.Millisecond)
	}
	return taken
}

const (
	floodCalls  = 10_000
	floodSlices = floodCalls * int(time.Millisecond) / int(throttleSlice)
)

func TestFewStartsAreBroughtToALeaderThatRefusesThemAndNoneIsLost(t *testing.T) {
	for _, takes := range []int{0, 1, 10, 50, 90} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				throttle, leader := new(throttle), &refuser{takes: takes, bound: actors.BoundDelay}
				taken := flood(throttle.guard(nil, new(place), leader.ask), startRequest())
				// The first slice is not bounded by anything but the first refusal.
				if refusedMax := floodSlices*(takes/4+throttleSpare) + takes; leader.refused > refusedMax || leader.refused == 0 {
					t.Errorf("%d were brought there and refused, of at most %d", leader.refused, refusedMax)
				}
				if could := floodSlices * takes; taken < could*3/5 {
					t.Errorf("%d were taken, of %d that could be", taken, could)
				}
				if withheld := int(throttle.withheld.Load()); withheld+leader.asked != floodCalls {
					t.Errorf("%d withheld, %d asked", withheld, leader.asked)
				}
			})
		})
	}
}

// A queue is a leader that does one start in each while, refuses what would wait for
// longer than limit, and says that it is crowded at three quarters of that.
type queue struct {
	each, limit    time.Duration
	tells          bool // that it is crowded
	asked, refused int
	free           time.Time
}

func (q *queue) ask(context.Context, *clusterpb.Request) *clusterpb.Response {
	q.asked++
	waits := max(time.Until(q.free), 0)
	if waits > q.limit {
		q.refused++
		return &clusterpb.Response{Failure: &clusterpb.Failure{
			Code: codeBusy, NotExecuted: true, RetryAfter: int64(q.limit), Bound: string(actors.BoundDelay),
		}}
	}
	q.free = time.Now().Add(waits + q.each)
	return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{
		Crowded: q.tells && waits > q.limit*3/4,
	}}}
}

func TestALeaderThatSaysWhenItIsCrowdedHasLessToRefuse(t *testing.T) {
	refused := make(map[bool]int)
	for _, tells := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			throttle, leader := new(throttle), &queue{each: 2 * time.Millisecond, limit: 100 * time.Millisecond, tells: tells}
			taken := flood(throttle.guard(nil, new(place), leader.ask), startRequest())
			if could := floodCalls / 2; taken < could*9/10 {
				t.Errorf("%d were taken, of %d that could be", taken, could)
			}
			refused[tells] = leader.refused
		})
	}
	if refused[true] > refused[false]/2 || refused[false] > floodCalls/100 {
		t.Errorf("%d were refused there, and %d if it says so", refused[false], refused[true])
	}
}

func TestALeaderThatTakesStartsAgainIsFoundOutSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &refuser{bound: actors.BoundWindow}
		ask := new(throttle).guard(nil, new(place), leader.ask)
		flood(ask, startRequest())
		leader.takes = 1000
		if taken := flood(ask, startRequest()); taken < floodCalls-2*int(throttleMemory/time.Millisecond) {
			t.Errorf("%d of %d taken", taken, floodCalls)
		}
	})
}

func TestOnlyStartsAreWithheldAndNotForTheSakeOfOneInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, bound := range []actors.Bound{actors.BoundInstance, BoundCalls} {
			hot := &refuser{bound: bound}
			flood(new(throttle).guard(nil, new(place), hot.ask), startRequest())
			if hot.asked != floodCalls {
				t.Errorf("bound %s: %d of %d starts were asked for", bound, hot.asked, floodCalls)
			}
		}
		throttle, full := new(throttle), new(refuser)
		flood(throttle.guard(nil, new(place), full.ask), startRequest())
		if full.asked == floodCalls {
			t.Error("what a leader of an earlier version refuses is not withheld")
		}
		before := full.asked
		flood(throttle.guard(nil, new(place), full.ask), &clusterpb.Request{Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}})
		if asked := full.asked - before; asked != floodCalls {
			t.Errorf("%d of %d events were asked for", asked, floodCalls)
		}
	})
}

// A throttled is a route to a leader that takes nothing, which its throttle knows.
func throttled(t *testing.T) (route, *refuser) {
	t.Helper()
	leader := &refuser{bound: actors.BoundDelay}
	r := route{closing: make(chan struct{}), moved: new(bell), budget: new(budget), throttle: new(throttle)}
	flood(r.throttle.guard(nil, new(place), leader.ask), startRequest())
	return r, leader
}

// What is withheld is a refusal like the leader's own.
func TestAStartThatIsWithheldIsBusyAtOnceWhenItIsNotToBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := throttled(t)
		begin, asked := time.Now(), leader.asked
		for range throttleSpare {
			_, err := r.persist(WithoutBusyRepeats(t.Context()), startRequest(), leader.ask)
			var busy *BusyError
			if !errors.As(err, &busy) || busy.RetryAfter < throttleAgainMin || busy.Bound != actors.BoundDelay {
				t.Errorf("ended with %#v", err)
			}
		}
		if passed := time.Since(begin); passed != 0 || leader.asked == asked+throttleSpare {
			t.Errorf("after %v, asked %d times", passed, leader.asked-asked)
		}
	})
}

// startMany has n starts made at once, and returns them in the order in which they ended.
func (r route) startMany(ctx context.Context, n int, ask asker) (ended []int, errs []error) {
	var mu sync.Mutex
	var calling sync.WaitGroup
	for i := range n {
		calling.Go(func() {
			_, err := r.persist(ctx, startRequest(), ask)
			mu.Lock()
			defer mu.Unlock()
			ended, errs = append(ended, i), append(errs, err)
		})
		synctest.Wait() // one after the other
	}
	calling.Wait()
	return ended, errs
}

func TestStartsThatAreToBeRepeatedWaitForTheirTurnTheNewestFirstWhenTheLineIsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const starts = 500
		r, leader := throttled(t)
		leader.takes = 20
		asked := leader.asked
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended, errs := r.startMany(ctx, starts, leader.ask)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if asked = leader.asked - asked; asked > starts*5/4 {
			t.Errorf("the leader was asked %d times for %d starts", asked, starts)
		}
		// Some are refused, and come to the line again.
		long, short := ended[:starts*3/10], ended[starts*9/10:]
		if most := slices.Sorted(slices.Values(long))[len(long)/10]; most < starts/2 {
			t.Errorf("while the line was long those were let through: %v", long)
		}
		if most := slices.Sorted(slices.Values(short))[len(short)/2]; most < starts/5 {
			t.Errorf("when it was short the last ones were: %v", short)
		}
		if waiting := r.throttle.waiting.Load(); waiting != 0 {
			t.Errorf("%d still wait", waiting)
		}
	})
}

func TestAStartThatCannotBeTakenInTimeIsBusyBeforeItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := throttled(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ended, errs := r.startMany(ctx, 300, leader.ask)
		for i, err := range errs {
			if !errors.Is(err, ErrBusy) {
				t.Fatalf("start %d has ended with %v", ended[i], err)
			}
		}
		if ctx.Err() != nil {
			t.Error("some ended with their time")
		}
	})
}

func TestStartsThatWaitEndWithTheNodeAndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := throttled(t)
		closing := make(chan struct{})
		r.closing = closing
		long, cancelLong := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLong()
		canceled, cancel := context.WithCancel(long)
		var calling sync.WaitGroup
		for range 100 {
			calling.Go(func() {
				if _, err := r.persist(canceled, startRequest(), leader.ask); !errors.Is(err, ErrBusy) {
					t.Errorf("without its context: %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		calling.Wait()
		for range 100 {
			calling.Go(func() {
				if _, err := r.persist(long, startRequest(), leader.ask); !errors.Is(err, ErrClosed) {
					t.Errorf("without the node: %v", err)
				}
			})
		}
		synctest.Wait()
		close(closing)
		calling.Wait()
		if waiting := r.throttle.waiting.Load(); waiting != 0 {
			t.Errorf("%d still wait", waiting)
		}
	})
}

// Twice as many come as are taken, for a minute, and could wait for longer than that.
func TestWhileMoreStartsComeThanAreTakenNoneWaitsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, starts = 5 * time.Millisecond, 12_000
		r, leader := throttled(t)
		leader.takes = int(throttleSlice / (2 * every))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var mu sync.Mutex
		var calling sync.WaitGroup
		taken, longest, most := 0, time.Duration(0), int64(0)
		begin := time.Now()
		for range starts {
			most = max(most, r.throttle.waiting.Load())
			calling.Go(func() {
				since := time.Now()
				_, err := r.persist(ctx, startRequest(), leader.ask)
				mu.Lock()
				defer mu.Unlock()
				longest = max(longest, time.Since(since))
				var busy *BusyError
				if err == nil {
					taken++
				} else if !errors.As(err, &busy) || busy.Bound != BoundLine || busy.RetryAfter != lineWait {
					t.Errorf("ended with %#v", err)
				}
			})
			time.Sleep(every)
		}
		could := int(time.Since(begin)/throttleSlice) * leader.takes
		calling.Wait()
		if taken < could*3/5 {
			t.Errorf("%d were taken, of %d that could be", taken, could)
		}
		// Some are let through, refused, and come to the line again.
		if longest > 3*lineWait || most > lineFree+int64((lineWait+lineWatch)/every) {
			t.Errorf("up to %d waited, for up to %v", most, longest)
		}
	})
}

// A few callers, each of whom makes one call after the other, get on alike.
func TestNobodyIsOvertakenAgainAndAgainWhileTheLineIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 50
		r, leader := throttled(t)
		leader.takes = 20
		ask := func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			time.Sleep(throttleTick * 2 / 3) // whoever comes again does so between two ticks
			return leader.ask(ctx, request)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var made [callers]int
		var calling sync.WaitGroup
		for caller := range made {
			calling.Go(func() {
				for lasts(ctx, 10*time.Second) {
					if _, err := r.persist(ctx, startRequest(), ask); err != nil {
						t.Error(err)
					}
					made[caller]++
				}
			})
		}
		calling.Wait()
		if least, most := slices.Min(made[:]), slices.Max(made[:]); least < most/3 {
			t.Errorf("one has made %d calls, another %d", least, most)
		}
	})
}

// Hardly more come than are taken, and most are let through at once: then those who wait
// have a prospect.
func TestNobodyIsSentAwayWhileHardlyMoreStartsComeThanAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, come, slices = 200, 205, 200
		now := time.Now()
		throttle := &throttle{limit: limit, filled: now, met: now.Add(time.Hour)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var passing sync.WaitGroup
		pass := func() {
			if refused := throttle.pass(ctx, nil); refused != nil {
				t.Error(refused)
			}
		}
		for range 2 * limit { // are left from before
			passing.Go(pass)
		}
		for range slices * come {
			time.Sleep(throttleSlice / come)
			passing.Go(pass)
		}
		passing.Wait()
	})
}

func TestAStartThatHasAPlaceDoesNotWaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := throttled(t)
		r.gate = newCallGate()
		asked, begin := 0, time.Now()
		_, err := r.persist(t.Context(), startRequest(), func(context.Context, *clusterpb.Request) *clusterpb.Response {
			if asked++; asked == 1 {
				begin = time.Now()
				return notLeader("not yet")
			}
			if passed := time.Since(begin); passed >= throttleTick {
				t.Errorf("asked again after %v", passed)
			}
			return new(clusterpb.Response)
		})
		if err != nil || asked != 2 || len(r.gate.places) != 0 {
			t.Errorf("asked %d times, then %v; %d places are held", asked, err, len(r.gate.places))
		}
	})
}

func TestNoMoreStartsWaitThanTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := throttled(t)
		for range lineMax {
			r.throttle.line.PushBack(&waiting{t.Context(), time.Now(), make(chan verdict, 1)})
		}
		for range throttleSpare { // whatever is let through at once
			r.throttle.pass(WithoutBusyRepeats(t.Context()), nil)
		}
		begin := time.Now()
		if refused := r.throttle.pass(t.Context(), nil); refused.GetFailure().GetCode() != codeBusy || time.Since(begin) != 0 {
			t.Errorf("answered %v after %v", refused, time.Since(begin))
		}
	})
}

func TestCallsThatAreNotToBeRepeatedFailAtTheFirstRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := refusing(busyForASecond)
		begin := time.Now()
		_, err := route{moved: new(bell), budget: new(budget)}.persist(WithoutBusyRepeats(t.Context()), new(clusterpb.Request), ask)
		if !errors.Is(err, ErrBusy) || time.Since(begin) != 0 || len(*asked) != 1 {
			t.Errorf("%v after %v, asked %d times", err, time.Since(begin), len(*asked))
		}
		ask, _ = refusing(&clusterpb.Failure{Code: codeNotLeader, NotExecuted: true})
		if _, err := (route{moved: new(bell), budget: new(budget)}).persist(WithoutBusyRepeats(t.Context()), new(clusterpb.Request), ask); err != nil {
			t.Errorf("without a leader: %v", err)
		}
	})
}

// A leader that takes all that comes stands still for a moment, and says of all that was
// under way that it is crowded, as it was.
func TestAMomentInWhichTheLeaderStandsStillIsSoonForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every, stands, again = time.Millisecond, time.Second, 1300 * time.Millisecond
		begin := time.Now()
		leader := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			came := time.Since(begin)
			crowded := came >= stands && came < again
			if crowded {
				time.Sleep(again - came + (came-stands)*2/3) // one after the other
			}
			return &clusterpb.Response{Result: &clusterpb.Response_Start{Start: &clusterpb.StartResult{Crowded: crowded}}}
		}
		r := route{closing: make(chan struct{}), moved: new(bell), budget: new(budget), throttle: new(throttle)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		var calling sync.WaitGroup
		last := time.Duration(0) // when one was begun that had to wait
		for range 4 * time.Second / every {
			calling.Go(func() {
				since := time.Now()
				if _, err := r.persist(ctx, startRequest(), leader); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if time.Since(since) > throttleTick {
					last = max(last, since.Sub(begin))
				}
			})
			time.Sleep(every)
		}
		calling.Wait()
		if last > again+15*throttleSlice {
			t.Errorf("starts had to wait until %v after it was well again", last-again)
		}
	})
}
