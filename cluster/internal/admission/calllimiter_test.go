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

// fillCallLimiter returns an Asker with a call limiter whose slots are all held by calls that wait
// until answered is closed.
func fillCallLimiter(t *testing.T) (ask Asker, answered chan struct{}) {
	t.Helper()
	answered = make(chan struct{})
	var calling sync.WaitGroup
	t.Cleanup(calling.Wait)
	limiter := NewCallLimiter()
	ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		slot := callSlot{limiter: limiter}
		defer slot.release()
		return slot.withSlot(func(context.Context, *clusterpb.Request) *clusterpb.Response {
			<-answered
			return new(clusterpb.Response)
		})(ctx, request)
	}
	for range callsInFlightMax {
		calling.Go(func() { ask(context.Background(), new(clusterpb.Request)) })
	}
	synctest.Wait()
	return ask, answered
}

func TestCallLimiter_RejectsAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillCallLimiter(t)
		for _, c := range []struct {
			ctx  context.Context
			wait time.Duration
		}{
			{t.Context(), slotWait},
			{WithoutBusyRetries(t.Context()), slotWaitWithoutRetries},
		} {
			begin := time.Now()
			failure := ask(c.ctx, new(clusterpb.Request)).GetFailure()
			var busy *actors.BusyError
			if err := error(&FailureError{failure}); !errors.As(err, &busy) || busy.Bound != BoundCalls || busy.RetryAfter <= 0 || !failure.NotExecuted {
				t.Errorf("rejected with %v", failure)
			}
			if elapsed := time.Since(begin); elapsed != c.wait {
				t.Errorf("rejected after %v", elapsed)
			}
		}
		close(answered)
	})
}

func TestCallLimiter_ReusesReleasedSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillCallLimiter(t)
		begin := time.Now()
		time.AfterFunc(slotWait/2, func() { close(answered) })
		if failure := ask(t.Context(), new(clusterpb.Request)).GetFailure(); failure != nil || time.Since(begin) != slotWait/2 {
			t.Errorf("%v after %v", failure, time.Since(begin))
		}
	})
}

func TestCallLimiter_WaiterEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillCallLimiter(t)
		ctx, cancel := context.WithTimeout(t.Context(), slotWait/2)
		defer cancel()
		begin := time.Now()
		if failure := ask(ctx, new(clusterpb.Request)).GetFailure(); !failure.GetNotExecuted() || time.Since(begin) != slotWait/2 {
			t.Errorf("%v after %v", failure, time.Since(begin))
		}
		close(answered)
	})
}

// While there is no leader, a call keeps its slot; while the leader is busy, a call releases its
// slot.
func TestCallLimiter_KeepsSlotOnlyWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		limiter, leader := CallLimiter{make(chan struct{}, 1)}, new(clusterpb.Response)
		calls := Retrier{LeaderNotifier: new(Notifier), RetryBudget: new(RetryBudget), CallLimiter: limiter}
		answers := []*clusterpb.Response{wire.NotLeader("none"), wire.NotLeader("none"), {Failure: busyOneSecond}, leader}
		var calling sync.WaitGroup
		calling.Go(func() {
			_, err := calls.Do(t.Context(), new(clusterpb.Request), func(context.Context, *clusterpb.Request) *clusterpb.Response {
				if len(limiter.slots) != 1 {
					t.Error("it asks without a slot")
				}
				return answers[asked.Add(1)-1]
			})
			if err != nil {
				t.Error(err)
			}
		})
		for _, free := range []bool{false, false, true} { // in the pause after each answer
			synctest.Wait()
			if is := len(limiter.slots) == 0; is != free {
				t.Errorf("after %d answers the slot is free: %v", asked.Load(), is)
			}
			for before := asked.Load(); asked.Load() == before; synctest.Wait() {
				time.Sleep(time.Millisecond)
			}
		}
		calling.Wait()
		if len(limiter.slots) != 0 {
			t.Error("the slot was not released")
		}
	})
}
