package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The slots of the placementCluster. The standby has twice as many as the others.
const (
	placementSlots        = 8
	placementSlotsStandby = 2 * placementSlots
)

// A placed counts the activities that run at once, by who runs them, and those that wait for a
// slot.
type placed struct{ leader, voter, standby, worker, waiting int }

func (p placed) running() int { return p.leader + p.voter + p.standby + p.worker }

// A placementCluster has the voters n1 and n2, the standby n3, and a worker that is no node.
type placementCluster struct {
	*testCluster
	recorder atomic.Pointer[attemptRecorder] // of the attempts that begin from now on
	rounds   int
}

func newPlacementCluster(t *testing.T, leaderExempt bool) *placementCluster {
	t.Helper()
	p := new(placementCluster)
	definitions := func(node string) []replay.Definition {
		return workerDefinitions(func(ctx context.Context) (string, error) { return p.recorder.Load().run(ctx, node) })
	}
	p.testCluster = newTestClusterWith(t, 3, func(config *Config) {
		config.Partitions, config.LeaderExempt, config.ActivitiesMax = 1, leaderExempt, placementSlots
		if config.NodeID == "n3" {
			config.ActivitiesMax = placementSlotsStandby
		}
		config.Definitions, config.maintenanceInterval = definitions(config.NodeID), 50*time.Millisecond
		config.harness.HeartbeatTimeout = time.Second
	})
	eventually(t, "the role of n3 is set", func() bool { return p.setRole("n3", journalpb.MemberRole_PIN_STANDBY) == nil })
	p.awaitShown("n3", "standby", "standby", "")
	p.awaitShown("n1", "voter", "", "")
	p.awaitShown("n2", "voter", "", "")
	dialNodes(t, DialConfig{Definitions: definitions("worker"), ActivitiesMax: placementSlots, DrainTimeout: -1}, p.all()...)
	awaitWorkers(t, p.anyNode().Client(), 1)
	return p
}

// place runs so many activities at once that some wait, and returns where they are when the others
// have begun.
func (p *placementCluster) place(want placed) (got placed) {
	p.t.Helper()
	p.rounds++
	w := newAttemptRecorder()
	p.recorder.Store(w)
	run, err := StartRun(testContext(p.t), p.anyNode().Client(), manyActivities, fmt.Sprint("round-", p.rounds), want.running()+want.waiting)
	if err != nil {
		p.t.Fatal(err)
	}
	var leader *Node
	var stats actors.Stats
	eventually(p.t, fmt.Sprintf("%d activities run", want.running()), func() bool {
		leader = p.leader()
		stats = leader.system.Stats(leader.partitions[0].actorPartition.Load())
		return w.total() >= want.running() && stats.ActivitiesOpen == want.running()+want.waiting
	})
	voter := "n1"
	if leader.ID() == voter {
		voter = "n2"
	}
	got = placed{w.countOn(leader.ID()), w.countOn(voter), w.countOn("n3"), w.countOn("worker"), stats.ActivitiesWaiting}
	close(w.release)
	if _, err := run.Wait(testContext(p.t)); err != nil {
		p.t.Fatal(err)
	}
	return got
}

// awaitPlaced runs activities until they are placed as wanted. Workers tell the leader of free
// slots when they connect and after each attempt, so not every round finds all slots free.
func (p *placementCluster) awaitPlaced(want placed) {
	p.t.Helper()
	var got placed
	p.t.Cleanup(func() {
		if got != want {
			p.t.Logf("placed %+v, want %+v", got, want)
		}
	})
	eventually(p.t, fmt.Sprintf("placed %+v", want), func() bool {
		got = p.place(want)
		return got == want
	})
}

// Attempts begin on voters, standbys and workers, in the order that the settings prefer, and then
// where the smallest share of the slots is in use. When all slots are, the others wait. Changed
// settings apply to the next attempts.
func TestPlacement_OverVotersStandbysAndWorkers(t *testing.T) {
	t.Parallel()
	type rounds map[string][]placed // by Settings.ActivityPlacement
	for exempt, of := range map[bool]rounds{
		false: {
			"leader first": {
				{leader: 8},
				{leader: 8, voter: 2, standby: 4, worker: 2},
				{leader: 8, voter: 8, standby: 16, worker: 8, waiting: 2},
			},
			"spread": {
				{leader: 1}, // an eighth of its slots
				{leader: 4, voter: 4, standby: 8, worker: 4},
				{leader: 8, voter: 8, standby: 16, worker: 8, waiting: 2},
			},
			"workers first": {
				{worker: 8},
				{leader: 2, voter: 2, standby: 4, worker: 8},
				{leader: 8, voter: 8, standby: 16, worker: 8, waiting: 2},
			},
		},
		true: {
			"leader first": {
				{voter: 4, standby: 8, worker: 4},
				{voter: 8, standby: 16, worker: 8, waiting: 2},
			},
			"spread": {
				{voter: 4, standby: 8, worker: 4},
				{voter: 8, standby: 16, worker: 8, waiting: 2},
			},
			"workers first": {
				{worker: 8},
				{voter: 2, standby: 4, worker: 8},
				{voter: 8, standby: 16, worker: 8, waiting: 2},
			},
		},
	} {
		t.Run(fmt.Sprint("leader exempt ", exempt), func(t *testing.T) {
			t.Parallel()
			p := newPlacementCluster(t, exempt)
			for placement, all := range of {
				if _, err := p.anyNode().Client().ChangeSettings(testContext(t), func(s *Settings) { s.ActivityPlacement = placement }); err != nil {
					t.Fatal(err)
				}
				for _, want := range all {
					p.awaitPlaced(want)
				}
			}
		})
	}
}
