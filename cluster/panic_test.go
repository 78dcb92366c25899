package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// panicMessage is the log message for a call that panicked.
const panicMessage = "call panicked; only this call fails, the node keeps running"

// checkPanicked fails the test unless err is that of a panicked call, and one of the logs gets its
// stack with that function.
func checkPanicked(t *testing.T, err error, function string, logs ...*logRecorder) {
	t.Helper()
	var internal *InternalError
	if !errors.As(err, &internal) || !strings.Contains(err.Error(), "panicked on node") {
		t.Errorf("%v; want an InternalError that says that the call panicked", err)
	}
	// Nodes write their logs behind.
	eventually(t, "a log has the stack with "+function, func() bool {
		return slices.ContainsFunc(logs, func(log *logRecorder) bool {
			return log.countLines(panicMessage) > 0 && log.countLines(function) > 0
		})
	})
}

func TestPanic_InAuthorizeFailsOnlyThatCall(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted := newAuthority(t)
	nodes, logs := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, _ Principal, _ Action, instance string) error {
			if instance == "panic" {
				panic("as wanted")
			}
			return nil
		}
	})
	ctx, leader := testContext(t), leaderOf(t, nodes)
	client := dialSecured(t, trusted, trusted.Client("app"), leader)
	_, err := StartRun(ctx, client, doubled, "panic", 1)
	checkPanicked(t, err, "authorize", logs...)
	if got, err := Call(ctx, client, doubled, "next", 21); err != nil || got != 42 {
		t.Errorf("the next call: %d, %v", got, err)
	}
}

func TestPanic_InProcessCallFailsOnlyThatCall(t *testing.T) {
	checkGoroutineLeaks(t)
	log := new(logRecorder)
	node := startNode(t, Config{InMemory: true, Partitions: 2, Logger: log.logger(), Definitions: append(definitions(), accountOrchestration.Bind(accountOrchestrationBody))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, accountOrchestration, "a", 1); err != nil {
		t.Fatal(err)
	}
	barriers := make([]func(context.Context) error, len(node.partitions))
	for i, g := range node.partitions {
		barriers[i] = g.barrier
		g.barrier = func(context.Context) error { panic("as wanted") }
	}
	_, err := Query(ctx, client, "a", balanceQuery, "")
	checkPanicked(t, err, "(*Reads).Query", log)
	_, err = client.Count(ctx, Filter{})
	checkPanicked(t, err, "(*partition).handle", log)
	// A call that meets the barrier of another one gets its error.
	eventually(t, "the call has ended in both partitions", func() bool { return log.countLines("call=list") == len(node.partitions) })
	// Each start of a batch has its own goroutine.
	request := node.partitionOf("a").prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{
		Starts: []*clusterpb.InstanceStart{{Instance: "a", Start: &clusterpb.StartRequest{Name: "account", RequestId: "x"}}},
	}}})
	stream := &fakeServerStream{ctx: withLocalPrincipal(ctx), request: proto.CloneOf(request)}
	if err := (&nodeService{node}).ServeStartBatch(stream); err != nil {
		t.Fatal(err)
	}
	checkPanicked(t, fromFailure(stream.lastResponse.GetStartBatch().GetItems()[0].GetResponse().GetFailure()), "(*partition).startEach", log)
	for i, g := range node.partitions {
		g.barrier = barriers[i]
	}
	if got, err := Query(ctx, client, "a", balanceQuery, ""); err != nil || got != 1 {
		t.Errorf("the next query: %d, %v", got, err)
	}
}

// A panic in the caller's own code within a watch reaches the caller.
func TestPanic_InWatchLoopReachesCaller(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if value := recover(); value != "as wanted" {
			t.Errorf("recovered %v; want the caller's panic", value)
		}
	}()
	for range node.Client().Watch(ctx, "d", history.Position{}) {
		panic("as wanted")
	}
	t.Error("the watch has ended without a panic")
}
