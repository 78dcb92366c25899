package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A call that was refused is tried again when another node leads, however long it
// would have waited.
func TestAChangeOfTheLeaderEndsAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leads := new(bell)
		var asked atomic.Int64
		ask := func(context.Context, *clusterpb.Request) *clusterpb.Response {
			if asked.Add(1) > 10 { // by then pauses are long
				return new(clusterpb.Response)
			}
			return notLeader("no")
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := (route{moved: leads, budget: new(budget)}).persist(t.Context(), new(clusterpb.Request), ask); err != nil {
				t.Error(err)
			}
		})
		for synctest.Wait(); asked.Load() < 10; synctest.Wait() {
			time.Sleep(time.Millisecond)
		}
		begin := time.Now()
		leads.ring()
		waiting.Wait()
		if passed := time.Since(begin); passed != 0 {
			t.Errorf("tried again after %v", passed)
		}
	})
}

func TestABellWakesAllWhoWaitAndNobodyLater(t *testing.T) {
	b := new(bell)
	first, again := b.next(), b.next()
	b.ring()
	b.ring()
	for _, rung := range []<-chan struct{}{first, again} {
		select {
		case <-rung:
		default:
			t.Error("was not woken")
		}
	}
	select {
	case <-b.next():
		t.Error("woken by a ring of before")
	default:
	}
}

// Calls through the nodes that stay, and through a client elsewhere, do not notice
// that the leader stops: none fails, and each is carried out once.
func TestNobodyNoticesThatTheLeaderStops(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeersWith(t, 3, definitions()...)
	leader := leaderOf(t, nodes)
	others := othersThan(nodes, leader)
	callers := []*Client{others[0].Client(), others[1].Client(), dialNodes(t, DialConfig{}, nodes...)}
	ctx := testContext(t)
	var stopped atomic.Bool
	var calling sync.WaitGroup
	var after atomic.Int64
	for c, client := range callers {
		for i := range 2 {
			calling.Go(func() {
				for n := 0; n < 5 || after.Load() < 100; n++ {
					id := fmt.Sprintf("c-%d-%d-%d", c, i, n)
					if _, err := StartRun(ctx, client, doubled, id, 21); err != nil {
						t.Errorf("start %s: %v", id, err)
						return
					}
					if stopped.Load() {
						after.Add(1)
					}
				}
			})
		}
	}
	if err := leader.Stop(ctx); err != nil {
		t.Error(err)
	}
	stopped.Store(true)
	calling.Wait()
	if epoch := leaderOf(t, others).groups[0].journal.Epoch(); epoch < 2 {
		t.Errorf("the epoch is %d", epoch)
	}
	if _, err := StartRun(ctx, leader.Client(), doubled, "late", 1); !errors.Is(err, ErrClosed) {
		t.Errorf("a call of the node that has stopped: %v", err)
	}
	sameHistories(t, others)
}

// The leader may change between the moment at which its address is read and that at which
// the attempt is noted.
func TestAnAttemptAtANodeThatDoesNotLeadEndsAtOnce(t *testing.T) {
	f := newFleet(t, 3)
	leader := f.leader()
	for _, n := range f.all() {
		g := n.groups[0]
		eventually(t, "the leader is known", func() bool { return n.Leader() == leader.ID() })
		ctx, end := g.toLeader(t.Context(), "127.0.0.1:1")
		if ctx.Err() == nil {
			t.Errorf("%s: an attempt at nobody goes on", n.ID())
		}
		end()
		if address := g.otherLeader(); address != "" {
			ctx, end := g.toLeader(t.Context(), address)
			if ctx.Err() != nil {
				t.Errorf("%s: an attempt at the leader: %v", n.ID(), ctx.Err())
			}
			end()
		}
	}
}
