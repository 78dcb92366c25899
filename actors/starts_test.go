package actors_test

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// startAs starts a collect with a request ID, or attaches.
func (n *node) startAs(id, request string, attach bool) *reply {
	n.t.Helper()
	started := n.startMessage("collect", "x")
	started.RequestId = request
	m := message(started)
	m.Attach = attach
	return n.deliver(id, m)
}

func TestStart_ExistingInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		meet := func(state string) {
			t.Helper()
			n.startAs("c", "", false).want(actors.ErrInstanceExists)
			n.startAs("c", "another", false).want(actors.ErrInstanceExists)
			attached := n.startAs("c", "another", true).want(nil)
			if !attached.Attached || attached.FirstExecution != 1 {
				t.Errorf("attached to a %s one: %+v", state, attached)
			}
			same := n.startAs("c", "first", false).want(nil)
			if same.Attached || same.FirstExecution != 1 {
				t.Errorf("repeated start of a %s one: %+v", state, same)
			}
		}
		n.startAs("c", "first", false).want(nil)
		meet("running")
		n.send("c", "word", "a").want(nil)
		n.wantOutput("c", "a")
		meet("completed")
		n.wantHistory("c", "OrchestrationStarted", "ExternalSubscribed", "ExternalEvent", "OrchestrationCompleted")
	})
}

func TestStart_OneBatch(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAppends()
		lost := n.startAs("c", "lost", false)
		waitIdle()
		// These come in one batch, after the rejection of the one before.
		early := n.send("c", "word", "too early")
		first := n.startAs("c", "first", false)
		same := n.startAs("c", "first", false)
		attached := n.startAs("c", "attached", true)
		other := n.startAs("c", "other", false)
		late := n.send("c", "word", "a")
		tooLate := n.send("c", "word", "b")
		n.journal.decideHeld(errRejected)
		lost.want(errRejected)
		waitIdle()
		for _, r := range []*reply{early, first, same, attached, other, late} {
			r.wantPending()
		}
		n.journal.releaseAppends()
		early.want(actors.ErrNotFound)
		other.want(actors.ErrInstanceExists)
		late.want(nil)
		tooLate.want(actors.ErrEnded)
		for _, r := range []*reply{first, same} {
			if a := r.want(nil); a.Attached || a.FirstExecution != 1 {
				t.Errorf("answer to the first start: %+v", a)
			}
		}
		if a := attached.want(nil); !a.Attached || a.FirstExecution != 1 {
			t.Errorf("answer to the one that attached: %+v", a)
		}
		n.wantOutput("c", "a")
	})
}

func TestStart_BatchSharesRejection(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.holdAppends()
		n.startAs("c", "", false)
		waitIdle()
		replies := []*reply{n.startAs("c", "first", false), n.startAs("c", "first", false), n.startAs("c", "", true)}
		n.journal.decideHeld(errRejected)
		waitIdle()
		n.journal.decideHeld(errRejected)
		for _, r := range replies {
			r.want(errRejected)
		}
		if _, ok := n.journal.Instance("c"); ok {
			t.Error("the instance exists")
		}
	})
}

func TestEvent_UnknownInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.send("c", "word", "a").want(actors.ErrNotFound)
		n.startAs("c", "", false).want(nil)
		n.send("c", "word", "a").want(nil)
		n.send("c", "word", "b").want(actors.ErrEnded)
		if count := n.count("c", "ExternalEvent"); count != 1 {
			t.Errorf("%d events recorded", count)
		}
	})
}

func TestEvent_DuplicateRequestIDRecordedOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect())
		first.start("c", "collect", "xx").want(nil)
		if a := first.sendWithRequestID("c", "word", "r1", "a").want(nil); a.Dropped {
			t.Error("the first was dropped")
		}
		if a := first.sendWithRequestID("c", "word", "r1", "a").want(nil); !a.Dropped {
			t.Error("the second was recorded")
		}
		first.close()
		second := lead(t, j, actors.Config{}, collect())
		if a := second.sendWithRequestID("c", "word", "r1", "a").want(nil); !a.Dropped {
			t.Error("the third was recorded, by another leader")
		}
		second.sendWithRequestID("c", "word", "r2", "b").want(nil)
		second.wantOutput("c", "a b")
	})
}

func TestInbox_FullRejectsExternalMessages(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const limit = 10
		n := lead(t, newTestJournal(), actors.Config{InboxMax: limit + 1}, collect())
		n.journal.holdAppends()
		started := n.start("c", "collect", "xxxxxxxxxx")
		waitIdle()
		replies := sendWords(n, "c", 0, limit)
		n.send("c", "word", "no").want(actors.ErrBusy)
		internal := n.deliver("c", actors.Message{
			Message: engine.Message{Execution: 1, Event: &journalpb.Event{
				SourceEventId: 7,
				Body:          &journalpb.Event_TimerFired{TimerFired: new(journalpb.TimerFired)},
			}},
			Internal: true,
		})
		waitIdle()
		internal.wantPending()
		n.journal.releaseAppends()
		started.want(nil)
		internal.want(nil)
		for _, r := range replies {
			r.want(nil)
		}
		n.wantOutput("c", "0 1 2 3 4 5 6 7 8 9")
	})
}

func TestStartWithoutCode_RecordedAndWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, bindUpper(),
			program("parent", func(ctx *replay.Context, text string) (string, error) {
				return shoutHandle.Call(ctx, text, replay.ChildID("kid"))
			}))
		first.start("p", "parent", "a").want(nil)
		first.awaitStatus("kid", journalpb.Status_STATUS_RUNNING)
		first.wantHistory("kid", "OrchestrationStarted")
		waitIdle()
		shoutCode := session.Code{Name: shoutHandle.Name()}
		if waiting := first.partition.WaitingForCode(); len(waiting) != 1 || waiting[shoutCode] != 1 {
			t.Errorf("%v wait for code", waiting)
		}
		first.close()

		second := lead(t, j, actors.Config{}, bindUpper(), shout(),
			program("parent", func(ctx *replay.Context, text string) (string, error) {
				return shoutHandle.Call(ctx, text, replay.ChildID("kid"))
			}))
		second.wantOutput("p", "A")
		if waiting := second.partition.WaitingForCode(); len(waiting) > 0 {
			t.Errorf("%v wait for code that is there", waiting)
		}
	})
}

// An instance waits for code from its first message until it ends.
func TestWaitingForCode_Counts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, collect())
		for _, id := range []string{"a", "b", "c"} {
			first.startAs(id, "", false).want(nil)
		}
		first.close()

		second := lead(t, j, actors.Config{})
		count := func(want int) {
			t.Helper()
			waitIdle()
			if got := second.partition.WaitingForCode()[session.Code{Name: "collect"}]; got != want {
				t.Errorf("%d wait for code; want %d", got, want)
			}
		}
		count(0)
		second.send("a", "word", "x")
		second.send("b", "word", "x")
		second.send("b", "word", "y")
		count(2)
		second.partition.Retry("a")
		count(2)
		terminate(second, "b").want(nil)
		count(1)
		second.close()
		count(0)
	})
}

func TestStartWithoutCode_BatchWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{})
		j.holdAppends()
		first.startAs("c", "lost", false)
		waitIdle()
		started, sent := first.startAs("c", "", false), first.send("c", "word", "a")
		j.decideHeld(errRejected)
		waitIdle()
		j.releaseAppends()
		started.want(nil)
		waitIdle()
		sent.wantPending()
		var noCode *replay.NotRegisteredError
		if err := first.partition.StallReason("c"); !errors.As(err, &noCode) || noCode.Name != "collect" {
			t.Errorf("stalled because of %v", err)
		}
		first.wantHistory("c", "OrchestrationStarted")
		first.close()
		sent.want(actors.ErrStopped)

		second := lead(t, j, actors.Config{}, collect())
		second.send("c", "word", "b").want(nil)
		second.wantOutput("c", "b")
	})
}

// No node has code when the children are recorded, with an event for one of them. The first node
// that has code, only under versions, chooses the version.
func TestStartWithoutCode_VersionFromFirstNode(t *testing.T) {
	parent := func(name string) replay.Definition {
		return program(name, func(ctx *replay.Context, id string) (string, error) {
			if name == "chains" {
				return "", kid.Chain(ctx, "x", replay.ChildID(id))
			}
			return kid.Call(ctx, "x", replay.ChildID(id))
		})
	}
	bound := func(version string) replay.Definition {
		return kid.Bind(func(ctx *replay.Context, text string) (string, error) {
			got, err := word.Wait(ctx)
			return text + got + ctx.Version(), err
		}, replay.Version(version))
	}
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := leadWithIncarnations(t, j, actors.Config{}, parent("parent"), parent("chains"))
		first.start("p", "parent", "child").want(nil)
		first.start("q", "chains", "chained").want(nil)
		first.awaitStatus("child", journalpb.Status_STATUS_RUNNING)
		first.awaitStatus("chained", journalpb.Status_STATUS_RUNNING)
		first.wantHistory("child", "OrchestrationStarted")
		sent := first.send("child", "word", "early")
		waitIdle()
		if got := first.partition.WaitingForCode()[session.Code{Name: kid.Name(), Version: engine.NewestVersion}]; got != 2 {
			t.Errorf("%d wait for code", got)
		}
		first.close()
		_ = sent.get() // it ended with the leadership, unrecorded

		second := leadWithIncarnations(t, j, actors.Config{}, parent("parent"), parent("chains"), bound("1.9"), bound("1.10"))
		waitIdle()
		for _, id := range []string{"child", "chained"} {
			second.wantHistory(id, "OrchestrationStarted", "ExternalSubscribed")
		}
		second.close()

		third := leadWithIncarnations(t, j, actors.Config{}, parent("parent"), parent("chains"), bound("1.10"), bound("2"))
		third.send("child", "word", "!").want(nil)
		third.send("chained", "word", "!").want(nil)
		third.wantOutput("p", "x!1.10")
		third.wantOutput("chained", "x!1.10")
	})
}

// A query in the batch of a start is answered after the first step, which registers the handler.
func TestQuery_WithStartInOneBatch(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("asked", func(ctx *replay.Context, text string) (string, error) {
			if err := replay.Query[string, string]("text").Handle(ctx, func(string) (string, error) { return text, nil }); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}))
		n.start("q", "asked", "first").want(nil)
		n.journal.holdAppends()
		held := n.send("q", "word", "end")
		waitIdle()
		start := message(n.startMessage("asked", "second"))
		start.Reuse = actors.ReuseEnded
		started := n.deliver("q", start)
		asked := n.deliver("q", actors.Message{Query: &actors.Query{Name: "text"}})
		sent := n.send("q", "word", "done")
		n.journal.releaseAppends()
		held.want(nil)
		started.want(nil)
		if answer := asked.want(nil); string(answer.Output.GetData()) != `"second"` {
			t.Errorf("answered %s", answer.Output.GetData())
		}
		sent.want(nil)
		n.wantOutput("q", "done")
	})
}
