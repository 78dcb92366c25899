package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// A codeBlocker is orchestration code that blocks outside of durable calls.
type codeBlocker struct {
	release chan struct{}
	mu      sync.Mutex
	reached int // how often the code has blocked
}

var (
	blockedOrchestration = replay.Orchestration[string, string]("blocked")
	progressQuery        = replay.Query[string, string]("progress")
	renameUpdate         = replay.Update[string, string]("rename")
)

func newCodeBlocker(t *testing.T) *codeBlocker {
	b := &codeBlocker{release: make(chan struct{})}
	t.Cleanup(func() { close(b.release) })
	return b
}

// body waits for a word, and then for the test. What it does after that must have no effect.
func (b *codeBlocker) body(ctx *replay.Context, _ string) (string, error) {
	err := errors.Join(
		progressQuery.Handle(ctx, func(string) (string, error) { return "waits", nil }),
		renameUpdate.Handle(ctx, nil, func(_ *replay.Context, name string) (string, error) { return name, nil }),
	)
	if err != nil {
		return "", err
	}
	if _, err := word.Wait(ctx); err != nil {
		return "", err
	}
	b.mu.Lock()
	b.reached++
	b.mu.Unlock()
	<-b.release
	_, err = double.Call(ctx, 1)
	return "released", err
}

func (b *codeBlocker) timesReached() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reached
}

// block starts an instance whose code blocks, and returns when it does.
func (b *codeBlocker) block(t *testing.T, client *Client, id string) {
	t.Helper()
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, blockedOrchestration, id, ""); err != nil {
		t.Fatal(err)
	}
	before := b.timesReached()
	go func() { _ = Send(ctx, client, id, word, "go") }() // returns when the code goes on
	eventually(t, "the code blocks", func() bool { return b.timesReached() > before })
}

// expectOthersServed calls orchestrations in all partitions.
func expectOthersServed(t *testing.T, client *Client, name string) {
	t.Helper()
	for i := range 2 * testPartitionsDefault {
		if got, err := Call(testContext(t), client, doubled, fmt.Sprintf("%s-%d", name, i), 21); err != nil || got != 42 {
			t.Fatalf("another instance returned %d, %v", got, err)
		}
	}
}

// Each node leads in turn and meets the blocked instance, because the message is repeated.
func TestBlockedInstance_ClusterContinues(t *testing.T) {
	t.Parallel()
	b := newCodeBlocker(t)
	nodes := startPeersWith(t, 3, append(definitions(), blockedOrchestration.Bind(b.body))...)
	client := dialNodes(t, DialConfig{}, nodes...)
	b.block(t, client, "b")
	transfers := 0
	for i := range 6 {
		leader := leaderOfInstance(t, nodes, "b")
		before := b.timesReached()
		err := leader.partitionOf("b").journal.TransferLeadership(testContext(t))
		expectOthersServed(t, client, fmt.Sprint("after-", i))
		if err != nil {
			t.Logf("transfer %d: %v", i, err) // it lost leadership by itself
			continue
		}
		transfers++
		eventually(t, "the next leader meets it", func() bool { return b.timesReached() > before })
	}
	if transfers == 0 {
		t.Fatal("no transfer of leadership succeeded")
	}
	if err := client.Terminate(testContext(t), "b", "it blocks"); err != nil {
		t.Fatal(err)
	}
	status, err := client.Get(testContext(t), "b")
	if err != nil || status.State != Terminated {
		t.Fatalf("%+v, %v", status, err)
	}
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	}
}

func leaderOfInstance(t *testing.T, nodes []*Node, id string) *Node {
	t.Helper()
	var leader *Node
	eventually(t, "a node leads", func() bool {
		for _, node := range nodes {
			if node.partitionOf(id).isLeader() {
				leader = node
				return true
			}
		}
		return false
	})
	return leader
}

// An instance is hung while its code blocks, for readers of the leader.
func TestBlockedInstance_IsHungUntilCodeGoesOn(t *testing.T) {
	release := make(chan struct{})
	node := startNode(t, Config{InMemory: true, HungAfter: 50 * time.Millisecond, Definitions: []replay.Definition{
		blockedOrchestration.Bind(func(ctx *replay.Context, _ string) (string, error) {
			_, err := word.Wait(ctx)
			<-release
			return "released", err
		}),
	}})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, blockedOrchestration, "b", ""); err != nil {
		t.Fatal(err)
	}
	if stack, err := client.Stack(ctx, "b"); err != nil || len(stack) != 1 || stack[0].Call != "EventHandle.Wait" {
		t.Errorf("before it hangs: %+v, %v", stack, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, client, "b", word, "go") }()
	hung := Filter{States: []State{Hung}}
	eventually(t, "the instance is hung", func() bool {
		status, err := client.Get(ctx, "b")
		return err == nil && status.State == Hung
	})
	if page, err := client.List(ctx, hung, "", 0); err != nil || len(page.Instances) != 1 || page.Instances[0].State != Hung {
		t.Errorf("listed %+v, %v", page, err)
	}
	stack, err := client.Stack(ctx, "b")
	if err != nil || len(stack) != 1 || stack[0].Call != "" || !strings.Contains(stack[0].Stack, "TestBlockedInstance_IsHungUntilCodeGoesOn") || stack[0].Since.IsZero() {
		t.Errorf("stack %+v, %v", stack, err)
	}
	close(release)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if status, err := client.Wait(ctx, "b"); err != nil || status.State != Completed {
		t.Errorf("%+v, %v", status, err)
	}
	if n, err := client.Count(ctx, hung); err != nil || n != 0 {
		t.Errorf("%d hung, %v", n, err)
	}
}

func TestBlockedInstance_NodeStops(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*Node) error{
		"close": (*Node).Close,
		"stop":  func(n *Node) error { return n.Stop(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newCodeBlocker(t)
			node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), blockedOrchestration.Bind(b.body))})
			b.block(t, node.Client(), "b")
			if err := stop(node); err != nil {
				t.Error(err)
			}
		})
	}
}

// Callers of a blocked instance wait until their contexts end; other calls are not delayed.
func TestBlockedInstance_CallsWaitForContext(t *testing.T) {
	b := newCodeBlocker(t)
	nodes := startPeersWith(t, 3, append(definitions(), blockedOrchestration.Bind(b.body))...)
	client := dialNodes(t, DialConfig{}, nodes...)
	b.block(t, client, "b")
	count := func(of func(actors.Stats) int) (sum int) {
		for _, node := range nodes {
			var led []*actors.Partition
			for _, g := range node.ledPartitions() {
				led = append(led, g.actorPartition.Load())
			}
			sum += of(node.system.Stats(led...))
		}
		return sum
	}
	var asking sync.WaitGroup
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	for _, via := range []*Client{client, nodes[0].Client(), nodes[1].Client(), nodes[2].Client()} {
		for range 50 {
			asking.Go(func() {
				_, _ = Query(ctx, via, "b", progressQuery, "") // answered only if another node leads meanwhile
			})
			asking.Go(func() {
				_, _ = CallUpdate(ctx, via, "b", renameUpdate, "x")
			})
		}
	}
	eventually(t, "the instance is counted as blocked", func() bool {
		return count(func(s actors.Stats) int { return s.Blocked }) == 1
	})
	expectOthersServed(t, client, "meanwhile")
	eventually(t, "the instance is shown as hung", func() bool { // also by a leader that has met it just now
		status, err := client.Get(testContext(t), "b")
		return err == nil && status.State == Hung
	})
	cancel()
	asking.Wait()
	if err := client.Terminate(testContext(t), "b", "it blocks"); err != nil {
		t.Fatal(err)
	}
	status, err := client.Wait(testContext(t), "b")
	if err != nil || status.State != Terminated {
		t.Errorf("%+v, %v", status, err)
	}
	if count(func(s actors.Stats) int { return s.AbandonedCode }) == 0 {
		t.Error("no code was abandoned")
	}
}

// The history ends where the code was abandoned, whatever that code does later.
func TestBlockedInstance_AbandonedCodeHasNoEffect(t *testing.T) {
	b := &codeBlocker{release: make(chan struct{})}
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), blockedOrchestration.Bind(b.body))})
	b.block(t, node.Client(), "b")
	if err := node.Client().Terminate(testContext(t), "b", "it blocks"); err != nil {
		t.Fatal(err)
	}
	before, err := node.Client().History(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	close(b.release)
	eventually(t, "the code has returned", func() bool { return node.system.Stats().AbandonedCode == 0 })
	if after, err := node.Client().History(testContext(t), "b"); err != nil || after.String() != before.String() {
		t.Errorf("it has appended something: %v, %v; before:\n%v", after, err, before)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}
