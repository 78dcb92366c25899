package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// These tests run in virtual time: it advances when every goroutine waits.

var (
	retentionChild  = replay.Orchestration[string, string]("kept-child")
	retentionParent = replay.Orchestration[string, string]("kept-parent")
)

// retentionParentBody abandons a child that keeps running, or waits for one.
func retentionParentBody(ctx *replay.Context, how string) (string, error) {
	child := retentionChild.Start(ctx, "", replay.ChildID(ctx.InstanceID()+"-child"), replay.OnParentClose(replay.AbandonChild))
	if how == "leaves" {
		return "", ctx.Sleep(time.Millisecond)
	}
	return child.Await(ctx)
}

func startWithRetention(t *testing.T, retention Retention, dir string) *Node {
	t.Helper()
	node, err := Start(context.Background(), Config{
		Dir: dir, InMemory: dir == "", Settings: Settings{Retention: retention}, Logger: testLogger(),
		Definitions: append(definitions(), retentionChild.Bind(waiterBody), retentionParent.Bind(retentionParentBody)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

func expectRetained(t *testing.T, node *Node, when string, want map[string]bool) {
	t.Helper()
	for id, retained := range want {
		_, err := node.Client().Get(context.Background(), id)
		if retained && err != nil || !retained && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %s: %v; want it kept: %t", when, id, err, retained)
		}
	}
}

func TestRetention_PeriodDependsOnEndState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startWithRetention(t, Retention{Completed: 10 * time.Second, Failed: 45 * time.Second, Canceled: 25 * time.Second}, "")
		ctx, client := t.Context(), node.Client()
		for _, id := range []string{"canceled", "terminated", "running"} {
			if _, err := StartRun(ctx, client, waiter, id, ""); err != nil {
				t.Fatal(err)
			}
		}
		_, completed := Call(ctx, client, doubled, "completed", 1)
		_, failed := Call(ctx, client, failingOrchestration, "failed", "")
		if err := errors.Join(completed, client.Cancel(ctx, "canceled", ""), client.Terminate(ctx, "terminated", "")); err != nil || failed == nil {
			t.Fatal(err, failed)
		}
		for _, c := range []struct {
			wait                        time.Duration
			completed, canceled, failed bool
		}{
			{9 * time.Second, true, true, true},
			{13 * time.Second, false, true, true}, // sweeps are 10 s apart
			{18 * time.Second, false, false, true},
			{20 * time.Second, false, false, false},
			{time.Minute, false, false, false},
		} {
			time.Sleep(c.wait)
			expectRetained(t, node, fmt.Sprintf("after another %v", c.wait), map[string]bool{
				"completed": c.completed, "canceled": c.canceled, "failed": c.failed, "terminated": true, "running": true,
			})
		}
		if _, err := Call(ctx, client, doubled, "completed", 2); err != nil {
			t.Errorf("the ID is not free again: %v", err)
		}
	})
}

func TestRetention_KeepsReferencedInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startWithRetention(t, Retention{Completed: 5 * time.Second, Canceled: 5 * time.Second}, "")
		ctx, client := t.Context(), node.Client()
		if _, err := Call(ctx, client, retentionParent, "leaving", "leaves"); err != nil {
			t.Fatal(err)
		}
		if _, err := StartRun(ctx, client, retentionParent, "waiting", ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		// A suspended parent still records its child's end.
		if err := errors.Join(client.Suspend(ctx, "waiting", ""), Send(ctx, client, "waiting-child", word, "")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		expectRetained(t, node, "while a child runs", map[string]bool{"leaving": true, "leaving-child": true, "waiting": true, "waiting-child": false})
		if n, err := client.Purge(ctx, "leaving", "waiting"); err != nil || n != 0 {
			t.Errorf("purged %d that are needed, %v", n, err)
		}
		if err := errors.Join(Send(ctx, client, "leaving-child", word, ""), client.Resume(ctx, "waiting", "")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		expectRetained(t, node, "after all have ended", map[string]bool{"leaving": false, "leaving-child": false, "waiting": false})
	})
}

// A child whose end its stalled parent has not recorded would be started again.
func TestRetention_KeepsChildUntilParentRecordsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		node := startWithRetention(t, Retention{}, dir)
		ctx := t.Context()
		if _, err := StartRun(ctx, node.Client(), retentionParent, "p", ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		changeSettings(t, node.Client(), func(s *Settings) { s.Retention.Completed = time.Second })
		if err := node.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		node, err := Start(ctx, Config{
			Dir: dir, Logger: testLogger(),
			Definitions: append(definitions(), retentionChild.Bind(waiterBody)), // without the parent's code
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := Send(ctx, node.Client(), "p-child", word, "late"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		expectRetained(t, node, "while the parent waits for code", map[string]bool{"p": true, "p-child": true})
		if n, err := node.Client().Purge(ctx, "p-child"); err != nil || n != 0 {
			t.Errorf("purged %d, %v", n, err)
		}
		if err := node.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		node = startWithRetention(t, Retention{}, dir)
		if status, err := node.Client().Wait(ctx, "p"); err != nil || status.State != Completed {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

func TestRetention_PurgesInBatchesAcrossLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const instances = 1050 // more than are scanned without a pause
		dir := t.TempDir()
		node := startWithRetention(t, Retention{}, dir)
		ctx := t.Context()
		ends := make(chan error)
		for i := range instances {
			go func() {
				_, err := Call(ctx, node.Client(), failingOrchestration, fmt.Sprintf("f-%d", i), "")
				ends <- err
			}()
		}
		for range instances {
			if err := <-ends; !errors.As(err, new(*RunError)) {
				t.Fatal(err)
			}
		}
		changeSettings(t, node.Client(), func(s *Settings) { s.Retention.Failed = time.Second })
		if err := node.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		for rounds := 0; ; rounds++ {
			node := startWithRetention(t, Retention{}, dir)
			time.Sleep(1030 * time.Millisecond) // some, and not all
			left, err := node.Client().Count(ctx, Filter{})
			if err != nil {
				t.Fatal(err)
			}
			if err := node.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if left == 0 {
				if rounds == 0 {
					t.Error("all were purged before the leader changed")
				}
				return
			}
		}
	})
}
