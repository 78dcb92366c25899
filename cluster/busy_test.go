package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

func TestBusyCrossesTheWire(t *testing.T) {
	for _, err := range []error{
		&actors.BusyError{RetryAfter: time.Second, Bound: actors.BoundWindow, Reason: "too much"},
		fmt.Errorf("append: %w", journal.ErrBusy),
	} {
		wire := failure(err)
		if !wire.NotExecuted {
			t.Errorf("%v: does not say that nothing was done", err)
		}
		var busy *BusyError
		if got := failed(wire); !errors.As(got, &busy) || !errors.Is(got, ErrBusy) || busy.RetryAfter <= 0 || busy.Reason == "" || busy.Bound == "" {
			t.Errorf("%v has become %v", err, got)
		}
	}
}

// refusing answers the first calls with what it is given, and the others well.
func refusing(refusals ...*clusterpb.Failure) (ask asker, asked *[]time.Time) {
	asked = new([]time.Time)
	return func(context.Context, *clusterpb.Request) *clusterpb.Response {
		*asked = append(*asked, time.Now())
		if len(refusals) == 0 {
			return new(clusterpb.Response)
		}
		next := refusals[0]
		refusals = refusals[1:]
		return &clusterpb.Response{Failure: next}
	}, asked
}

var busyForASecond = &clusterpb.Failure{Code: codeBusy, NotExecuted: true, RetryAfter: int64(time.Second)}

func TestBusyLeaderIsAskedAgainWhenItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := refusing(busyForASecond, busyForASecond)
		if _, err := (route{moved: new(bell), budget: new(budget)}).persist(t.Context(), new(clusterpb.Request), ask); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if pause := (*asked)[i+1].Sub((*asked)[i]); pause < time.Second/2 || pause > 3*time.Second/2 {
				t.Errorf("asked again after %v", pause)
			}
		}
	})
}

// Of many calls a tenth is repeated as soon as the leader says; the others wait
// longer each time, and get through as well.
func TestPromptRepetitionsHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spare, prompt := new(budget), 0
		for range 1000 {
			ask, asked := refusing(busyForASecond, busyForASecond, busyForASecond)
			if _, err := (route{moved: new(bell), budget: spare}).persist(t.Context(), new(clusterpb.Request), ask); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				switch pause := (*asked)[i+1].Sub((*asked)[i]); {
				case pause < time.Second/2 || pause > busyPauseLongest*3/2:
					t.Fatalf("asked again after %v", pause)
				case pause < busyPauseLongest/2:
					prompt++
				}
			}
		}
		if prompt > 111 {
			t.Errorf("%d of 1000 calls were repeated promptly", prompt)
		}
	})
}

// A call gives up when its time is over, and not before.
func TestBusyLeaderIsAskedUntilTheCallsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exhausted := &budget{spent: busyRepeatsMax}
		always := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			return &clusterpb.Response{Failure: busyForASecond}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := route{moved: new(bell), budget: exhausted}.persist(ctx, new(clusterpb.Request), always)
		if passed := time.Since(begin); !errors.Is(err, ErrBusy) || passed < time.Minute-2*busyPauseLongest || passed > time.Minute {
			t.Errorf("%v after %v", err, passed)
		}
	})
}

func TestBusyLeaderIsNotWaitedForLongerThanTheCallLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		ask, _ := refusing(busyForASecond)
		_, err := route{moved: new(bell), budget: new(budget)}.persist(ctx, new(clusterpb.Request), ask)
		if !errors.Is(err, ErrBusy) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// An attempt before may have been executed, so a refusal of this one is not the
// answer.
func TestBusyAfterAnUnknownOutcomeDoesNotSayThatNothingWasDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask, _ := refusing(&clusterpb.Failure{Code: codeUnknown}, busyForASecond)
		_, err := route{moved: new(bell), budget: new(budget)}.persist(ctx, new(clusterpb.Request), ask)
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.NotExecuted {
			t.Errorf("ended with %#v", err)
		}
	})
}
