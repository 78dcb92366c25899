package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/internal/routing"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// newInstanceStart returns a start of an orchestration of the tests.
func newInstanceStart(instance, name string) *clusterpb.InstanceStart {
	return &clusterpb.InstanceStart{Instance: instance, Start: &clusterpb.StartRequest{Name: name, RequestId: "r-" + instance}}
}

// sendStarts sends a batch of starts to a node and returns the answers.
func sendStarts(t *testing.T, node *Node, request *clusterpb.Request) (map[uint32]*clusterpb.Response, error) {
	t.Helper()
	answers := make(map[uint32]*clusterpb.Response)
	err := node.dispatcher.startBatch(testContext(t), request, func(response *clusterpb.Response) error {
		for _, answer := range response.GetStartBatch().GetItems() {
			if answers[answer.Index] != nil {
				t.Errorf("start %d was answered twice", answer.Index)
			}
			answers[answer.Index] = answer.Response
		}
		return nil
	})
	return answers, err
}

// newStartsRequest returns a request of a node with a batch of starts of a partition.
func newStartsRequest(g *partition, starts ...*clusterpb.InstanceStart) *clusterpb.Request {
	return g.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{Starts: starts}}})
}

// Each start of a batch is answered individually.
func TestStartBatch_AnswersEachStart(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{Dir: t.TempDir(), Partitions: 1, Definitions: definitions()})
	if _, err := StartRun(testContext(t), node.Client(), doubled, "taken", 1); err != nil {
		t.Fatal(err)
	}
	attached := newInstanceStart("taken", doubled.Name())
	attached.Start.Attach = true
	starts := []*clusterpb.InstanceStart{
		newInstanceStart("new", doubled.Name()), newInstanceStart("taken", doubled.Name()), newInstanceStart("other", "no such code"), attached, newInstanceStart("again", doubled.Name()),
	}
	want := []string{"", "instance_exists", wire.CodeNoCode, "", ""}
	answers, err := sendStarts(t, node, newStartsRequest(node.partitions[0], starts...))
	if err != nil || len(answers) != len(starts) {
		t.Fatalf("%v, %v", answers, err)
	}
	for i, answer := range answers {
		if code := answer.GetFailure().GetCode(); code != want[i] || code == "" && answer.GetStart().GetFirstExecution() != 1 {
			t.Errorf("%s: %v; want the code %q", starts[i].Instance, answer, want[i])
		}
	}
	if !answers[3].GetStart().GetAttached() || answers[0].AppliedIndex == 0 {
		t.Errorf("answers: %v", answers)
	}
	starts[4].Retried = true
	if answers, err = sendStarts(t, node, newStartsRequest(node.partitions[0], starts[4])); err != nil || answers[0].GetStart().GetFirstExecution() != 1 {
		t.Errorf("a repetition: %v, %v", answers, err)
	}
}

// Each start is answered as soon as possible: a rejected one does not wait for slow ones.
func TestStartBatch_AnswersAsSoonAsPossible(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{Dir: t.TempDir(), Partitions: 1, Definitions: definitions()})
	ctx, g := testContext(t), node.partitions[0]
	if _, err := StartRun(ctx, node.Client(), doubled, "taken", 1); err != nil {
		t.Fatal(err)
	}
	release, barrier := make(chan struct{}), g.barrier
	g.barrier = func(ctx context.Context) error { // ErrInstanceExists is not returned without it
		<-release
		return barrier(ctx)
	}
	var order []uint32
	starts := []*clusterpb.InstanceStart{newInstanceStart("taken", doubled.Name()), newInstanceStart("rejected", "no such code"), newInstanceStart("new", doubled.Name())}
	err := g.startEach(ctx, g.servingPartition(), starts, func(value *clusterpb.StartBatchResult) error {
		for _, answer := range value.Items {
			order = append(order, answer.Index)
		}
		if len(order) == len(starts)-1 {
			close(release)
		}
		return nil
	})
	if err != nil || len(order) != len(starts) || order[2] != 0 {
		t.Errorf("answered in the order %v, %v", order, err)
	}
}

// A batch that no node would send is rejected as a whole, and none of it is executed.
func TestStartBatch_RejectsInvalidBatch(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{Dir: t.TempDir(), Partitions: testPartitions, Definitions: definitions()})
	good, name := newInstanceStart(idInPartition("good", 1), doubled.Name()), doubled.Name()
	for what, bad := range map[string][]*clusterpb.InstanceStart{
		"none at all":       {nil},
		"without a start":   {{Instance: idInPartition("bad", 1)}},
		"without an ID":     {newInstanceStart("", name)},
		"an ID too long":    {newInstanceStart(strings.Repeat("x", 1<<10), name)},
		"without a name":    {newInstanceStart(idInPartition("bad", 1), "")},
		"other partition":   {newInstanceStart(idInPartition("bad", 2), name)},
		"more than allowed": make([]*clusterpb.InstanceStart, routing.StartBatchMax+1),
	} {
		var rejected *replay.InvalidError
		request := newStartsRequest(node.partitions[1], append([]*clusterpb.InstanceStart{good}, bad...)...)
		if answers, err := sendStarts(t, node, request); !errors.As(err, &rejected) || len(answers) != 0 {
			t.Errorf("%s: %v, %v", what, answers, err)
		}
	}
	if _, err := node.Client().Get(testContext(t), good.Instance); !errors.Is(err, ErrNotFound) {
		t.Errorf("the good one beside them: %v", err)
	}
}

// Many starts through a follower go to the leader in batches, and each caller gets its own answer.
func TestForwarder_BatchesStarts(t *testing.T) {
	t.Parallel()
	const starts, taken = 400, 4 // every fourth ID is taken
	nodes := startPeers(t, 3)
	leader := leaderOf(t, nodes)
	node := nodes[0]
	if node == leader {
		node = nodes[1]
	}
	for _, g := range node.partitions {
		eventually(t, "the cluster has the protocol for batches", func() bool { return g.forwarder.CanBatch(newStartRequest()) })
	}
	ctx := testContext(t)
	for i := 0; i < starts; i += taken {
		if _, err := StartRun(ctx, leader.Client(), doubled, fmt.Sprint("together-", i), i); err != nil {
			t.Fatal(err)
		}
	}
	var calls sync.WaitGroup
	for i := range starts {
		calls.Go(func() {
			got, err := Call(ctx, node.Client(), doubled, fmt.Sprint("together-", i), i)
			if exists := errors.Is(err, ErrInstanceExists); exists != (i%taken == 0) || !exists && (err != nil || got != 2*i) {
				t.Errorf("%d: %d, %v", i, got, err)
			}
		})
	}
	calls.Wait()
	expectSameHistories(t, nodes)
}

func newStartRequest() *clusterpb.Request {
	return &clusterpb.Request{Call: &clusterpb.Request_Start{Start: new(clusterpb.StartRequest)}}
}
