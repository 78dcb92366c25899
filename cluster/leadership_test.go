package cluster

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

// Calls through the other nodes, and through a remote client, do not notice that the leader stops:
// none fails, and each is executed once.
func TestStop_LeaderHandoverIsInvisible(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, definitions()...)
	leader := leaderOf(t, nodes)
	others := nodesExcept(nodes, leader)
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
	if epoch := leaderOf(t, others).partitions[0].journal.Epoch(); epoch < 2 {
		t.Errorf("the epoch is %d", epoch)
	}
	if _, err := StartRun(ctx, leader.Client(), doubled, "late", 1); !errors.Is(err, ErrClosed) {
		t.Errorf("a call of the node that has stopped: %v", err)
	}
	expectSameHistories(t, others)
}

// The leader may change after its address was read and before the attempt is registered.
func TestCall_ToFormerLeaderEndsAtOnce(t *testing.T) {
	f := newTestCluster(t, 3)
	for _, n := range f.all() {
		g := n.partitions[0]
		// Another node may begin to lead at any time.
		eventually(t, n.ID()+" knows the leader, and its call to a former one ends", func() bool {
			ctx, end := g.leaderContext(t.Context(), "127.0.0.1:1")
			defer end()
			return ctx.Err() != nil
		})
		eventually(t, n.ID()+" keeps its call to the leader", func() bool {
			address := g.otherLeader()
			if address == "" {
				return n.IsLeader()
			}
			ctx, end := g.leaderContext(t.Context(), address)
			defer end()
			return ctx.Err() == nil
		})
	}
}
