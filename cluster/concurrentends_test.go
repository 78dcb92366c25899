package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// firstEndWins ends with the first of: an answer, a word, a cancellation.
var firstEndWins = replay.Orchestration[string, string]("contested")

func firstEndWinsBody(ctx *replay.Context, _ string) (string, error) {
	if err := raiseUpdate.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) { return n, nil }); err != nil {
		return "", err
	}
	asked, received := asyncActivity.Start(ctx, ctx.InstanceID()), word.Subscribe(ctx)
	winner, err := replay.Race(ctx, asked, received)
	if err != nil {
		return "", err
	}
	return []string{"answered", "told"}[winner], nil
}

// tokensByInstance keeps the token of each instance's activity.
type tokensByInstance struct{ tokens sync.Map }

func (t *tokensByInstance) definitions() []replay.Definition {
	return []replay.Definition{firstEndWins.Bind(firstEndWinsBody), asyncActivity.Bind(func(ctx context.Context, id string) (string, error) {
		t.tokens.Store(id, replay.ActivityInfo(ctx).Token())
		return "", replay.ErrResultPending
	})}
}

// endConcurrently tries all ways to end an instance, in an order that depends on from, and returns
// errors other than ErrEnded.
func (t *tokensByInstance) endConcurrently(ctx context.Context, client *Client, id string, from int) (unexpected []error) {
	token, _ := t.tokens.Load(id)
	attacks := []func() error{
		func() error { return Send(ctx, client, id, word, "") },
		func() error { return CompleteActivity(ctx, client, token.(string), "yes") },
		func() error { return client.Cancel(ctx, id, "storm") },
		func() error { return client.Suspend(ctx, id, "storm") },
		func() error { return FailActivity(ctx, client, token.(string), replay.NonRetryable(errTest)) },
		func() error { return client.Resume(ctx, id, "storm") },
		func() error { return errOf(CallUpdate(ctx, client, id, raiseUpdate, from)) },
		func() error { return client.Terminate(ctx, id, "storm") },
	}
	for i := range attacks {
		err := attacks[(from+i)%len(attacks)]()
		if err != nil && !errors.Is(err, ErrEnded) && !errors.Is(err, ErrActivityClosed) && !errors.Is(err, ErrUpdateAborted) {
			unexpected = append(unexpected, fmt.Errorf("%s from %d: %w", id, (from+i)%len(attacks), err))
		}
	}
	return unexpected
}

// However an instance ends, and whichever node leads, it has one terminal event, which is the
// last.
func TestConcurrentEnds_OneTerminalEventIsLast(t *testing.T) {
	t.Parallel()
	const instances = 24
	d := new(tokensByInstance)
	nodes := startPeersWith(t, 3, d.definitions()...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	id := func(i int) string { return fmt.Sprintf("c-%d", i) }
	for i := range instances {
		if _, err := StartRun(ctx, others[0].Client(), firstEndWins, id(i), ""); err != nil {
			t.Fatal(err)
		}
	}
	for i := range instances {
		eventually(t, "it has asked", func() bool { _, asked := d.tokens.Load(id(i)); return asked })
	}
	storm := func() {
		var attackers sync.WaitGroup
		for i := range instances {
			for from, node := range others {
				attackers.Go(func() {
					for _, err := range d.endConcurrently(ctx, node.Client(), id(i), i+3*from) {
						t.Error(err)
					}
				})
			}
		}
		attackers.Wait()
	}
	closed := make(chan error)
	go func() {
		for recorded, err := range others[0].Client().Watch(ctx, id(instances/2), history.Position{Execution: 1, EventID: 5}) {
			if err == nil && recorded.EventID > 0 {
				break // the storm has begun
			}
		}
		closed <- leader.Close()
	}()
	storm()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	lengths := make(map[string]int)
	for i := range instances {
		lengths[id(i)] = expectOneEnd(t, others[0].Client(), id(i))
	}
	storm()
	for i := range instances {
		if length := expectOneEnd(t, others[1].Client(), id(i)); length != lengths[id(i)] {
			t.Errorf("%s has %d events after its end was %d", id(i), length, lengths[id(i)])
		}
	}
	expectSameHistories(t, others)
}

// expectOneEnd checks that only the last event of an instance is terminal. It returns the number of
// events.
func expectOneEnd(t *testing.T, client *Client, id string) int {
	t.Helper()
	history, err := client.History(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for i, event := range history.Events {
		if last := i == len(history.Events)-1; event.Type.EndsExecution() != last || event.EventID != uint64(i+1) {
			t.Errorf("%s, event %d:\n%s", id, i+1, history)
		}
	}
	return len(history.Events)
}
