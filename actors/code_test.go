package actors_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// blockHere must appear in the stacks of blocked code.
func blockHere(release <-chan struct{}) { <-release }

// blocksAfterAWord waits for an event, then blocks outside of durable calls, then makes a durable
// call and logs.
func blocksAfterAWord(release <-chan struct{}) replay.Definition {
	return program("blocks", func(ctx *replay.Context, _ string) (string, error) {
		if _, err := word.Wait(ctx); err != nil {
			return "", err
		}
		blockHere(release)
		ctx.Log().Warn("the code goes on")
		return upper.Call(ctx, "x")
	})
}

func blocksInDefer(release <-chan struct{}) replay.Definition {
	return program("defers", func(ctx *replay.Context, _ string) (string, error) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			defer blockHere(release)
			return word.Wait(ctx)
		})
		return lateEvent.Wait(ctx)
	})
}

// blocksInQuery returns the first word. Its query blocks.
func blocksInQuery(release <-chan struct{}) replay.Definition {
	return program("asked", func(ctx *replay.Context, _ string) (string, error) {
		if err := blocks.Handle(ctx, func(string) (string, error) { blockHere(release); return "", nil }); err != nil {
			return "", err
		}
		return word.Wait(ctx)
	})
}

var (
	lateEvent = replay.Event[string]("late")
	blocks    = replay.Query[string, string]("blocks")
)

func terminate(n *node, id string) *reply {
	return n.deliver(id, actors.Message{Message: engine.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: "enough"}},
	}}})
}

// closeInTime fails the test if closing the node takes long.
func (n *node) closeInTime() {
	n.t.Helper()
	start := time.Now()
	n.close()
	if elapsed := time.Since(start); elapsed > 2*time.Second {
		n.t.Errorf("closing took %v", elapsed)
	}
}

func (n *node) wantAbandoned(want int) {
	n.t.Helper()
	if got := n.system.Stats().AbandonedCode; got != want {
		n.t.Errorf("%d calls of code are abandoned, want %d", got, want)
	}
}

func TestBlockedCode_AbandonedByClose(t *testing.T) {
	for name, before := range map[string]time.Duration{"at once": 0, "after the warning": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				release := make(chan struct{})
				j := newTestJournal()
				n := lead(t, j, actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
				n.start("b", "blocks", "").want(nil)
				consumed, waiting := n.send("b", "word", "a"), n.send("b", "word", "b")
				time.Sleep(before)
				n.closeInTime()
				consumed.want(actors.ErrStopped)
				waiting.want(actors.ErrStopped)
				n.wantAbandoned(1)
				for _, text := range []string{"was abandoned", "instance=b", "event_id=3", "blockHere", "code_test.go:"} {
					if !n.log.contains(text) {
						t.Errorf("%q was not logged:\n%s", text, &n.log.text)
					}
				}
				// The next leader has the same code, and runs other instances.
				next := lead(t, j, actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
				next.send("b", "word", "c")
				next.start("c", "collect", "x").want(nil)
				next.send("c", "word", "a").want(nil)
				next.wantOutput("c", "a")
				next.closeInTime()

				history := next.history("b")
				close(release)
				time.Sleep(time.Second)
				for _, n := range []*node{n, next} {
					n.wantAbandoned(0)
					n.wantHistory("b", history...)
					if n.log.contains("the code goes on") {
						t.Error("abandoned code has logged")
					}
				}
			})
		})
	}
}

func TestBlockedCode_WarningRateLimited(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const warning = "orchestration code is blocked outside of durable calls"
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
		n.start("b", "blocks", "").want(nil)
		sent := n.send("b", "word", "a")
		time.Sleep(900 * time.Millisecond)
		if n.log.hasWarnings() {
			t.Errorf("warned too early:\n%s", &n.log.text)
		}
		time.Sleep(time.Second)
		for _, text := range []string{warning, "instance=b", "event_id=3", "blockHere", "code_test.go:"} {
			if n.log.count(text) == 0 {
				t.Errorf("%q was not logged:\n%s", text, &n.log.text)
			}
		}
		if got := n.system.Stats(n.partition).Blocked; got != 1 {
			t.Errorf("%d instances are blocked", got)
		}
		time.Sleep(time.Hour)
		if count := n.log.count(warning); count < 2 || count > 8 {
			t.Errorf("%d warnings in an hour", count)
		}
		sent.wantPending()
		close(release)
		sent.want(nil)
		n.wantOutput("b", "X")
		if got := n.system.Stats(n.partition); got.Blocked != 0 || got.AbandonedCode != 0 {
			t.Errorf("blocked %d, abandoned %d", got.Blocked, got.AbandonedCode)
		}
		if !n.log.contains("blocked code resumed") {
			t.Error("the end of the block was not logged")
		}
	})
}

func TestBlockedCode_TerminateEndsInstance(t *testing.T) {
	for name, before := range map[string]time.Duration{"at once": 0, "after the warning": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				release := make(chan struct{})
				n := lead(t, newTestJournal(), actors.Config{InboxMax: 3}, blocksAfterAWord(release), bindUpper())
				n.start("b", "blocks", "").want(nil)
				consumed, waiting := n.send("b", "word", "a"), n.send("b", "word", "b")
				time.Sleep(before)
				if before > 0 { // a termination is taken although the inbox is full
					n.send("b", "word", "c")
					var busy *actors.BusyError
					n.send("b", "word", "d").wantAs(&busy)
				}
				terminate(n, "b").want(nil)
				consumed.want(actors.ErrEnded)
				waiting.want(actors.ErrEnded)
				want := []string{"OrchestrationStarted", "ExternalSubscribed", "OrchestrationTerminated"}
				n.wantHistory("b", want...)
				n.wantAbandoned(1)
				n.send("b", "word", "e").want(actors.ErrEnded)
				close(release)
				time.Sleep(time.Second)
				n.wantAbandoned(0)
				n.wantHistory("b", want...)
				n.closeInTime()
			})
		})
	}
}

func TestBlockedCode_DoesNotSlowOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{TurnsMax: 4}, blocksAfterAWord(release), bindUpper(), collect(), timers([]time.Duration{time.Hour}))
		n.start("t", "timers", "").want(nil)
		const count = 100
		for i := range count {
			n.start(fmt.Sprint("b", i), "blocks", "").want(nil)
			n.send(fmt.Sprint("b", i), "word", "a")
		}
		time.Sleep(2 * time.Second * count / 4)
		if got := n.system.Stats(n.partition); got.Blocked != count || got.TurnsInFlight != 0 {
			t.Fatalf("%d instances are blocked, %d turns in flight", got.Blocked, got.TurnsInFlight)
		}
		start := time.Now()
		for i := range 100 {
			id := fmt.Sprint("c", i)
			n.start(id, "collect", "x").want(nil)
			n.send(id, "word", "a").want(nil)
			n.wantOutput(id, "a")
		}
		if elapsed := time.Since(start); elapsed != 0 {
			t.Errorf("others took %v", elapsed)
		}
		n.awaitStatus("t", journalpb.Status_STATUS_COMPLETED)
		close(release)
		for i := range count {
			n.wantOutput(fmt.Sprint("b", i), "X")
		}
		n.closeInTime()
	})
}

func TestBlockedCode_AbandonedDuringEviction(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 1}, blocksInDefer(release), collect())
		n.start("d", "defers", "").want(nil)
		waitIdle()
		n.start("c", "collect", "x").want(nil) // evicts the other
		time.Sleep(2 * time.Second)
		n.wantAbandoned(1)
		if !n.log.contains("blockHere") {
			t.Errorf("no stack in the log:\n%s", &n.log.text)
		}
		close(release)
		time.Sleep(time.Second)
		n.wantAbandoned(0)
		n.send("d", "late", "a").want(nil)
		n.wantOutput("d", "a")
		n.send("d", "late", "b").want(actors.ErrEnded)
		n.closeInTime()
	})
}

func TestBlockedCode_AbandonedWhileClosing(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksInDefer(release))
		n.start("d", "defers", "").want(nil)
		n.closeInTime()
		n.wantAbandoned(1)
		close(release)
		time.Sleep(time.Second)
		n.wantAbandoned(0)
	})
}

// A fault of the engine ends the instance's coroutines, whose deferred functions may block.
func TestBlockedCode_AbandonedAfterFault(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksInDefer(release))
		n.start("d", "defers", "").want(nil)
		n.journal.configure(func(j *testJournal) { j.check = panicIn("d") })
		var fault *actors.FaultError
		if a := n.send("d", "other", "lost").get(); !errors.As(a.Err, &fault) {
			t.Errorf("answered %v", a.Err)
		}
		n.journal.configure(func(j *testJournal) { j.check = nil })
		time.Sleep(2 * time.Second)
		n.wantAbandoned(1)
		close(release)
		time.Sleep(time.Second)
		n.wantAbandoned(0)
		n.send("d", "late", "a").want(nil)
		n.wantOutput("d", "a")
		n.closeInTime()
	})
}

// An instance stalls even if its deferred functions block.
func TestBlockedCode_StalledInstanceInDefer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, blocksInDefer(release))
		first.start("d", "defers", "").want(nil)
		first.closeInTime()
		second := lead(t, j, actors.Config{}, program("defers", func(ctx *replay.Context, _ string) (string, error) {
			defer blockHere(release)
			return word.Wait(ctx)
		}))
		sent := second.send("d", "late", "a")
		time.Sleep(time.Hour)
		sent.wantPending()
		if err := second.partition.StallReason("d"); err == nil {
			t.Error("not stalled")
		}
		second.wantAbandoned(1)
		terminate(second, "d").want(nil)
		sent.want(actors.ErrEnded)
		second.closeInTime()
		close(release)
		time.Sleep(time.Second)
		second.wantAbandoned(0)
	})
}

func TestBlockedCode_Query(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, collect(), blocksInQuery(release))
		ask := func(id string) *reply {
			n.start(id, "asked", "").want(nil)
			return n.deliver(id, actors.Message{Query: &actors.Query{Name: "blocks", Input: payload(t, "")}})
		}
		first, second := ask("q"), ask("r")
		time.Sleep(time.Minute)
		first.wantPending()
		n.start("c", "collect", "x").want(nil)
		if got := n.log.count("blockHere"); got != 2 {
			t.Errorf("%d stacks in the log:\n%s", got, &n.log.text)
		}
		terminate(n, "q").want(nil)
		first.want(actors.ErrEnded)
		second.wantPending()
		n.closeInTime()
		second.want(actors.ErrStopped)
		close(release)
		time.Sleep(time.Second)
		n.wantAbandoned(0)
		if n.log.contains("fault in instance") {
			t.Errorf("a fault:\n%s", &n.log.text)
		}
	})
}

// The start is recorded when the first turn is found blocked, so that the instance is visible and
// can be ended.
func TestStart_RecordedWhenFirstTurnBlocks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		blocksAtOnce := program("blocks", func(ctx *replay.Context, _ string) (string, error) {
			blockHere(release)
			return word.Wait(ctx)
		})
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, blocksAtOnce, bindUpper())
		started := n.start("b", "blocks", "")
		sent := n.send("b", "word", "a")
		time.Sleep(time.Minute)
		started.want(nil)
		sent.wantPending()
		n.wantHistory("b", "OrchestrationStarted")
		n.wantAbandoned(1)
		if got := n.system.Stats(n.partition).Blocked; got != 1 {
			t.Errorf("%d instances are blocked", got)
		}
		terminate(n, "b").want(nil)
		sent.want(actors.ErrEnded)
		n.wantHistory("b", "OrchestrationStarted", "OrchestrationTerminated")
		n.wantAbandoned(2)

		// One instance is terminated before it is found blocked; another continues.
		started = n.start("c", "blocks", "")
		terminated := terminate(n, "c")
		time.Sleep(time.Minute)
		started.want(nil)
		terminated.want(nil)
		n.wantHistory("c", "OrchestrationStarted", "OrchestrationTerminated")
		n.start("d", "blocks", "").want(nil)
		close(release)
		n.send("d", "word", "a").want(nil)
		n.wantOutput("d", "a")
		time.Sleep(time.Second)
		n.wantAbandoned(0)
		n.closeInTime()
	})
}

// A durable call on a foreign goroutine in the first turn stalls an instance whose start is
// recorded.
func TestStart_RecordedWhenFirstTurnStalls(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("strays", func(ctx *replay.Context, _ string) (string, error) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = upper.Call(ctx, "x")
			}()
			<-done
			return word.Wait(ctx)
		}), bindUpper())
		n.start("s", "strays", "").want(nil)
		time.Sleep(time.Second) // until it has retried its first turn
		n.wantHistory("s", "OrchestrationStarted")
		var mismatch *replay.Mismatch
		if err := n.partition.StallReason("s"); !errors.As(err, &mismatch) || mismatch.Kind != replay.ForeignGoroutine {
			t.Errorf("stalled by %v, want a call on a foreign goroutine", err)
		}
		terminate(n, "s").want(nil)
		n.wantHistory("s", "OrchestrationStarted", "OrchestrationTerminated")
		n.closeInTime()
	})
}
