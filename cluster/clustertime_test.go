package cluster

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

var sleeper = replay.Orchestration[time.Duration, string]("sleeper")

func sleeperBody(ctx *replay.Context, d time.Duration) (string, error) {
	return "slept", ctx.Sleep(d)
}

// The wall clocks of all nodes but the first leader are wrong, then that one is too, and every node
// leads once.
func TestClusterTime_TimersNeverFireEarly(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{time.Hour + time.Minute, 26 * time.Hour, -time.Hour, -26 * time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			var steps [3]atomic.Int64
			peers := loopbackPeers(t, 3)
			var nodes []*Node
			for i := range peers {
				config := peerConfig(t, peers, i, append(definitions(), sleeper.Bind(sleeperBody))...)
				clock := func() time.Time { return time.Now().Add(time.Duration(steps[i].Load())) }
				nodes = append(nodes, startNodeIn(harness.NewContext(testContext(t), harness.Overrides{WallClock: clock}), t, config))
			}
			ctx := testContext(t)
			first := leaderOf(t, nodes)
			if _, err := StartRun(ctx, first.Client(), sleeper, "hour", time.Hour); err != nil {
				t.Fatal(err)
			}
			for i := range steps {
				steps[i].Store(int64(step))
			}
			expectAsleep(t, first, "during the same leadership")
			if err := first.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			var left []*Node
			for _, node := range nodes {
				if node != first {
					left = append(left, node)
				}
			}
			expectAsleep(t, leaderOf(t, left), "after a change of leader")
		})
	}
}

// expectAsleep checks that a timer of an hour has not fired after a shorter timer, set later, has.
func expectAsleep(t *testing.T, leader *Node, when string) {
	t.Helper()
	ctx := testContext(t)
	if _, err := Call(ctx, leader.Client(), sleeper, "moment-"+leader.ID(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	status, err := leader.Client().Get(ctx, "hour")
	if err != nil || status.State != Running {
		t.Errorf("%s: %+v, %v", when, status, err)
	}
	history, err := leader.Client().History(ctx, "moment-"+leader.ID())
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range history.Events {
		if offset := time.Since(event.Time).Abs(); offset > 2*testTimeout {
			t.Errorf("%s: event %d is recorded %v off", when, event.EventID, offset)
		}
	}
}
