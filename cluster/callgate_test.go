package cluster

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// fillGate returns a gate all of whose places are taken by calls that wait until
// answered is closed.
func fillGate(t *testing.T) (ask asker, answered chan struct{}) {
	t.Helper()
	answered = make(chan struct{})
	var calling sync.WaitGroup
	t.Cleanup(calling.Wait)
	gate := newCallGate()
	ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		place := place{gate: gate}
		defer place.leave()
		return place.guard(func(context.Context, *clusterpb.Request) *clusterpb.Response {
			<-answered
			return new(clusterpb.Response)
		})(ctx, request)
	}
	for range callsMax {
		calling.Go(func() { ask(context.Background(), new(clusterpb.Request)) })
	}
	synctest.Wait()
	return ask, answered
}

func TestACallThatFindsNoPlaceIsRefusedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillGate(t)
		for _, c := range []struct {
			ctx  context.Context
			wait time.Duration
		}{
			{t.Context(), placeWait},
			{WithoutBusyRepeats(t.Context()), placeWaitBrief},
		} {
			begin := time.Now()
			failure := ask(c.ctx, new(clusterpb.Request)).GetFailure()
			var busy *BusyError
			if err := failed(failure); !errors.As(err, &busy) || busy.Bound != BoundCalls || busy.RetryAfter <= 0 || !failure.NotExecuted {
				t.Errorf("refused with %v", failure)
			}
			if passed := time.Since(begin); passed != c.wait {
				t.Errorf("refused after %v", passed)
			}
		}
		close(answered)
	})
}

func TestACallGetsThePlaceOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillGate(t)
		begin := time.Now()
		time.AfterFunc(placeWait/2, func() { close(answered) })
		if failure := ask(t.Context(), new(clusterpb.Request)).GetFailure(); failure != nil || time.Since(begin) != placeWait/2 {
			t.Errorf("%v after %v", failure, time.Since(begin))
		}
	})
}

func TestACallLeavesTheGateWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask, answered := fillGate(t)
		ctx, cancel := context.WithTimeout(t.Context(), placeWait/2)
		defer cancel()
		begin := time.Now()
		if failure := ask(ctx, new(clusterpb.Request)).GetFailure(); !failure.GetNotExecuted() || time.Since(begin) != placeWait/2 {
			t.Errorf("%v after %v", failure, time.Since(begin))
		}
		close(answered)
	})
}

// While there is no leader, only those who have a place look for one; whoever waits
// because the leader is busy leaves his to others.
func TestAPlaceIsKeptWithoutALeaderAndLeftToABusyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		gate, leader := callGate{make(chan struct{}, 1)}, new(clusterpb.Response)
		calls := route{moved: new(bell), budget: new(budget), gate: gate}
		answers := []*clusterpb.Response{notLeader("none"), notLeader("none"), {Failure: busyForASecond}, leader}
		var calling sync.WaitGroup
		calling.Go(func() {
			_, err := calls.persist(t.Context(), new(clusterpb.Request), func(context.Context, *clusterpb.Request) *clusterpb.Response {
				if len(gate.places) != 1 {
					t.Error("it asks without a place")
				}
				return answers[asked.Add(1)-1]
			})
			if err != nil {
				t.Error(err)
			}
		})
		for _, free := range []bool{false, false, true} { // in the pause after each answer
			synctest.Wait()
			if is := len(gate.places) == 0; is != free {
				t.Errorf("after %d answers the place is free: %v", asked.Load(), is)
			}
			for before := asked.Load(); asked.Load() == before; synctest.Wait() {
				time.Sleep(time.Millisecond)
			}
		}
		calling.Wait()
		if len(gate.places) != 0 {
			t.Error("the place was not left")
		}
	})
}
