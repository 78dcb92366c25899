package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A refuser is a leader that takes some starts in each slice of time, and counts.
type refuser struct {
	takes          int
	bound          actors.Bound
	asked, refused int

	began time.Time
	taken int // since then
}

func (r *refuser) ask(context.Context, *clusterpb.Request) *clusterpb.Response {
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

// flood makes ten thousand calls, one a millisecond, and returns how many were taken.
func flood(ask asker, request *clusterpb.Request) (taken int) {
	for range floodCalls {
		if ask(context.Background(), request).GetFailure() == nil {
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
				taken := flood(throttle.guard(leader.ask), startRequest())
				// The first slice is not bounded by anything but the first refusal.
				if refusedMax := floodSlices*(takes/4+throttleSpare) + takes; leader.refused > refusedMax || leader.refused == 0 {
					t.Errorf("%d were brought there and refused, of at most %d", leader.refused, refusedMax)
				}
				if could := floodSlices * takes; taken < could*9/10 {
					t.Errorf("%d were taken, of %d that could be", taken, could)
				}
				if withheld := int(throttle.withheld.Load()); withheld+leader.asked != floodCalls {
					t.Errorf("%d withheld, %d asked", withheld, leader.asked)
				}
			})
		})
	}
}

func TestALeaderThatTakesStartsAgainIsFoundOutSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, leader := new(throttle), &refuser{bound: actors.BoundWindow}
		ask := throttle.guard(leader.ask)
		flood(ask, startRequest())
		leader.takes = 1000
		if taken := flood(ask, startRequest()); taken < floodCalls-int(throttleMemory/time.Millisecond) {
			t.Errorf("%d of %d taken", taken, floodCalls)
		}
	})
}

func TestOnlyStartsAreWithheldAndNotForTheSakeOfOneInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot := &refuser{bound: actors.BoundInstance}
		flood(new(throttle).guard(hot.ask), startRequest())
		if hot.asked != floodCalls {
			t.Errorf("%d of %d starts were asked for", hot.asked, floodCalls)
		}
		throttle, full := new(throttle), new(refuser)
		flood(throttle.guard(full.ask), startRequest())
		if full.asked == floodCalls {
			t.Error("what a leader of an earlier version refuses is not withheld")
		}
		before := full.asked
		flood(throttle.guard(full.ask), &clusterpb.Request{Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}})
		if asked := full.asked - before; asked != floodCalls {
			t.Errorf("%d of %d events were asked for", asked, floodCalls)
		}
	})
}

// What is withheld is a refusal like the leader's own.
func TestAStartThatIsWithheldIsBusyAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttle, leader := new(throttle), &refuser{bound: actors.BoundDelay}
		ask := throttle.guard(leader.ask)
		flood(ask, startRequest())
		for range throttleSpare {
			ask(t.Context(), startRequest())
		}
		_, err := route{moved: new(bell), budget: new(budget)}.persist(WithoutBusyRepeats(t.Context()), startRequest(), ask)
		var busy *BusyError
		if !errors.As(err, &busy) || busy.RetryAfter != 100*time.Millisecond || busy.Bound != actors.BoundDelay {
			t.Errorf("ended with %#v", err)
		}
		leader.takes = 1000
		if _, err := (route{moved: new(bell), budget: new(budget)}).persist(t.Context(), startRequest(), ask); err != nil {
			t.Error(err)
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
