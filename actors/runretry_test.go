package actors_test

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// retriedChild has a parent and its child, which succeeds in its third attempt.
func retriedChild(childID string) []replay.Definition {
	return []replay.Definition{
		bindUpper(),
		kid.Bind(func(ctx *replay.Context, text string) (string, error) {
			if err := ctx.Sleep(time.Second); err != nil {
				return "", err
			}
			if ctx.Attempt() < 3 {
				return "", fmt.Errorf("attempt %d", ctx.Attempt())
			}
			return text, nil
		}),
		program("parent", func(ctx *replay.Context, text string) (string, error) {
			policy := replay.Retry(replay.RetryPolicy{MaxAttempts: 3, InitialInterval: time.Minute})
			return kid.Call(ctx, text, replay.ChildID(childID), policy)
		}),
	}
}

// checkRetried checks the histories of a child after three attempts.
func checkRetried(t *testing.T, parent, child *node, id string) {
	t.Helper()
	parent.wantOutput("j", "home")
	for kind, want := range map[string]int{"SubOrchestrationScheduled": 1, "SubOrchestrationCompleted": 1, "SubOrchestrationFailed": 0} {
		if got := parent.count("j", kind); got != want {
			t.Errorf("the parent has %d events of type %s, want %d", got, kind, want)
		}
	}
	for execution := uint64(1); execution <= 3; execution++ {
		var events []*journalpb.Event
		for event, err := range child.journal.Machine.Events(id, execution, 1) {
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, event)
		}
		started, last := events[0].GetOrchestrationStarted(), events[len(events)-1]
		if started.Attempt != uint32(execution-1) || started.Retry.GetMaxAttempts() != 3 {
			t.Errorf("execution %d began with %v", execution, started)
		}
		if retried := last.GetOrchestrationContinuedAsNew().GetRetried(); retried.GetMessage() != fmt.Sprintf("attempt %d", execution) && execution < 3 {
			t.Errorf("execution %d ended with %s", execution, engine.Describe(last))
		}
	}
}

func TestRunRetry_CrashAtEveryAppend(t *testing.T) {
	appends := 0
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, retriedChild("kid")...)
		runProgramToEnd(n, "parent")
		checkRetried(t, n, n, "kid")
		appends = len(n.journal.committedAppends())
	})
	if appends < 8 {
		t.Fatalf("%d appends", appends)
	}
	for k := range appends + 1 {
		for _, received := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%t", k, received), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					j := newTestJournal()
					first := lead(t, j, actors.Config{}, retriedChild("kid")...)
					j.crashAt(k, received)
					runProgramToEnd(first, "parent")
					first.close()
					j.clearCrash()
					second := lead(t, j, actors.Config{}, retriedChild("kid")...)
					runProgramToEnd(second, "parent")
					checkRetried(t, second, second, "kid")
				})
			})
		}
	}
}

// The child is in another partition, and both get new leaders in each backoff.
func TestRunRetry_ChildInOtherPartition(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		p := newPartitionPair(t, retriedChild("far")...)
		p.near.start("j", "parent", "home").want(nil)
		for range 3 {
			time.Sleep(30 * time.Second)
			p.nextLeader(p.far, 1)
			p.nextLeader(p.near, 0)
		}
		p.near.awaitStatus("j", journalpb.Status_STATUS_COMPLETED)
		checkRetried(t, p.near, p.far, "far")
	})
}

// While a member does not know the policy, no child is scheduled with one. The step is repeated
// until all members know it.
func TestRunRetry_RejectedByCheckOfRunOptions(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		registry, err := engine.NewRegistry(append(retriedChild("kid"), program("plain", func(ctx *replay.Context, text string) (string, error) {
			return kid.Call(ctx, text, replay.ChildID("plain kid"))
		}))...)
		if err != nil {
			t.Fatal(err)
		}
		var refusing atomic.Bool
		refusing.Store(true)
		errRejected := errors.New("an older member")
		n := &node{t: t, journal: newTestJournal(), log: new(logBuffer)}
		n.system = actors.NewSystem(actors.Config{Registry: registry, Logger: slog.New(slog.NewTextHandler(n.log, nil))})
		n.partition = n.system.LeadPartition(t.Context(), actors.PartitionConfig{CheckRunOptions: func() error {
			if refusing.Load() {
				return errRejected
			}
			return nil
		}}, n.journal, n.journal.newEpoch(t))
		t.Cleanup(n.close)
		n.start("j", "parent", "home").want(errRejected)
		if _, exists := n.journal.Instance("j"); exists {
			t.Error("the start was recorded")
		}
		n.start("plain", "plain", "home").want(nil)
		if err := n.failure("plain"); err == nil {
			t.Error("the child without a policy completed")
		}
		refusing.Store(false)
		n.start("j", "parent", "home").want(nil)
		checkRetried(t, n, n, "kid")
	})
}
