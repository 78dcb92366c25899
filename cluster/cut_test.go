package cluster

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A partition records the cut of a message's sender before the message, and the sender that of the
// answer. Nothing else makes these partitions record the cuts that the tests make up.

func TestCut_FollowsMessageOfInstance(t *testing.T) {
	node := startSingleNode(t, definitions()...)
	ctx, receiver := testContext(t), idInPartition("w", 1)
	if _, err := StartRun(ctx, node.Client(), waiter, receiver, "x"); err != nil {
		t.Fatal(err)
	}
	response := node.dispatcher.serve(ctx, node.partitions[1].prepareRequest(&clusterpb.Request{
		Instance: receiver, Cut: 7, RejectIfStalled: true,
		Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "e", RequestId: "r"}},
	}))
	if failure := response.GetFailure(); failure != nil {
		t.Fatal(failure)
	}
	if cut := node.partitions[1].journal.Cut(); cut != 7 || response.Cut != 7 {
		t.Errorf("the receiver has cut %d and answers %d; want 7", cut, response.Cut)
	}
}

func TestCut_SenderFollowsAnswer(t *testing.T) {
	node := startSingleNode(t, definitions()...)
	ctx, receiver := testContext(t), idInPartition("w", 1)
	if _, err := StartRun(ctx, node.Client(), waiter, receiver, "x"); err != nil {
		t.Fatal(err)
	}
	if err := node.partitions[1].journal.RecordCut(ctx, 9); err != nil {
		t.Fatal(err)
	}
	err := node.router.sendMessage(ctx, &actors.OutgoingMessage{
		From: &journalpb.OperationRef{Instance: idInPartition("s", 0), Execution: 1, EventId: 2}, Instance: receiver, RequestID: "r",
		Event: &journalpb.ExternalEvent{Name: "e"},
	})
	if cut := node.partitions[0].journal.Cut(); err != nil || cut != 9 {
		t.Errorf("the sender has cut %d, %v; want 9", cut, err)
	}
}

// The messages of children and their parents name cuts too, in both directions.
func TestCut_FollowsChildStart(t *testing.T) {
	node := startSingleNode(t, parentDefinitions()...)
	ask := node.ask
	var followed atomic.Bool
	node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		messages := request.GetCrossMessages()
		startsChild := func(m *clusterpb.CrossMessage) bool { return m.Event.GetOrchestrationStarted() != nil } // the parent sends it
		if !slices.ContainsFunc(messages.GetMessages(), startsChild) || followed.Load() {
			return ask(ctx, request)
		}
		receiver := node.partitionFor(request).journal
		messages.Cut = receiver.Cut() + 100
		response := ask(ctx, request)
		if cut := receiver.Cut(); response.GetFailure() == nil && cut < messages.Cut {
			t.Errorf("the receiver has cut %d, want %d", cut, messages.Cut)
		}
		if answer := response.GetCrossMessages(); answer != nil && followed.CompareAndSwap(false, true) {
			answer.Cut = 1000
		}
		return response
	}
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), parentOrchestration, idInPartition("parent", 0), "works child"); err != nil {
		t.Fatal(err)
	}
	// The parent may end before the answer to the start of a child is handled.
	eventually(t, "the sender has the cut of the answer", func() bool { return node.partitions[0].journal.Cut() >= 1000 })
}

// A replica hides its instances while its partition has a cut that the reader's has not recorded,
// and shows them again when the reader has followed.
func TestCut_ReplicaHidesLaterState(t *testing.T) {
	node := startSingleNode(t, definitions()...)
	ctx, other := testContext(t), idInPartition("w", 1)
	if _, err := StartRun(ctx, node.Client(), waiter, other, "x"); err != nil {
		t.Fatal(err)
	}
	own := node.partitions[0].journal
	reader := crosspartition.NewLeader(node.partitions[0].crossPartitions(), own.Epoch())
	hidden := 0
	for cut := uint64(1); cut <= 100; cut++ {
		if err := node.partitions[1].journal.RecordCut(ctx, cut); err != nil {
			t.Fatal(err)
		}
		_, shown := reader.Replica(other).Instance(other)
		if own.Cut() < cut { // otherwise the leader of the reader's partition has followed meanwhile
			if hidden++; shown {
				t.Fatalf("cut %d of the other partition: an instance is shown at cut %d", cut, own.Cut())
			}
		}
	}
	if hidden == 0 {
		t.Error("the reader's partition always followed before the read")
	}
	eventually(t, "the instance is shown again", func() bool {
		_, shown := reader.Replica(other).Instance(other)
		return shown
	})
}

// A failure is an answer, too: the sender records what follows from it. An instance that exists
// only after a cut is unknown before it, for example.
func TestCut_FollowsFailure(t *testing.T) {
	node := startSingleNode(t, definitions()...)
	ctx, unknown, ask := testContext(t), idInPartition("unknown", 1), node.ask
	if err := node.partitions[1].journal.RecordCut(ctx, 9); err != nil {
		t.Fatal(err)
	}
	node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		response := ask(ctx, request)
		if request.Instance == unknown {
			if response.GetFailure() == nil || response.Cut < 9 {
				t.Errorf("the receiver answers %v; want a failure with cut 9", response)
			}
			response.Cut = 1000 // which no partition has
		}
		return response
	}
	err := node.router.sendMessage(ctx, &actors.OutgoingMessage{
		From: &journalpb.OperationRef{Instance: idInPartition("from", 0)}, Instance: unknown, RequestID: "r",
		Event: &journalpb.ExternalEvent{Name: "e"},
	})
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("a message to an unknown instance: %v", err)
	}
	if cut := node.partitions[0].journal.Cut(); cut != 1000 {
		t.Errorf("the sender has cut %d after the failure; want 1000", cut)
	}
}
