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

// journey uses every kind of operation: activities side by side, a retry, a
// timer, an event, a child that works, one that is given up, a lost race.
func journey() []replay.Definition {
	return []replay.Definition{
		bindUpper(), shout(), patient(),
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

const arrived = "[1 2] 1wordHOME"

// drive starts the journey and sends its event until the node says that both
// are recorded, or it crashes. It returns when the journey has ended or nothing
// will happen any more.
func drive(n *node) { driveProgram(n, "journey") }

func driveProgram(n *node, name string) {
	started := n.startMessage(name, "home")
	started.RequestId = "start"
	for n.deliver("j", message(started)).get().Err != nil {
		if crashed(n.journal) {
			return
		}
		time.Sleep(time.Second)
	}
	for n.sendOnce("j", "word", "send", "word").get().Err != nil {
		if known, _ := n.journal.Instance("j"); crashed(n.journal) || known.GetStatus() != journalpb.Status_STATUS_RUNNING {
			break
		}
		time.Sleep(time.Second)
	}
	for {
		changed := n.journal.onChange()
		known, _ := n.journal.Instance("j")
		if known.GetStatus() != journalpb.Status_STATUS_RUNNING || crashed(n.journal) {
			return
		}
		<-changed
	}
}

func crashed(j *testJournal) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dead != nil && j.dead()
}

// crashAt makes the journal refuse everything after k appends. With heard, the
// node still hears that the last one was committed.
func (j *testJournal) crashAt(k int, heard bool) {
	j.set(func(j *testJournal) {
		limit := len(j.log) + k
		j.dead = func() bool { return len(j.log) >= limit }
		j.judge = func(*journalpb.Append) error {
			if j.dead() {
				return errCrashed
			}
			return nil
		}
		j.after = func(*journalpb.Append) error {
			if len(j.log) == limit && !heard {
				return errCrashed
			}
			return nil
		}
	})
}

func (j *testJournal) mend() {
	j.set(func(j *testJournal) { j.judge, j.after, j.dead = nil, nil, nil })
}

// checkJourney looks at the histories of a journey that has ended.
func checkJourney(t *testing.T, n *node) {
	t.Helper()
	n.wantOutput("j", arrived)
	n.awaitStatus("kid", journalpb.Status_STATUS_CANCELLED)
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
	if open := slices.Collect(n.journal.Open()); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
}

// appendsOfJourney counts the appends of a journey that nothing disturbs.
func appendsOfJourney(t *testing.T) int {
	appends := 0
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, journey()...)
		drive(n)
		checkJourney(t, n)
		idle()
		appends = len(n.journal.committed())
	})
	return appends
}

func TestNextLeaderGoesOnAfterACrashAtEveryAppend(t *testing.T) {
	appends := appendsOfJourney(t)
	if appends < 10 {
		t.Fatalf("the journey has only %d appends", appends)
	}
	for k := range appends + 1 {
		for _, heard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/%t", k, heard), func(t *testing.T) {
				virtually(t, func(t *testing.T) { crashOnce(t, k, heard) })
			})
		}
	}
}

func crashOnce(t *testing.T, k int, heard bool) {
	j := newTestJournal()
	first := lead(t, j, actors.Config{}, journey()...)
	j.crashAt(k, heard)
	drive(first)
	first.close()
	j.mend()
	second := lead(t, j, actors.Config{}, journey()...)
	drive(second)
	idle()
	checkJourney(t, second)
}

// A node that crashes after every single append still gets there.
func TestCrashAfterEveryAppendStillArrives(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		for reigns := 1; ; reigns++ {
			n := lead(t, j, actors.Config{}, journey()...)
			j.crashAt(1, reigns%2 == 0)
			drive(n)
			n.close()
			j.mend()
			if known, _ := j.Instance("j"); known.GetStatus() == journalpb.Status_STATUS_COMPLETED {
				n.wantOutput("j", arrived)
				return
			}
			if reigns > 200 {
				t.Fatalf("still at %v", n.history("j"))
			}
		}
	})
}

// While a new leader takes up what is open, a child could end, its parent could
// schedule an activity, and that would be taken up besides being started.
func TestNothingIsTakenUpTwice(t *testing.T) {
	virtually(t, func(t *testing.T) {
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
		idle()
		first.close()
		time.Sleep(2 * time.Hour) // the child's timer is due
		j.readPace = time.Second
		second := lead(t, j, actors.Config{}, code...)
		second.wantOutput("parent", "done")
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}
