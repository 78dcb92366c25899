package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var errCrashed = errors.New("the node has crashed")

// journey uses every kind of operation: parallel activities, a retry, a timer, an event, a child
// that works, a canceled child, a lost race.
func journey() []replay.Definition {
	return []replay.Definition{
		bindUpper(), shout(), waitingChild(),
		work.Bind(func(ctx context.Context, i int) (string, error) {
			if i < 0 {
				<-ctx.Done()
				return "", ctx.Err()
			}
			if replay.ActivityInfo(ctx).Number < 2 {
				return "", errors.New("not at the first attempt")
			}
			return fmt.Sprint(i), nil
		}),
		program("journey", func(ctx *replay.Context, text string) (string, error) {
			one, two := work.Start(ctx, 1), work.Start(ctx, 2)
			both, err := replay.All(ctx, one, two)
			if err != nil {
				return "", err
			}
			winner, err := replay.Race(ctx, work.Start(ctx, -1), ctx.Timer(time.Minute), kid.Start(ctx, "", replay.ChildID("kid")))
			if err != nil {
				return "", err
			}
			event, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			child, err := shoutHandle.Call(ctx, text)
			return fmt.Sprint(both, winner, event, child), err
		}),
	}
}

const journeyOutput = "[1 2] 1wordHOME"

// runJourney starts the journey and repeats its event until both are recorded or the node crashes.
// It returns when the journey has ended or nothing more will happen.
func runJourney(n *node) { runProgramToEnd(n, "journey") }

func runProgramToEnd(n *node, name string) {
	started := n.startMessage(name, "home")
	started.RequestId = "start"
	for n.deliver("j", message(started)).get().Err != nil {
		if isCrashed(n.journal) {
			return
		}
		time.Sleep(time.Second)
	}
	for n.sendWithRequestID("j", "word", "send", "word").get().Err != nil {
		if meta, _ := n.journal.Instance("j"); isCrashed(n.journal) || meta.GetStatus() != journalpb.Status_STATUS_RUNNING {
			break
		}
		time.Sleep(time.Second)
	}
	for {
		changed := n.journal.changes()
		meta, _ := n.journal.Instance("j")
		if meta.GetStatus() != journalpb.Status_STATUS_RUNNING || isCrashed(n.journal) {
			return
		}
		<-changed
	}
}

func isCrashed(j *testJournal) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.isDown != nil && j.isDown()
}

// crashAt makes the journal reject everything after k appends. With received, the node still hears
// that the last one was committed.
func (j *testJournal) crashAt(k int, received bool) {
	j.configure(func(j *testJournal) {
		limit := len(j.log) + k
		j.isDown = func() bool { return len(j.log) >= limit }
		j.check = func(*journalpb.Append) error {
			if j.isDown() {
				return errCrashed
			}
			return nil
		}
		j.afterApply = func(*journalpb.Append) error {
			if len(j.log) == limit && !received {
				return errCrashed
			}
			return nil
		}
	})
}

func (j *testJournal) clearCrash() {
	j.configure(func(j *testJournal) { j.check, j.afterApply, j.isDown = nil, nil, nil })
}

// checkJourney checks the histories of an ended journey.
func checkJourney(t *testing.T, n *node) {
	t.Helper()
	n.wantOutput("j", journeyOutput)
	n.awaitStatus("kid", journalpb.Status_STATUS_CANCELED)
	for _, id := range []string{"j", "kid"} {
		completed := make(map[uint64]int)
		for i, event := range n.events(id) {
			if event.EventId != uint64(i+1) {
				t.Errorf("event %d of %q at place %d", event.EventId, id, i+1)
			}
			if event.SourceEventId != 0 {
				completed[event.SourceEventId]++
			}
		}
		for source, times := range completed {
			if times != 1 {
				t.Errorf("operation %d of %q completed %d times", source, id, times)
			}
		}
	}
	for kind, want := range map[string]int{
		"ActivityScheduled": 3, "ActivityCompleted": 2, "TimerFired": 1, "ExternalEvent": 1,
		"SubOrchestrationScheduled": 2, "SubOrchestrationCompleted": 1, "CancelRequested": 2,
	} {
		if got := n.count("j", kind); got != want {
			t.Errorf("%d events of type %s, want %d: %v", got, kind, want, n.history("j"))
		}
	}
	if open := slices.Collect(n.journal.OpenOperations()); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
}

// appendsOfJourney counts the appends of an undisturbed journey.
func appendsOfJourney(t *testing.T) int {
	appends := 0
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, journey()...)
		runJourney(n)
		checkJourney(t, n)
		waitIdle()
		appends = len(n.journal.committedAppends())
	})
	return appends
}

func TestCrash_AtEveryAppendNextLeaderContinues(t *testing.T) {
	appends := appendsOfJourney(t)
	if appends < 10 {
		t.Fatalf("the journey has only %d appends", appends)
	}
	for k := range appends + 1 {
		for _, received := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%t", k, received), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) { crashAfter(t, k, received) })
			})
		}
	}
}

func crashAfter(t *testing.T, k int, received bool) {
	j := newTestJournal()
	first := lead(t, j, actors.Config{}, journey()...)
	j.crashAt(k, received)
	runJourney(first)
	first.close()
	j.clearCrash()
	second := lead(t, j, actors.Config{}, journey()...)
	runJourney(second)
	waitIdle()
	checkJourney(t, second)
}

// The journey completes although the node crashes after every append.
func TestCrash_AfterEachAppendStillCompletes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		for epochs := 1; ; epochs++ {
			n := lead(t, j, actors.Config{}, journey()...)
			j.crashAt(1, epochs%2 == 0)
			runJourney(n)
			n.close()
			j.clearCrash()
			if meta, _ := j.Instance("j"); meta.GetStatus() == journalpb.Status_STATUS_COMPLETED {
				n.wantOutput("j", journeyOutput)
				return
			}
			if epochs > 200 {
				t.Fatalf("still at %v", n.history("j"))
			}
		}
	})
}

// During recovery a child could end and its parent schedule an activity. Recovery must not add
// that activity a second time.
func TestRecovery_NoDuplicateTasks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var runs atomic.Int32
		code := []replay.Definition{
			kid.Bind(func(ctx *replay.Context, _ string) (string, error) { return "", ctx.Sleep(time.Hour) }),
			program("parent", func(ctx *replay.Context, _ string) (string, error) {
				if _, err := kid.Call(ctx, "", replay.ChildID("a child")); err != nil {
					return "", err
				}
				return work.Call(ctx, 0)
			}),
			work.Bind(func(context.Context, int) (string, error) {
				runs.Add(1)
				time.Sleep(time.Hour)
				return "done", nil
			}),
		}
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, code...)
		first.start("parent", "parent", "").want(nil)
		waitIdle()
		first.close()
		time.Sleep(2 * time.Hour) // the child's timer is due
		j.readDelay = time.Second
		second := lead(t, j, actors.Config{}, code...)
		second.wantOutput("parent", "done")
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}
