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

func TestBusyError_RoundTripsWire(t *testing.T) {
	for _, err := range []error{
		&actors.BusyError{RetryAfter: time.Second, Bound: actors.BoundInFlight, Reason: "too much"},
		fmt.Errorf("append: %w", journal.ErrBusy),
	} {
		wire := toFailure(err)
		if !wire.NotExecuted {
			t.Errorf("%v: does not say that nothing was done", err)
		}
		var busy *BusyError
		if got := fromFailure(wire); !errors.As(got, &busy) || !errors.Is(got, ErrBusy) || busy.RetryAfter <= 0 || busy.Reason == "" || busy.Bound == "" {
			t.Errorf("%v has become %v", err, got)
		}
	}
}

// newRejectingLeader returns an asker that answers the first calls with refusals, and the others
// successfully.
func newRejectingLeader(refusals ...*clusterpb.Failure) (ask asker, asked *[]time.Time) {
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

var busyOneSecond = &clusterpb.Failure{Code: codeBusy, NotExecuted: true, RetryAfter: int64(time.Second)}

func TestBusyRetry_HonorsRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := newRejectingLeader(busyOneSecond, busyOneSecond)
		if _, err := (callRetrier{leaderNotifier: new(notifier), retryBudget: new(retryBudget)}).do(t.Context(), new(clusterpb.Request), ask); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if delay := (*asked)[i+1].Sub((*asked)[i]); delay < time.Second/2 || delay > 3*time.Second/2 {
				t.Errorf("asked again after %v", delay)
			}
		}
	})
}

// A tenth of many calls is retried as soon as the leader says; the others back off longer each
// time, and succeed as well.
func TestBusyRetry_PromptRetriesHaveBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spare, prompt := new(retryBudget), 0
		for range 1000 {
			ask, asked := newRejectingLeader(busyOneSecond, busyOneSecond, busyOneSecond)
			if _, err := (callRetrier{leaderNotifier: new(notifier), retryBudget: spare}).do(t.Context(), new(clusterpb.Request), ask); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				switch delay := (*asked)[i+1].Sub((*asked)[i]); {
				case delay < time.Second/2 || delay > busyBackoffMax*3/2:
					t.Fatalf("asked again after %v", delay)
				case delay < busyBackoffMax/2:
					prompt++
				}
			}
		}
		if prompt > 111 {
			t.Errorf("%d of 1000 calls were repeated promptly", prompt)
		}
	})
}

// A call returns when its deadline ends, and not before.
func TestBusyRetry_RetriesUntilDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exhausted := &retryBudget{spent: busyRetriesMax}
		always := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			return &clusterpb.Response{Failure: busyOneSecond}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := callRetrier{leaderNotifier: new(notifier), retryBudget: exhausted}.do(ctx, new(clusterpb.Request), always)
		if elapsed := time.Since(begin); !errors.Is(err, ErrBusy) || elapsed < time.Minute-2*busyBackoffMax || elapsed > time.Minute {
			t.Errorf("%v after %v", err, elapsed)
		}
	})
}

func TestBusyRetry_DoesNotWaitPastDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		ask, _ := newRejectingLeader(busyOneSecond)
		_, err := callRetrier{leaderNotifier: new(notifier), retryBudget: new(retryBudget)}.do(ctx, new(clusterpb.Request), ask)
		if !errors.Is(err, ErrBusy) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// An earlier attempt may have been executed, so a refusal of this one is not the outcome.
func TestBusyRetry_KeepsUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask, _ := newRejectingLeader(&clusterpb.Failure{Code: codeUnknown}, busyOneSecond)
		_, err := callRetrier{leaderNotifier: new(notifier), retryBudget: new(retryBudget)}.do(ctx, new(clusterpb.Request), ask)
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.NotExecuted {
			t.Errorf("ended with %#v", err)
		}
	})
}
