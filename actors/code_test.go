package actors_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// blockHere is what the stacks of blocked code have to show.
func blockHere(release <-chan struct{}) { <-release }

// blocksAfterAWord waits for an event, then blocks outside of durable calls, then makes
// a durable call and logs.
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

// blocksInDefer blocks in a deferred function.
func blocksInDefer(release <-chan struct{}) replay.Definition {
	return program("defers", func(ctx *replay.Context, _ string) (string, error) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			defer blockHere(release)
			return word.Wait(ctx)
		})
		return late.Wait(ctx)
	})
}

var (
	late   = replay.Event[string]("late")
	blocks = replay.Query[string, string]("blocks")
)

func terminate(n *node, id string) *reply {
	return n.deliver(id, actors.Message{Message: replay.Message{Event: &journalpb.Event{
		Body: &journalpb.Event_OrchestrationTerminated{OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: "enough"}},
	}}})
}

// closes fails the test if closing the node takes long.
func (n *node) closes() {
	n.t.Helper()
	begin := time.Now()
	n.close()
	if took := time.Since(begin); took > 2*time.Second {
		n.t.Errorf("closing took %v", took)
	}
}

func (n *node) wantLeftBehind(want int) {
	n.t.Helper()
	if got := n.system.Stats().LeftBehind; got != want {
		n.t.Errorf("%d calls of code are left behind, want %d", got, want)
	}
}

func TestCloseLeavesBlockedCodeBehind(t *testing.T) {
	for name, before := range map[string]time.Duration{"at once": 0, "after the warning": time.Minute} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				release := make(chan struct{})
				j := newTestJournal()
				n := lead(t, j, actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
				n.start("b", "blocks", "").want(nil)
				taken, waiting := n.send("b", "word", "a"), n.send("b", "word", "b")
				time.Sleep(before)
				n.closes()
				taken.want(actors.ErrStopped)
				waiting.want(actors.ErrStopped)
				n.wantLeftBehind(1)
				for _, text := range []string{"left behind", "instance=b", "event_id=3", "blockHere", "code_test.go:"} {
					if !n.log.contains(text) {
						t.Errorf("nothing of %q in the log:\n%s", text, &n.log.text)
					}
				}
				// The next leader meets the same code, and serves others.
				next := lead(t, j, actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
				next.send("b", "word", "c")
				next.start("c", "collect", "x").want(nil)
				next.send("c", "word", "a").want(nil)
				next.wantOutput("c", "a")
				next.closes()

				history := next.history("b")
				close(release)
				time.Sleep(time.Second)
				for _, n := range []*node{n, next} {
					n.wantLeftBehind(0)
					n.wantHistory("b", history...)
					if n.log.contains("the code goes on") {
						t.Error("code that was left behind has logged")
					}
				}
			})
		})
	}
}

func TestBlockedCodeIsWarnedOfRarely(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const warning = "orchestration code is blocked outside of durable calls"
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksAfterAWord(release), bindUpper(), collect())
		n.start("b", "blocks", "").want(nil)
		sent := n.send("b", "word", "a")
		time.Sleep(900 * time.Millisecond)
		if n.log.warns() {
			t.Errorf("warned too early:\n%s", &n.log.text)
		}
		time.Sleep(time.Second)
		for _, text := range []string{warning, "instance=b", "event_id=3", "blockHere", "code_test.go:"} {
			if n.log.count(text) == 0 {
				t.Errorf("nothing of %q in the log:\n%s", text, &n.log.text)
			}
		}
		if got := n.system.Stats(n.partition).Blocked; got != 1 {
			t.Errorf("%d instances are blocked", got)
		}
		time.Sleep(time.Hour)
		if many := n.log.count(warning); many < 2 || many > 8 {
			t.Errorf("%d warnings in an hour", many)
		}
		sent.pending()
		close(release)
		sent.want(nil)
		n.wantOutput("b", "X")
		if got := n.system.Stats(n.partition); got.Blocked != 0 || got.LeftBehind != 0 {
			t.Errorf("blocked %d, left behind %d", got.Blocked, got.LeftBehind)
		}
		if !n.log.contains("blocked code goes on") {
			t.Error("nothing in the log about the end of it")
		}
	})
}

func TestTerminateEndsBlockedInstance(t *testing.T) {
	for name, before := range map[string]time.Duration{"at once": 0, "after the warning": time.Minute} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				release := make(chan struct{})
				n := lead(t, newTestJournal(), actors.Config{InboxMax: 3}, blocksAfterAWord(release), bindUpper())
				n.start("b", "blocks", "").want(nil)
				taken, waiting := n.send("b", "word", "a"), n.send("b", "word", "b")
				time.Sleep(before)
				if before > 0 { // what ends it is taken however many wait
					n.send("b", "word", "c")
					var busy *actors.BusyError
					n.send("b", "word", "d").wantAs(&busy)
				}
				terminate(n, "b").want(nil)
				taken.want(actors.ErrEnded)
				waiting.want(actors.ErrEnded)
				want := []string{"OrchestrationStarted", "ExternalSubscribed", "OrchestrationTerminated"}
				n.wantHistory("b", want...)
				n.wantLeftBehind(1)
				n.send("b", "word", "e").want(actors.ErrEnded)
				close(release)
				time.Sleep(time.Second)
				n.wantLeftBehind(0)
				n.wantHistory("b", want...)
				n.closes()
			})
		})
	}
}

func TestBlockedInstancesDoNotSlowOthers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{TurnsMax: 4}, blocksAfterAWord(release), bindUpper(), collect(), timers([]time.Duration{time.Hour}))
		n.start("t", "timers", "").want(nil)
		const many = 100
		for i := range many {
			n.start(fmt.Sprint("b", i), "blocks", "").want(nil)
			n.send(fmt.Sprint("b", i), "word", "a")
		}
		time.Sleep(2 * time.Second * many / 4)
		if got := n.system.Stats(n.partition); got.Blocked != many || got.TurnsOnTheirWay != 0 {
			t.Fatalf("%d instances are blocked, %d turns on their way", got.Blocked, got.TurnsOnTheirWay)
		}
		begin := time.Now()
		for i := range 100 {
			id := fmt.Sprint("c", i)
			n.start(id, "collect", "x").want(nil)
			n.send(id, "word", "a").want(nil)
			n.wantOutput(id, "a")
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("others took %v", took)
		}
		n.awaitStatus("t", journalpb.Status_STATUS_COMPLETED)
		close(release)
		for i := range many {
			n.wantOutput(fmt.Sprint("b", i), "X")
		}
		n.closes()
	})
}

func TestCodeThatBlocksDuringEvictionIsLeftBehind(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 1}, blocksInDefer(release), collect())
		n.start("d", "defers", "").want(nil)
		idle()
		n.start("c", "collect", "x").want(nil) // evicts the other
		time.Sleep(2 * time.Second)
		n.wantLeftBehind(1)
		if !n.log.contains("blockHere") {
			t.Errorf("no stack in the log:\n%s", &n.log.text)
		}
		close(release)
		time.Sleep(time.Second)
		n.wantLeftBehind(0)
		n.send("d", "late", "a").want(nil)
		n.wantOutput("d", "a")
		n.send("d", "late", "b").want(actors.ErrEnded)
		n.closes()
	})
}

func TestCodeThatBlocksWhileThePartitionClosesIsLeftBehind(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, blocksInDefer(release))
		n.start("d", "defers", "").want(nil)
		n.closes()
		n.wantLeftBehind(1)
		close(release)
		time.Sleep(time.Second)
		n.wantLeftBehind(0)
	})
}

// An instance that is stalled is so whatever its deferred functions do.
func TestStalledInstanceWhoseCodeBlocksInDefer(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, blocksInDefer(release))
		first.start("d", "defers", "").want(nil)
		first.closes()
		second := lead(t, j, actors.Config{}, program("defers", func(ctx *replay.Context, _ string) (string, error) {
			defer blockHere(release)
			return word.Wait(ctx)
		}))
		sent := second.send("d", "late", "a")
		time.Sleep(time.Hour)
		sent.pending()
		if err := second.partition.Stalled("d"); err == nil {
			t.Error("not stalled")
		}
		second.wantLeftBehind(1)
		terminate(second, "d").want(nil)
		sent.want(actors.ErrEnded)
		second.closes()
		close(release)
		time.Sleep(time.Second)
		second.wantLeftBehind(0)
	})
}

func TestQueryThatBlocks(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, collect(), program("asked", func(ctx *replay.Context, _ string) (string, error) {
			if err := blocks.Answer(ctx, func(string) (string, error) { blockHere(release); return "", nil }); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}))
		ask := func(id string) *reply {
			n.start(id, "asked", "").want(nil)
			return n.deliver(id, actors.Message{Query: &actors.Query{Name: "blocks", Input: payload(t, "")}})
		}
		first, second := ask("q"), ask("r")
		time.Sleep(time.Minute)
		first.pending()
		n.start("c", "collect", "x").want(nil)
		if got := n.log.count("blockHere"); got != 2 {
			t.Errorf("%d stacks in the log:\n%s", got, &n.log.text)
		}
		terminate(n, "q").want(nil)
		first.want(actors.ErrEnded)
		second.pending()
		n.closes()
		second.want(actors.ErrStopped)
		close(release)
		time.Sleep(time.Second)
		n.wantLeftBehind(0)
		if n.log.contains("fault in instance") {
			t.Errorf("a fault:\n%s", &n.log.text)
		}
	})
}

// The start is recorded when the first turn is found blocked: everybody can see the instance,
// and end it.
func TestAnInstanceIsRecordedWhoseFirstTurnBlocks(t *testing.T) {
	virtually(t, func(t *testing.T) {
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
		sent.pending()
		n.wantHistory("b", "OrchestrationStarted")
		n.wantLeftBehind(1)
		if got := n.system.Stats(n.partition).Blocked; got != 1 {
			t.Errorf("%d instances are blocked", got)
		}
		terminate(n, "b").want(nil)
		sent.want(actors.ErrEnded)
		n.wantHistory("b", "OrchestrationStarted", "OrchestrationTerminated")
		n.wantLeftBehind(2)

		// One that is terminated before it is found blocked, and one that goes on.
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
		n.wantLeftBehind(0)
		n.closes()
	})
}

// A durable call on a goroutine of the author's in the first turn stalls an instance that is
// there.
func TestAnInstanceIsRecordedWhoseFirstTurnDoesNotFit(t *testing.T) {
	virtually(t, func(t *testing.T) {
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
		time.Sleep(time.Second) // until it has taken its first turn again
		n.wantHistory("s", "OrchestrationStarted")
		var mismatch *replay.Mismatch
		if err := n.partition.Stalled("s"); !errors.As(err, &mismatch) || mismatch.Kind != replay.CalledOutside {
			t.Errorf("stalled by %v; want a call outside of the coroutines", err)
		}
		terminate(n, "s").want(nil)
		n.wantHistory("s", "OrchestrationStarted", "OrchestrationTerminated")
		n.closes()
	})
}
