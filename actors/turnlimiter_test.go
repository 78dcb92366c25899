package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// undecidedInstances returns the instances of undecided appends, sorted: two that were woken
// together may come in either order.
func (j *testJournal) undecidedInstances() (ids []string) {
	for _, a := range j.undecidedAppends() {
		ids = append(ids, a.Instance)
	}
	slices.Sort(ids)
	return ids
}

func TestTurnLimiter_QueuesInOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 2}, collect())
		j.holdAppends()
		var started []*reply
		for i := range 6 {
			started = append(started, n.start(fmt.Sprint(i), "collect", "x"))
			waitIdle()
		}
		for i := 0; i < 6; i += 2 {
			if got, want := fmt.Sprint(j.undecidedInstances()), fmt.Sprint([]int{i, i + 1}); got != want {
				t.Fatalf("turns in flight: %s, want %s", got, want)
			}
			started[i+1].wantPending()
			if got := n.system.Stats(n.partition); got.TurnsInFlight != 2 || got.TurnsWaiting != 6-i-2 {
				t.Errorf("%d turns in flight, %d wait", got.TurnsInFlight, got.TurnsWaiting)
			}
			j.decideHeld(nil)
			started[i].want(nil)
			started[i+1].want(nil)
			waitIdle()
		}
		if stats := n.system.Stats(n.partition); stats.AppendsRejected != 0 || stats.Activations != 0 {
			t.Errorf("rejected: %d, replayed: %d", stats.AppendsRejected, stats.Activations)
		}
	})
}

func TestTurnLimiter_BatchesWhileWaiting(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		n.start("a", "collect", "x").want(nil)
		n.start("b", "collect", "xxx").want(nil)
		before := len(j.committedAppends())
		j.holdAppends()
		n.send("a", "word", "1")
		waitIdle()
		for i := range 3 {
			n.send("b", "word", fmt.Sprint(i))
			waitIdle()
		}
		j.releaseAppends()
		n.wantOutput("b", "0 1 2")
		if appends := len(j.committedAppends()) - before; appends != 2 {
			t.Errorf("%d appends", appends)
		}
	})
}

func TestTurnLimiter_Fairness(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		n.start("busy", "collect", "xx").want(nil)
		n.start("other", "collect", "xx").want(nil)
		j.holdAppends()
		n.send("busy", "word", "1")
		waitIdle()
		n.send("other", "word", "1")
		waitIdle()
		n.send("busy", "word", "2")
		waitIdle()
		j.decideHeld(nil)
		waitIdle()
		if got := fmt.Sprint(j.undecidedInstances()); got != "[other]" {
			t.Errorf("the next turn is of %s", got)
		}
		j.releaseAppends()
		n.wantOutput("busy", "1 2")
	})
}

func TestTurnLimiter_StalledInstanceReleasesSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, sent := stalledInstanceWith(t, newTestJournal(), actors.Config{TurnsMax: 1})
		n.start("q", "parent", "").want(nil)
		sent.wantPending()
		n.partition.Retry("o") // and stalls again
		waitIdle()
		n.start("r", "parent", "").want(nil)
	})
}

// Blocked instances do not count as busy, so deferred timers fire although the code never returns.
func TestTimersDeferred_ResumedWhenCodeBlocks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{TurnsMax: 1}, blocksAfterAWord(release), bindUpper(), timers([]time.Duration{500 * time.Millisecond}))
		for _, id := range []string{"a", "b"} {
			n.start(id, "blocks", "").want(nil)
		}
		n.start("t", "timers", "").want(nil)
		waitIdle()
		for _, id := range []string{"a", "b"} {
			n.send(id, "word", "")
			waitIdle()
		}
		time.Sleep(600 * time.Millisecond)
		if got := n.system.Stats(n.partition); got.TimersDeferred != 1 {
			t.Fatalf("timers deferred: %d", got.TimersDeferred)
		}
		time.Sleep(10 * time.Second)
		if fired := n.count("t", "TimerFired"); fired != 1 {
			t.Errorf("%d timers have fired", fired)
		}
		close(release)
	})
}

// leadWithWaitingTurn starts two instances of which one may have a turn in flight. The append of
// the first is held, and the second waits.
func leadWithWaitingTurn(t *testing.T) (n *node, first, second *reply) {
	t.Helper()
	j := newTestJournal()
	n = lead(t, j, actors.Config{TurnsMax: 1}, collect())
	j.holdAppends()
	first = n.start("a", "collect", "x")
	waitIdle()
	second = n.start("b", "collect", "x")
	waitIdle()
	return n, first, second
}

func TestTurnLimiter_RejectedTurnReleasesSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, first, second := leadWithWaitingTurn(t)
		n.journal.decideHeld(errRejected)
		first.want(errRejected)
		n.journal.releaseAppends()
		second.want(nil)
	})
}

func TestTurnLimiter_CloseAnswersWaiters(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n, first, second := leadWithWaitingTurn(t)
		time.AfterFunc(time.Second, n.journal.releaseAppends)
		n.partition.Close()
		first.want(nil)
		second.want(actors.ErrStopped)
	})
}

// sleeper sleeps for an hour, or until it gets a word.
func sleeper() replay.Definition {
	return program("sleepy", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, ctx.Timer(time.Hour), word.Subscribe(ctx))
		return fmt.Sprint(winner), err
	})
}

func TestDeferTimers_BoundsLoadedInstances(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const count = 100
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 2, ResidentMax: 1}, sleeper())
		for i := range count {
			n.start(fmt.Sprint(i), "sleepy", "").want(nil)
		}
		waitIdle()
		j.holdAppends()
		time.Sleep(2 * time.Hour)
		if got := n.system.Stats(n.partition); got.Live > 5 || got.TimersDeferred != 1 { // including the idle one
			t.Errorf("%d in memory, timers deferred: %d", got.Live, got.TimersDeferred)
		}
		for _, id := range j.undecidedInstances() {
			if id > "3" { // four may be busy, and that was the order of the timers
				t.Errorf("among the first is %s", id)
			}
		}
		n.send(fmt.Sprint(count-1), "word", "") // before its timer has fired
		waitIdle()
		j.releaseAppends()
		for i := range count - 1 {
			n.wantOutput(fmt.Sprint(i), "0")
		}
		n.wantOutput(fmt.Sprint(count-1), "1")
	})
}

func TestDeferTimers_IgnoresStalledInstances(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, sleeper(), collect())
		for i := range 10 {
			first.start(fmt.Sprint("lost-", i), "collect", "x").want(nil)
			first.start(fmt.Sprint("s-", i), "sleepy", "").want(nil)
		}
		first.close()
		second := lead(t, j, actors.Config{TurnsMax: 1}, sleeper()) // has no code for the others
		for i := range 10 {
			second.send(fmt.Sprint("lost-", i), "word", "")
		}
		for i := range 10 {
			second.wantOutput(fmt.Sprint("s-", i), "0")
		}
		if second.partition.StallReason("lost-9") == nil {
			t.Error("it is not stalled")
		}
	})
}

func TestDeferTimers_DoesNotDeferOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		var attempts attemptLog
		n := lead(t, j, actors.Config{TurnsMax: 1}, sleeper(), call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if attempts.record(ctx) < 100 {
					return "", errors.New("not yet")
				}
				return "", nil
			}))
		n.start("c", "call", "").want(nil)
		for i := range 5 {
			n.start(fmt.Sprint(i), "sleepy", "").want(nil)
		}
		waitIdle()
		j.holdAppends()
		time.Sleep(time.Hour)
		waitIdle()
		before := attempts.count()
		time.Sleep(10 * time.Minute)
		if attempts.count() == before {
			t.Error("an activity is not tried again")
		}
		j.releaseAppends()
		n.wantOutput("c", "")
	})
}
