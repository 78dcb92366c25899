package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/comparison"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// startCompared starts nodes that compare their replicas only when asked to, with some ended and
// some waiting instances, one partition, and a log each.
func startCompared(t *testing.T, count int) (nodes []*Node, logs []*logRecorder) {
	t.Helper()
	return startComparedWith(t, count, harness.Overrides{})
}

func startComparedWith(t *testing.T, count int, overrides harness.Overrides) (nodes []*Node, logs []*logRecorder) {
	t.Helper()
	peers := loopbackPeers(t, count)
	overrides.CompareInterval = 1000 * time.Hour
	// A comparison ends with its leadership, which a node loses on few processors.
	overrides.HeartbeatTimeout = cmp.Or(overrides.HeartbeatTimeout, time.Second)
	ctx, cancel := context.WithCancel(harness.NewContext(context.Background(), overrides))
	t.Cleanup(cancel)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		log := new(logRecorder)
		config.Partitions, config.Logger = 1, log.logger()
		if count == 1 {
			config.Listen, config.Peers = "", nil
		}
		nodes, logs = append(nodes, startNodeIn(ctx, t, config)), append(logs, log)
	}
	for i := range 5 {
		if _, err := Call(testContext(t), nodes[0].Client(), fiveActivities, fmt.Sprint("ended", i), i); err != nil {
			t.Fatal(err)
		}
		if _, err := StartRun(testContext(t), nodes[0].Client(), waiter, fmt.Sprint("waits", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the cluster speaks the newest protocol", func() bool { return nodes[0].partitions[0].journal.Protocol() == protocolVersion })
	return nodes, logs
}

// alter changes an instance on one node as if that node had applied another record.
func alter(t *testing.T, nodes []*Node, victim *Node, id string, change func(*journalpb.InstanceSnapshot)) {
	t.Helper()
	eventually(t, "the replica is altered", func() bool { return tryAlter(t, nodes, victim, id, change) })
}

func tryAlter(t *testing.T, nodes []*Node, victim *Node, id string, change func(*journalpb.InstanceSnapshot)) bool {
	t.Helper()
	ctx, own := testContext(t), victim.partitions[0].journal
	number, _ := own.Comparison()
	pending, err := own.PrepareView(ctx, number+1, true)
	if err != nil {
		return false
	}
	defer pending.Close()
	recorded := make(chan error, 1)
	go func() { recorded <- leaderOf(t, nodes).partitions[0].journal.RecordComparison(ctx, number+1, "") }()
	defer func() { <-recorded }()
	defer pending.Resume()
	view, err := pending.Wait(ctx)
	if err != nil {
		return false
	}
	encoded, err := view.Export(id)
	if err != nil || encoded == nil {
		t.Fatal(encoded, err)
	}
	var instance journalpb.InstanceSnapshot
	if err := proto.Unmarshal(encoded, &instance); err != nil {
		t.Fatal(err)
	}
	change(&instance)
	if encoded, err = proto.Marshal(&instance); err != nil {
		t.Fatal(err)
	}
	return pending.ReplaceInstance(id, encoded) == nil
}

// alterUntilFound alters an event of instances on one node until a round says so. A round of a new
// leader may have found and repaired it before.
func alterUntilFound(t *testing.T, nodes []*Node, victim *Node, event uint64, ids ...string) (status *clusterpb.VerifyStatus) {
	t.Helper()
	eventually(t, "a round finds it", func() bool {
		for _, id := range ids {
			alter(t, nodes, victim, id, changeEvent(t, event))
		}
		status = verify(t, nodes[0].Client())
		return len(status.Differences) > 0
	})
	return status
}

// changeEvent changes the time of an event of the first execution.
func changeEvent(t *testing.T, id uint64) func(*journalpb.InstanceSnapshot) {
	return func(instance *journalpb.InstanceSnapshot) {
		var event journalpb.Event
		events := instance.Executions[0].Events
		if err := proto.Unmarshal(events[id-1], &event); err != nil {
			t.Fatal(err)
		}
		event.Timestamp += 12345
		encoded, err := proto.Marshal(&event)
		if err != nil {
			t.Fatal(err)
		}
		events[id-1] = encoded
	}
}

// verify compares all instances, and returns the differences.
func verify(t *testing.T, client *Client) *clusterpb.VerifyStatus {
	t.Helper()
	internals := internalsOf(t, client)
	var status *clusterpb.VerifyStatus
	round := uint64(0)
	eventually(t, "the round ends", func() bool {
		response, err := internals.Call(testContext(t), &clusterpb.Request{Partition: 1, Call: &clusterpb.Request_Verify{Verify: &clusterpb.VerifyRequest{Round: round}}})
		if err != nil {
			t.Fatal(err)
		}
		status = response.GetVerify()
		round = status.Round
		return status.Done
	})
	return status
}

func expectSound(t *testing.T, nodes []*Node) {
	t.Helper()
	eventually(t, "no replica is quarantined", func() bool {
		for _, node := range nodes {
			if len(node.partitions[0].journal.Quarantines()) > 0 {
				return false
			}
		}
		return true
	})
	eventually(t, "all replicas take part and agree", func() bool {
		status := verify(t, nodes[0].Client())
		if len(status.Differences) > 0 {
			t.Fatalf("differences: %v", status.Differences)
		}
		return int(status.Replicas+status.Standbys) == len(nodes)
	})
	expectSameHistories(t, nodes)
}

// Replicas that agree are said to agree, with everything counted.
func TestVerify_EqualReplicas(t *testing.T) {
	t.Parallel()
	nodes, _ := startCompared(t, 3)
	status := verify(t, nodes[1].Client())
	if len(status.Differences) > 0 || status.Instances != 10 || status.Events < 60 || status.Voters != 3 || len(status.Roots) == 0 {
		t.Errorf("%v", status)
	}
}

// An event that differs on a minority is found by a round, named, and repaired, whichever node
// leads.
func TestVerify_RepairsMinority(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		nodes, altered int
		leads          bool // a node that is altered leads
	}{{"one of three", 3, 1, false}, {"the leader of three", 3, 1, true}, {"two of five", 5, 2, false}} {
		t.Run(c.name, func(t *testing.T) {
			nodes, logs := startCompared(t, c.nodes)
			leader := leaderOf(t, nodes)
			var victims []*Node
			for _, node := range nodes {
				if len(victims) < c.altered && (node == leader) == c.leads {
					victims = append(victims, node)
				}
			}
			for _, victim := range victims {
				alter(t, nodes, victim, "ended2", changeEvent(t, 4))
			}
			epoch := leader.partitions[0].journal.Epoch()
			status := verify(t, nodes[0].Client())
			if !c.leads && leader.partitions[0].journal.Epoch() == epoch { // a change of leader ends the round
				named := ""
				for _, d := range status.Differences {
					named += fmt.Sprintf("%s/%d/%d on %s;", d.Instance, d.Execution, d.EventId, d.Node)
				}
				for _, victim := range victims {
					if want := "ended2/1/4 on " + victim.config.NodeID; !strings.Contains(named, want) {
						t.Errorf("found %q; want %s", named, want)
					}
				}
			}
			expectSound(t, nodes)
			for _, text := range []string{"replicas differ", "replica repaired"} {
				eventually(t, "the logs say: "+text, func() bool {
					return slices.ContainsFunc(logs, func(log *logRecorder) bool { return log.countLines(text) > 0 })
				})
			}
			if err := Send(testContext(t), nodes[0].Client(), "waits1", word, "y"); err != nil {
				t.Error(err)
			}
		})
	}
}

// follower returns a node that does not lead.
func follower(t *testing.T, nodes []*Node) *Node {
	leader := leaderOf(t, nodes)
	for _, node := range nodes {
		if node != leader {
			return node
		}
	}
	t.Fatal("no node follows")
	return nil
}

// A quarantine ends only when the replica is like the others: here it is altered again after the
// first repair.
func TestRepair_IsVerified(t *testing.T) {
	t.Parallel()
	var repairs atomic.Int64
	var repaired func()
	var sound func() bool
	var lifted atomic.Bool
	nodes, _ := startComparedWith(t, 3, harness.Overrides{RepairStep: func(step string) {
		switch {
		case step == comparison.StepRepaired && repairs.Add(1) == 1:
			repaired()
		case step == comparison.StepLifted:
			lifted.Store(true)
			if !sound() {
				t.Error("the quarantine ended while the replica differed")
			}
		}
	}})
	leader, victim := leaderOf(t, nodes), follower(t, nodes)
	repaired = func() {
		expectQuarantineShown(t, leader, victim, "ended2")
		alter(t, nodes, victim, "ended2", changeEvent(t, 4))
	}
	sound = func() bool {
		a, err := leader.partitions[0].journal.Hash("ended2")
		b, failed := victim.partitions[0].journal.Hash("ended2")
		return err == nil && failed == nil && a == b
	}
	alterUntilFound(t, nodes, victim, 3, "ended2")
	eventually(t, "the quarantine ends", lifted.Load)
	if n := repairs.Load(); n < 2 {
		t.Errorf("%d repairs", n)
	}
	expectSound(t, nodes)
}

// expectQuarantineShown checks what shows a replica that is quarantined.
func expectQuarantineShown(t *testing.T, leader, victim *Node, id string) {
	t.Helper()
	eventually(t, "the health of the node shows it", func() bool { return victim.Health().Quarantined == 1 })
	if h := leader.Health(); h.Quarantined != 0 || h.Stopped != 0 {
		t.Errorf("health of the leader %+v", h)
	}
	eventually(t, "the leader is ready", func() bool { return leader.Health().Ready() == nil })
	status, err := leader.Client().Get(testContext(t), id)
	if err != nil || !slices.Equal(status.Quarantined, []string{victim.config.NodeID}) {
		t.Errorf("status %+v, error %v", status, err)
	}
	members, err := leader.Client().Members(testContext(t))
	if err != nil {
		t.Error(err)
	}
	for _, m := range members {
		if want := m.NodeID == victim.config.NodeID; (m.Quarantined == 1) != want || m.Stopped != 0 {
			t.Errorf("%s: quarantined %d, stopped %d", m.NodeID, m.Quarantined, m.Stopped)
		}
	}
}

// While a replica is repaired, calls to its neighbors and to the instance itself go on, and nothing
// that was acknowledged is lost.
func TestRepair_UnderLoad(t *testing.T) {
	t.Parallel()
	nodes, _ := startCompared(t, 3)
	victim, client := follower(t, nodes), nodes[0].Client()
	stop, acked := make(chan struct{}), make([]int, 4)
	var load sync.WaitGroup
	for worker := range acked {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond): // what is loaded is compared in each round, and read at the end
				}
				id := fmt.Sprintf("load-%d-%d", worker, i)
				if got, err := Call(testContext(t), nodes[worker%len(nodes)].Client(), fiveActivities, id, i); err != nil || got != 32*i {
					t.Errorf("%s: %d, error %v", id, got, err)
					return
				}
				acked[worker]++
			}
		})
	}
	for round := range 3 {
		id := fmt.Sprint("waits", round)
		alterUntilFound(t, nodes, victim, 1, id)
		if err := Send(testContext(t), client, id, word, "y"); err != nil {
			t.Error(err)
		}
		if _, err := client.Wait(testContext(t), id); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no replica is quarantined", func() bool { return len(victim.partitions[0].journal.Quarantines()) == 0 })
	close(stop)
	load.Wait()
	expectSound(t, nodes)
	for worker, n := range acked {
		if n == 0 {
			t.Errorf("caller %d was not answered", worker)
		}
		for i := range n {
			expectOutput(t, client, fmt.Sprintf("load-%d-%d", worker, i), 32*i)
		}
	}
}

// A voter that does not answer takes no part in a comparison: it is neither wrong nor right.
func TestVerify_WithoutAVoter(t *testing.T) {
	nodes, _ := startCompared(t, 3)
	leader, absent := leaderOf(t, nodes), follower(t, nodes)
	if err := absent.Close(); err != nil {
		t.Fatal(err)
	}
	status := verify(t, leader.Client())
	if len(status.Differences) > 0 || status.Replicas != 2 || status.Voters != 3 || len(status.Roots) == 0 {
		t.Errorf("%v", status)
	}
	if quarantines := leader.partitions[0].journal.Quarantines(); len(quarantines) > 0 {
		t.Errorf("quarantines %v", quarantines)
	}
}

// While a member runs a build that does not know comparisons, nothing is compared, quarantined or
// signed. When it runs this build, the round goes on.
func TestVerify_MixedBuilds(t *testing.T) {
	t.Parallel()
	peers := loopbackPeers(t, 3)
	nodes := make([]*Node, len(peers))
	configs := make([]Config, len(peers))
	for i := range peers {
		configs[i] = peerConfig(t, peers, i, definitions()...)
		configs[i].Partitions = 1
		if i == 2 {
			configs[i].protocol = 3
		}
		nodes[i] = startNode(t, configs[i])
	}
	for i := range 5 {
		if _, err := Call(testContext(t), nodes[0].Client(), fiveActivities, fmt.Sprint("mixed", i), i); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a leader says why it waits", func() bool {
		comparing := leaderOf(t, nodes).partitions[0].comparing.Load()
		return comparing != nil && strings.Contains(comparing.Verify(new(clusterpb.VerifyRequest)).Waits, "protocol")
	})
	for _, node := range nodes {
		own := node.partitions[0].journal
		if number, _ := own.Comparison(); number != 0 || len(own.Quarantines()) > 0 {
			t.Errorf("%s: comparison %d, quarantines %v", node.config.NodeID, number, own.Quarantines())
		}
	}
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	configs[2].protocol = 0
	nodes[2] = startNode(t, configs[2])
	finalizeProtocol(t, nodes[0].Client())
	eventually(t, "the cluster speaks the newest protocol", func() bool { return nodes[0].partitions[0].journal.Protocol() == protocolVersion })
	expectSound(t, nodes)
}

// quarantine records a quarantine, whichever node leads.
func quarantine(t *testing.T, nodes []*Node, q *journalpb.Quarantine) {
	t.Helper()
	eventually(t, "the quarantine is recorded", func() bool {
		err := leaderOf(t, nodes).partitions[0].journal.Quarantine(testContext(t), q)
		if err != nil && !errors.Is(err, journal.ErrNotLeader) && !errors.Is(err, journal.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// While a replica is quarantined, its node answers no read of the instance, and does not lead.
func TestQuarantine_NodeDoesNotServe(t *testing.T) {
	t.Parallel()
	nodes, _ := startCompared(t, 3)
	leader := leaderOf(t, nodes)
	victim := nodes[0]
	if victim == leader {
		victim = nodes[1]
	}
	quarantine(t, nodes, &journalpb.Quarantine{Instance: "ended1", Node: victim.config.NodeID})
	eventually(t, "the node knows", func() bool {
		if !isQuarantined(victim.partitions[0], "ended1") {
			return len(leaderOf(t, nodes).partitions[0].journal.Quarantines()) == 0 // it was lifted already
		}
		response := victim.dispatcher.serve(testContext(t), victim.partitions[0].prepareRequest(&clusterpb.Request{
			Instance: "ended1", Stale: true, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)},
		}))
		if response.GetFailure() == nil && isQuarantined(victim.partitions[0], "ended1") {
			t.Error("the quarantined replica was read")
		}
		return true
	})
	if _, err := victim.Client().Get(testContext(t), "ended1", Stale()); err != nil {
		t.Errorf("the other nodes do not answer: %v", err)
	}
	expectSound(t, nodes)
}

// Of two replicas that differ, none is right: the instance is stopped until an operator accepts
// one.
func TestVerify_TieStopsInstance(t *testing.T) {
	t.Parallel()
	nodes, _ := startCompared(t, 2)
	alter(t, nodes, nodes[1], "waits2", changeEvent(t, 1))
	status := verify(t, nodes[0].Client())
	if len(status.Differences) != 1 || status.Differences[0].Instance != "waits2" || status.Differences[0].Node != "" || status.Differences[0].EventId != 1 {
		t.Fatalf("%v", status.Differences)
	}
	ctx, client := testContext(t), nodes[0].Client()
	sending, cancel := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- Send(sending, client, "waits2", word, "y") }() // it is not answered
	eventually(t, "the instance is shown as stalled", func() bool {
		got, err := client.Get(ctx, "waits2")
		return err == nil && got.State == Stalled
	})
	cancel()
	if err := <-sent; err == nil {
		t.Error("a stopped instance has taken an event")
	}
	if err := Send(ctx, client, "waits3", word, "y"); err != nil {
		t.Errorf("another instance: %v", err)
	}
	eventually(t, "health and members show the stopped instance", func() bool {
		members, err := client.Members(ctx)
		h := nodes[1].Health()
		return err == nil && h.Stopped == 1 && h.Quarantined == 0 && h.Ready() == nil && members[0].Stopped+members[1].Stopped == 1
	})
	if err := accept(t, client, "waits2", nodes[0].config.NodeID); err != nil {
		t.Fatal(err)
	}
	expectSound(t, nodes)
	if err := Send(ctx, client, "waits2", word, "z"); err != nil && !errors.Is(err, ErrEnded) { // the first was received
		t.Fatal(err)
	}
	if _, err := client.Wait(ctx, "waits2"); err != nil {
		t.Error(err)
	}
}

// accept makes a node's replica of an instance the right one.
func accept(t *testing.T, client *Client, id, node string) error {
	_, err := internalsOf(t, client).Call(testContext(t), &clusterpb.Request{
		Instance: id, Reason: "it has the receipt", Call: &clusterpb.Request_AcceptReplica{AcceptReplica: &clusterpb.AcceptReplicaRequest{Node: node}},
	})
	return err
}

// makeStandby takes the vote of one of three nodes, and returns the others.
func makeStandby(t *testing.T, nodes []*Node, standby *Node) (voters []*Node) {
	t.Helper()
	if _, err := internalsOf(t, nodes[0].Client()).Call(testContext(t), &clusterpb.Request{Call: &clusterpb.Request_SetRole{
		SetRole: &clusterpb.SetRoleRequest{Node: standby.config.NodeID, Pin: journalpb.MemberRole_PIN_STANDBY, Reason: "test"},
	}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two nodes vote", func() bool {
		voters = nil
		for _, m := range leaderOf(t, nodes).partitions[0].journal.Members() {
			for _, node := range nodes {
				if m.Voter && m.Node == node.config.NodeID {
					voters = append(voters, node)
				}
			}
		}
		return len(voters) == 2
	})
	return voters
}

// The replica of a standby is compared with those of the voters, and repaired like theirs.
func TestVerify_RepairsStandby(t *testing.T) {
	t.Parallel()
	nodes, logs := startCompared(t, 3)
	standby := follower(t, nodes)
	voters := makeStandby(t, nodes, standby)
	status := alterUntilFound(t, nodes, standby, 4, "ended2")
	if d := status.Differences[0]; d.Instance != "ended2" || d.Node != standby.config.NodeID || d.EventId != 4 || status.Voters != 2 || status.Standbys != 1 {
		t.Errorf("%v", status)
	}
	expectSound(t, nodes)
	eventually(t, "the logs show the repair", func() bool {
		all := ""
		for _, log := range logs {
			all += string(log.all())
		}
		return strings.Contains(all, "repaired="+standby.config.NodeID)
	})
	for _, node := range []*Node{voters[0], standby} {
		eventually(t, node.ID()+" is ready", func() bool { return node.Health().Ready() == nil })
	}
}

// The replica of a node without a vote cannot be accepted: it cannot be copied, because the node
// does not lead. It is replaced by the one that is accepted.
func TestAccept_RefusesStandby(t *testing.T) {
	nodes, _ := startCompared(t, 3)
	standby, client := follower(t, nodes), nodes[0].Client()
	voters := makeStandby(t, nodes, standby)
	alter(t, nodes, voters[1], "waits2", changeEvent(t, 1))
	alter(t, nodes, standby, "waits2", changeEvent(t, 1))
	eventually(t, "the instance is stopped", func() bool { verify(t, client); return voters[0].Health().Stopped == 1 })
	if err := accept(t, client, "waits2", standby.config.NodeID); !errors.Is(err, ErrNotMember) || !strings.Contains(err.Error(), "no vote") {
		t.Errorf("the replica of a standby: %v", err)
	}
	if quarantines := voters[0].partitions[0].journal.Quarantines(); len(quarantines) != 1 || quarantines[0].Node != "" {
		t.Errorf("quarantines %v", quarantines)
	}
	if err := accept(t, client, "waits2", voters[0].config.NodeID); err != nil {
		t.Fatal(err)
	}
	expectRepaired(t, nodes)
}

// expectRepaired waits until no replica is quarantined and no instance stopped, and all agree.
func expectRepaired(t *testing.T, nodes []*Node) {
	t.Helper()
	eventually(t, "no replica is quarantined", func() bool {
		return !slices.ContainsFunc(nodes, func(node *Node) bool { return len(node.partitions[0].journal.Quarantines()) > 0 })
	})
	eventually(t, "all replicas take part and agree", func() bool {
		status := verify(t, nodes[0].Client())
		return len(status.Differences) == 0 && int(status.Replicas+status.Standbys) == len(nodes)
	})
}

// A replica that is quarantined can be accepted, and then it is not quarantined any more.
func TestAccept_QuarantinedReplica(t *testing.T) {
	t.Parallel()
	nodes, logs := startCompared(t, 3)
	for i, node := range nodes[1:] { // all three differ
		alter(t, nodes, node, "waits2", func(instance *journalpb.InstanceSnapshot) {
			for range i + 1 {
				changeEvent(t, 1)(instance)
			}
		})
	}
	client, accepted := nodes[0].Client(), follower(t, nodes)
	eventually(t, "the instance is stopped", func() bool { verify(t, client); return nodes[0].Health().Stopped == 1 })
	want, err := accepted.partitions[0].journal.Hash("waits2")
	if err != nil {
		t.Fatal(err)
	}
	quarantine(t, nodes, &journalpb.Quarantine{Instance: "waits2", Node: accepted.config.NodeID, Reason: "before the tie"})
	if err := accept(t, client, "waits2", accepted.config.NodeID); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(logs, func(log *logRecorder) bool { return log.countLines(`reason="it has the receipt"`) == 1 }) {
		t.Error("no log has the reason")
	}
	expectSound(t, nodes)
	if got, err := nodes[0].partitions[0].journal.Hash("waits2"); err != nil || got != want {
		t.Errorf("hash %x, want that of the accepted replica %x; error %v", got, want, err)
	}
}

// If the replicas of all voters are quarantined, they differ from none that is used: what they have
// is compared again.
func TestQuarantine_OfAllVotersEnds(t *testing.T) {
	t.Parallel()
	nodes, logs := startCompared(t, 3)
	// A replica may be repaired, or the leader hand over, before the last one is quarantined.
	eventually(t, "the replicas of all voters were quarantined at once", func() bool {
		own := leaderOf(t, nodes).partitions[0].journal
		var calls sync.WaitGroup
		for _, node := range nodes {
			calls.Go(func() {
				q := &journalpb.Quarantine{Instance: "waits1", Node: node.config.NodeID}
				if err := own.Quarantine(testContext(t), q); err != nil && !errors.Is(err, journal.ErrNotLeader) && !errors.Is(err, journal.ErrUnknownOutcome) {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		return slices.ContainsFunc(logs, func(log *logRecorder) bool { return log.countLines("no voter has a replica to copy") > 0 })
	})
	expectSound(t, nodes)
	if err := Send(testContext(t), nodes[0].Client(), "waits1", word, "y"); err != nil {
		t.Error(err)
	}
}

// A replica in quarantine may be the only one that survives. The report of a recovery names it.
func TestRecover_NamesQuarantinedReplicas(t *testing.T) {
	release := make(chan struct{})
	nodes, _ := startComparedWith(t, 3, harness.Overrides{RepairStep: func(string) { <-release }})
	t.Cleanup(func() { close(release) }) // before the nodes close
	victim := follower(t, nodes)
	quarantine(t, nodes, &journalpb.Quarantine{Instance: "waits1", Node: victim.config.NodeID, Reason: "test"})
	eventually(t, "the node knows of the quarantine", func() bool { return len(victim.partitions[0].journal.Quarantines()) == 1 })
	if err := victim.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := recovery.Inspect(t.Context(), victim.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if p := report.Partitions[0]; !slices.Equal(p.Quarantined, []string{"waits1"}) || !strings.Contains(report.String(), "kept although") {
		t.Errorf("%+v\n%s", p, report)
	}
}

// Proofs that wait are answered between two repairs.
func TestRepair_ProofsDoNotWaitForAll(t *testing.T) {
	t.Parallel()
	var repairs atomic.Int64
	var during func(repair int64)
	// The leader that the proofs wait for must not change.
	nodes, _ := startComparedWith(t, 3, harness.Overrides{HeartbeatTimeout: 2 * time.Second, RepairStep: func(step string) {
		if step == comparison.StepPaused {
			during(repairs.Add(1))
		}
	}})
	leader, victim := leaderOf(t, nodes), follower(t, nodes)
	verify(t, leader.Client()) // so that roots are signed
	var callers sync.WaitGroup
	var answered atomic.Int64
	ctx, full := testContext(t), make(chan struct{})
	closeFull := sync.OnceFunc(func() { close(full) })
	call := func(comparing *comparison.Leader) {
		_, err := comparing.Prove(ctx, "ended0", 1, 1)
		switch {
		case err == nil:
			answered.Add(1)
		case strings.Contains(err.Error(), "wait in this partition"):
			closeFull()
		default:
			t.Error(err)
		}
	}
	during = func(repair int64) {
		switch repair {
		case 1: // one more than may wait
			comparing := leaderOf(t, nodes).partitions[0].comparing.Load()
			for range 65 {
				callers.Go(func() { call(comparing) })
			}
			<-full
		case 2:
			eventually(t, "the 64 proofs that waited are answered", func() bool { return answered.Load() >= 64 })
		}
	}
	alterUntilFound(t, nodes, victim, 4, "ended2", "ended3")
	expectSound(t, nodes)
	callers.Wait()
	if n := repairs.Load(); n < 2 {
		t.Errorf("%d repairs", n)
	}
}

// While a member speaks an older protocol, nothing is recorded that it would ignore.
func TestVerify_WaitsForProtocol(t *testing.T) {
	node := startNode(t, Config{Dir: t.TempDir(), Partitions: 1, Definitions: definitions(), protocol: 3})
	eventually(t, "the node leads", func() bool { return node.partitions[0].comparing.Load() != nil })
	comparing := node.partitions[0].comparing.Load()
	comparing.Verify(new(clusterpb.VerifyRequest))
	eventually(t, "the round says why it waits", func() bool {
		status := comparing.Verify(&clusterpb.VerifyRequest{Round: 1})
		return strings.Contains(status.Waits, "protocol")
	})
	if number, _ := node.partitions[0].journal.Comparison(); number != 0 {
		t.Errorf("comparison %d was recorded", number)
	}
}
