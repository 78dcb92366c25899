package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// replace starts a collect that terminates an existing run.
func (n *node) replace(id, request string) *reply {
	n.t.Helper()
	started := n.startMessage("collect", "x")
	started.RequestId = request
	m := message(started)
	m.Reuse = actors.ReuseTerminating
	return n.deliver(id, m)
}

// wantReplaced checks the history of a replaced execution, and that the next one collects.
func (n *node) wantReplaced(id string, execution uint64, before ...string) {
	n.t.Helper()
	var types []string
	for event, err := range n.journal.Events(id, execution, 1) {
		if err != nil {
			n.t.Fatal(err)
		}
		types = append(types, event.Type())
	}
	if want := append(before, "OrchestrationTerminated"); !slices.Equal(types, want) {
		n.t.Errorf("the replaced execution has %v, want %v", types, want)
	}
	if meta, _ := n.journal.Instance(id); meta.Execution != execution+1 || meta.FirstExecution != execution+1 {
		n.t.Errorf("execution %d of a run from %d, want %d", meta.Execution, meta.FirstExecution, execution+1)
	}
	n.send(id, "word", "a").want(nil)
	n.wantOutput(id, "a")
}

func TestReplace_RunningInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{ResidentMax: 1}, collect(), bindUpper(), longTimer())
		for i, evicted := range []bool{false, true} {
			id := fmt.Sprint("busy-", i)
			n.start(id, "busy", "").want(nil)
			if evicted {
				n.start("other", "collect", "").want(nil)
			}
			waitIdle()
			answer := n.replace(id, "r").want(nil)
			if answer.FirstExecution != 2 || answer.Attached {
				t.Errorf("%+v", answer)
			}
			if again := n.replace(id, "r").want(nil); again.FirstExecution != 2 || again.Attached {
				t.Errorf("repeated: %+v", again)
			}
			time.Sleep(2 * time.Hour) // the timer of the replaced run does not fire
			n.wantReplaced(id, 1, "OrchestrationStarted", "TimerCreated")
		}
		if answer := n.replace("new", "r").want(nil); answer.FirstExecution != 1 {
			t.Errorf("a new instance: %+v", answer)
		}
		n.send("new", "word", "a").want(nil)
		n.wantOutput("new", "a")
		n.replace("new", "s").want(nil) // it has completed
		n.send("new", "word", "b").want(nil)
		n.wantOutput("new", "b")
	})
}

// longTimer sleeps for an hour.
func longTimer() replay.Definition {
	return program("busy", func(ctx *replay.Context, _ string) (string, error) { return "slept", ctx.Sleep(time.Hour) })
}

// leadWithHeldTurn returns a node with an instance c whose turn is not committed until the journal
// releases appends, so that the next messages to c are one batch. held answers that turn.
func leadWithHeldTurn(t *testing.T) (n *node, held *reply) {
	t.Helper()
	n = lead(t, newTestJournal(), actors.Config{}, collect())
	n.start("c", "collect", "x").want(nil)
	n.journal.holdAppends()
	held = n.send("c", "word", "first")
	waitIdle()
	return n, held
}

func TestReplace_OneBatch(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, held := leadWithHeldTurn(t)
		replaced, twice, later := n.replace("c", "r"), n.replace("c", "r"), n.send("c", "word", "later")
		other := n.replace("c", "s")
		last := n.send("c", "word", "last")
		n.journal.releaseAppends()
		held.want(nil)
		for _, c := range []struct {
			reply *reply
			want  uint64
		}{{replaced, 2}, {twice, 2}, {other, 3}} {
			if a := c.reply.want(nil); a.FirstExecution != c.want || a.Attached {
				t.Errorf("%+v, want execution %d", a, c.want)
			}
		}
		later.want(nil)
		last.want(nil)
		n.wantOutput("c", "last")
	})
}

func TestReplace_StalledInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect(), longTimer())
		first.start("b", "busy", "").want(nil)
		waitIdle()
		first.close()
		second := lead(t, j, actors.Config{}, collect(), program("busy", func(ctx *replay.Context, _ string) (string, error) {
			return word.Wait(ctx)
		}))
		waiting := second.send("b", "word", "x")
		waitIdle()
		if second.partition.StallReason("b") == nil {
			t.Fatal("it is not stalled")
		}
		second.replace("b", "r").want(nil)
		waiting.want(actors.ErrEnded) // it was sent before
		second.wantReplaced("b", 1, "OrchestrationStarted", "TimerCreated")
	})
}

func TestReplace_InstanceThatWaitsForCode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect(), longTimer())
		first.start("b", "busy", "").want(nil)
		waitIdle()
		first.close()
		second := lead(t, j, actors.Config{}, collect())
		second.replace("b", "r").want(nil)
		second.wantReplaced("b", 1, "OrchestrationStarted", "TimerCreated")
	})
}

func TestReplace_BlockedCode(t *testing.T) {
	for name, before := range map[string]time.Duration{"at once": 0, "after the warning": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				release := make(chan struct{})
				n := lead(t, newTestJournal(), actors.Config{}, collect(), blocksAfterAWord(release), bindUpper())
				n.start("b", "blocks", "").want(nil)
				n.send("b", "word", "a")
				time.Sleep(before)
				n.replace("b", "r").want(nil)
				n.wantAbandoned(1)
				close(release)
				time.Sleep(time.Second)
				n.wantAbandoned(0)
				n.closeInTime()
			})
		})
	}
}

// A start that began a run, and is repeated while the run is stalled, does not end it.
func TestReplace_RepetitionDoesNotEndItsOwnRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect())
		first.replace("c", "r").want(nil)
		waitIdle()
		first.close()
		second := lead(t, j, actors.Config{}, program("collect", func(ctx *replay.Context, _ string) (string, error) {
			return "", ctx.Sleep(time.Hour)
		}))
		second.send("c", "word", "x")
		waitIdle()
		if a := second.replace("c", "r").want(nil); a.FirstExecution != 1 || a.Attached {
			t.Errorf("%+v", a)
		}
		if second.partition.StallReason("c") == nil {
			t.Error("it is not stalled any more")
		}
		second.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed")
	})
}

// The node crashes after each append. The caller repeats the start until it is answered.
func TestReplace_RepeatedAfterCrashes(t *testing.T) {
	for k := range 4 {
		for _, received := range []bool{false, true} {
			t.Run(fmt.Sprint(k, received), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					j := newTestJournal()
					first := lead(t, j, actors.Config{}, collect(), longTimer())
					first.start("b", "busy", "").want(nil)
					waitIdle()
					j.crashAt(k, received)
					first.replace("b", "r")
					time.Sleep(time.Minute)
					first.close()
					j.clearCrash()
					second := lead(t, j, actors.Config{}, collect(), longTimer())
					if a := second.replace("b", "r").want(nil); a.FirstExecution != 2 {
						t.Errorf("%+v", a)
					}
					second.wantReplaced("b", 1, "OrchestrationStarted", "TimerCreated")
					if meta, _ := j.Instance("b"); meta.Status != journalpb.Status_STATUS_COMPLETED {
						t.Errorf("status %v", meta.Status)
					}
				})
			})
		}
	}
}

// A repeated start finds its run even if another start has replaced that run before the repetition
// is handled.
func TestReplace_RepetitionAfterAnotherReplacement(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, held := leadWithHeldTurn(t)
		first, other, again := n.replace("c", "r"), n.replace("c", "s"), n.replace("c", "r")
		n.journal.releaseAppends()
		held.want(nil)
		begun := first.want(nil).FirstExecution
		if a := again.want(nil); a.FirstExecution != begun || a.Attached {
			t.Errorf("repeated: %+v, want execution %d", a, begun)
		}
		if a := other.want(nil); a.FirstExecution != begun+1 {
			t.Errorf("the other: %+v, want execution %d", a, begun+1)
		}
		if meta, _ := n.journal.Instance("c"); meta.Execution != begun+1 {
			t.Errorf("execution %d, want %d", meta.Execution, begun+1)
		}
	})
}

// The code of the run that a start has begun is blocked for a while, and the start is repeated.
func TestReplace_RepetitionWhileOwnRunIsBlocked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksAfterAWord(release), bindUpper())
		begin := func() *reply {
			started := n.startMessage("blocks", "x")
			started.RequestId = "r"
			m := message(started)
			m.Reuse = actors.ReuseTerminating
			return n.deliver("b", m)
		}
		begin().want(nil)
		sent := n.send("b", "word", "a")
		time.Sleep(time.Minute)
		again := begin()
		time.Sleep(time.Minute)
		again.wantPending() // it waits for the code
		n.wantAbandoned(0)
		close(release)
		sent.want(nil)
		if a := again.want(nil); a.FirstExecution != 1 || a.Attached {
			t.Errorf("repeated: %+v", a)
		}
		n.wantOutput("b", "X")
		n.closeInTime()
	})
}

func TestReplace_RunningChildIsKept(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect(), waitingChild(), program("parent", func(ctx *replay.Context, text string) (string, error) {
			return kid.Call(ctx, text, replay.ChildID("kid"))
		}))
		n.start("p", "parent", "").want(nil)
		waitIdle()
		n.replace("kid", "r").want(actors.ErrInstanceExists)
	})
}

// A query of an ended instance whose code blocks delays nothing else.
func TestQueryEnded_BlockedCode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, collect(), blocksInQuery(release))
		n.start("q", "asked", "").want(nil)
		n.send("q", "word", "done").want(nil)
		n.wantOutput("q", "done")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, ended := n.partition.QueryEnded(ctx, "q", &actors.Query{Name: "blocks", Input: payload(t, "")})
		if !ended || !errors.Is(a.Err, context.DeadlineExceeded) {
			t.Errorf("%+v, %t", a, ended)
		}
		m := message(n.startMessage("collect", "x"))
		m.Reuse = actors.ReuseEnded
		n.deliver("q", m).want(nil)
		if _, ended := n.partition.QueryEnded(t.Context(), "q", &actors.Query{Name: "blocks"}); ended {
			t.Error("a running instance was replayed")
		}
		if got := n.log.count("replay for a query of an ended instance takes long"); got != 1 {
			t.Errorf("%d warnings", got)
		}
		n.closeInTime()
		close(release)
	})
}
