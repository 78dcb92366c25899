package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	accountOrchestration = replay.Orchestration[int, int]("account")
	depositEvent         = replay.Event[int]("deposit")
	balanceQuery         = replay.Query[string, int]("balance")
)

func accountOrchestrationBody(ctx *replay.Context, sum int) (int, error) {
	err := balanceQuery.Handle(ctx, func(how string) (int, error) {
		switch how {
		case "error":
			return 0, errTest
		case "panic":
			panic("as wanted")
		case "durable":
			return double.Call(ctx, sum)
		}
		return sum, nil
	})
	for err == nil && sum < 100 {
		var n int
		n, err = depositEvent.Wait(ctx)
		sum += n
	}
	return sum, err
}

func TestQuery_RunningInstanceAnswers(t *testing.T) {
	nodes := startPeersWith(t, 3, append(definitions(), accountOrchestration.Bind(accountOrchestrationBody))...)
	ctx, client := testContext(t), nodes[0].Client()
	if _, err := StartRun(ctx, client, accountOrchestration, "a", 1); err != nil {
		t.Fatal(err)
	}
	before, err := client.History(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if got, err := Query(ctx, node.Client(), "a", balanceQuery, ""); err != nil || got != 1 {
			t.Errorf("on %s: %d, %v", node.ID(), got, err)
		}
	}
	if _, err := Query(ctx, client, "a", balanceQuery, "error"); err == nil || !strings.HasSuffix(err.Error(), errTest.Error()) {
		t.Errorf("an answer that fails: %v", err)
	}
	var panicked *replay.PanicError
	for _, how := range []string{"panic", "durable"} {
		if _, err := Query(ctx, client, "a", balanceQuery, how); !errors.As(err, &panicked) {
			t.Errorf("an answer that fails by %s: %v", how, err)
		}
	}
	var none *replay.NotRegisteredError
	if _, err := Query(ctx, client, "a", replay.Query[int, int]("other"), 1); !errors.As(err, &none) || none.Name != "other" {
		t.Errorf("a query without a handler: %v", err)
	}
	if after, err := client.History(ctx, "a"); err != nil || after.String() != before.String() {
		t.Errorf("queries were recorded: %v, %v", after, err)
	}
	if err := Send(ctx, client, "a", depositEvent, 50); err != nil {
		t.Fatal(err)
	}
	if got, err := Query(ctx, client, "a", balanceQuery, ""); err != nil || got != 51 {
		t.Errorf("after an event was acknowledged: %d, %v; want 51", got, err)
	}
	if err := Send(ctx, client, "a", depositEvent, 49); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if got, err := Query(ctx, node.Client(), "a", balanceQuery, ""); err != nil || got != 100 {
			t.Errorf("after the end, on %s: %d, %v; want 100", node.ID(), got, err)
		}
	}
	if _, err := client.Purge(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := Query(ctx, client, "a", balanceQuery, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the purge: %v; want ErrNotFound", err)
	}
	if _, err := Query(ctx, client, "unknown", balanceQuery, ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v; want ErrNotFound", err)
	}
}

func TestStack_WhereCoroutinesWait(t *testing.T) {
	nodes := startPeersWith(t, 3, append(definitions(), accountOrchestration.Bind(accountOrchestrationBody))...)
	ctx, client := testContext(t), dialNodes(t, DialConfig{}, nodes...)
	if _, err := StartRun(ctx, client, accountOrchestration, "a", 1); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, client, "a", depositEvent, 2); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		stack, err := client.Stack(ctx, "a")
		if err != nil || len(stack) != 1 {
			t.Fatalf("%s: %+v, %v", when, stack, err)
		}
		c := stack[0]
		want := replay.AwaitedOperation{EventID: 4, Type: "ExternalSubscribed", Name: "deposit"}
		if c.Call != "EventHandle.Wait" || len(c.WaitsFor) != 1 || c.WaitsFor[0] != want || !strings.HasPrefix(c.Source, "cluster/query_test.go:") {
			t.Errorf("%s: %+v", when, c)
		}
		if pending, err := client.Pending(ctx, "a"); err != nil || len(pending) != 1 || !pending[0].Since.Equal(c.Since) {
			t.Errorf("%s: since %v, pending %+v, %v", when, c.Since, pending, err)
		}
	}
	check("live")
	if err := leaderOfInstance(t, nodes, "a").partitionOf("a").journal.TransferLeadership(ctx); err != nil {
		t.Logf("transfer: %v", err) // leadership was lost by itself
	}
	check("on the next leader")
	if _, err := client.Stack(ctx, "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v", err)
	}
	if err := client.Terminate(ctx, "a", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Stack(ctx, "a"); !errors.Is(err, ErrEnded) {
		t.Errorf("ended instance: %v", err)
	}
}
