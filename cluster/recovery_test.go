package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// checkPanicked fails the test unless err is that of a call that panicked, and the log has
// its stack, with a function that was on it.
func checkPanicked(t *testing.T, err error, log *logbook, function string) {
	t.Helper()
	var internal *InternalError
	if !errors.As(err, &internal) || !strings.Contains(err.Error(), "panicked on node") {
		t.Errorf("%v; want an InternalError that says that the call panicked", err)
	}
	if log.lines(panicMessage) == 0 || log.lines(function) == 0 {
		t.Errorf("the log has no stack with %s:\n%s", function, log.all())
	}
}

func TestAPanicOfConfigAuthorizeFailsThatCallAlone(t *testing.T) {
	noGoroutinesLeft(t)
	ours := newAuthority(t)
	nodes, logs := startSecured(t, ours, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, _ Principal, _ Action, instance string) error {
			if instance == "panic" {
				panic("as wanted")
			}
			return nil
		}
	})
	ctx, leader := testContext(t), leaderOf(t, nodes)
	client := dialSecured(t, ours, ours.client("app"), leader)
	all := new(logbook)
	_, err := StartRun(ctx, client, doubled, "panic", 1)
	for _, log := range logs {
		_, _ = all.Write(log.all())
	}
	checkPanicked(t, err, all, "authorize")
	if got, err := Call(ctx, client, doubled, "next", 21); err != nil || got != 42 {
		t.Errorf("the next call: %d, %v", got, err)
	}
}

func TestAPanicInACallOfTheProcessFailsThatCallAlone(t *testing.T) {
	noGoroutinesLeft(t)
	log := new(logbook)
	node := startNode(t, Config{InMemory: true, Groups: 2, Logger: log.logger(), Definitions: append(definitions(), account.Bind(accountBody))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, account, "a", 1); err != nil {
		t.Fatal(err)
	}
	barriers := make([]func(context.Context) error, len(node.groups))
	for i, g := range node.groups {
		barriers[i] = g.barrier
		g.barrier = func(context.Context) error { panic("as wanted") }
	}
	_, err := Query(ctx, client, "a", balance, "")
	checkPanicked(t, err, log, "(*group).query")
	_, err = client.Count(ctx, Filter{})
	checkPanicked(t, err, log, "(*group).answer")
	// Of starts that come together, each has a goroutine.
	request := node.of("a").request(&clusterpb.Request{Call: &clusterpb.Request_Starts{Starts: &clusterpb.StartsRequest{
		Starts: []*clusterpb.InstanceStart{{Instance: "a", Start: &clusterpb.StartRequest{Name: "account", RequestId: "x"}}},
	}}})
	stream := &recordedStream{ctx: asLocal(ctx), request: proto.CloneOf(request)}
	if err := (&gate{node}).startAll(stream); err != nil {
		t.Fatal(err)
	}
	checkPanicked(t, failed(stream.last.GetStarts().GetAnswers()[0].GetResponse().GetFailure()), log, "(*group).startEach")
	for i, g := range node.groups {
		g.barrier = barriers[i]
	}
	if got, err := Query(ctx, client, "a", balance, ""); err != nil || got != 1 {
		t.Errorf("the next query: %d, %v", got, err)
	}
}

// What a caller does with events is the caller's own: such a panic reaches it.
func TestAPanicInTheLoopOverAWatchReachesTheCaller(t *testing.T) {
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
	for range node.Client().Watch(ctx, "d", Position{}) {
		panic("as wanted")
	}
	t.Error("the watch has ended without a panic")
}
