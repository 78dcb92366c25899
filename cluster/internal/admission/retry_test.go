package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// newRejectingLeader returns an Asker that answers the first calls with rejections, and the others
// successfully.
func newRejectingLeader(rejections ...*clusterpb.Failure) (ask Asker, asked *[]time.Time) {
	asked = new([]time.Time)
	return func(context.Context, *clusterpb.Request) *clusterpb.Response {
		*asked = append(*asked, time.Now())
		if len(rejections) == 0 {
			return new(clusterpb.Response)
		}
		next := rejections[0]
		rejections = rejections[1:]
		return &clusterpb.Response{Failure: next}
	}, asked
}

var busyOneSecond = &clusterpb.Failure{Code: wire.CodeBusy, NotExecuted: true, RetryAfter: int64(time.Second)}

func TestBusyRetry_HonorsRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, asked := newRejectingLeader(busyOneSecond, busyOneSecond)
		if _, err := (Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget)}).Do(t.Context(), new(clusterpb.Request), ask); err != nil {
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
		spare, prompt := new(RetryBudget), 0
		for range 1000 {
			ask, asked := newRejectingLeader(busyOneSecond, busyOneSecond, busyOneSecond)
			if _, err := (Retrier{LeaderNotifier: new(Notifier), RetryBudget: spare}).Do(t.Context(), new(clusterpb.Request), ask); err != nil {
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
		exhausted := &RetryBudget{spent: busyRetriesMax}
		always := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			return &clusterpb.Response{Failure: busyOneSecond}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := Retrier{LeaderNotifier: new(Notifier), RetryBudget: exhausted}.Do(ctx, new(clusterpb.Request), always)
		if elapsed := time.Since(begin); !errors.Is(err, actors.ErrBusy) || elapsed < time.Minute-2*busyBackoffMax || elapsed > time.Minute {
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
		_, err := Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget)}.Do(ctx, new(clusterpb.Request), ask)
		if !errors.Is(err, actors.ErrBusy) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// An earlier attempt may have been executed, so a rejection of this one is not the outcome.
func TestBusyRetry_KeepsUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask, _ := newRejectingLeader(&clusterpb.Failure{Code: wire.CodeUnknown}, busyOneSecond)
		_, err := Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget)}.Do(ctx, new(clusterpb.Request), ask)
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.NotExecuted {
			t.Errorf("ended with %#v", err)
		}
	})
}

// A rejected call is retried as soon as another node leads, regardless of its backoff.
func TestCallRetry_LeaderChangeEndsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leads := new(Notifier)
		var asked atomic.Int64
		ask := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			if asked.Add(1) > 10 { // by then pauses are long
				return new(clusterpb.Response)
			}
			return wire.NotLeader("no")
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := (Retrier{LeaderNotifier: leads, RetryBudget: new(RetryBudget)}).Do(t.Context(), new(clusterpb.Request), ask); err != nil {
				t.Error(err)
			}
		})
		for synctest.Wait(); asked.Load() < 10; synctest.Wait() {
			time.Sleep(time.Millisecond)
		}
		begin := time.Now()
		leads.Notify()
		waiting.Wait()
		if elapsed := time.Since(begin); elapsed != 0 {
			t.Errorf("tried again after %v", elapsed)
		}
	})
}

func TestNotifier_WakesOnlyCurrentWaiters(t *testing.T) {
	b := new(Notifier)
	first, again := b.Next(), b.Next()
	b.Notify()
	b.Notify()
	for _, notified := range []<-chan struct{}{first, again} {
		select {
		case <-notified:
		default:
			t.Error("was not woken")
		}
	}
	select {
	case <-b.Next():
		t.Error("woken by an earlier notify")
	default:
	}
}
