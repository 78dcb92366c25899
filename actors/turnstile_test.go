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

// instancesWaiting returns whose appends are undecided, sorted: two that were woken
// together may come in either order.
func (j *testJournal) instancesWaiting() (ids []string) {
	for _, a := range j.waiting() {
		ids = append(ids, a.Instance)
	}
	slices.Sort(ids)
	return ids
}

func TestTurnsBeyondTheBoundWaitInTheOrderOfArrival(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 2}, collect())
		j.holdAll()
		var started []*reply
		for i := range 6 {
			started = append(started, n.start(fmt.Sprint(i), "collect", "x"))
			idle()
		}
		for i := 0; i < 6; i += 2 {
			if got, want := fmt.Sprint(j.instancesWaiting()), fmt.Sprint([]int{i, i + 1}); got != want {
				t.Fatalf("on their way are %s, want %s", got, want)
			}
			started[i+1].pending()
			if got := n.system.Stats(n.partition); got.TurnsOnTheirWay != 2 || got.TurnsWaiting != 6-i-2 {
				t.Errorf("%d turns are on their way, %d wait", got.TurnsOnTheirWay, got.TurnsWaiting)
			}
			j.letGo(nil)
			started[i].want(nil)
			started[i+1].want(nil)
			idle()
		}
		if stats := n.system.Stats(n.partition); stats.Refusals != 0 || stats.Activations != 0 {
			t.Errorf("refused: %d, replayed: %d", stats.Refusals, stats.Activations)
		}
	})
}

func TestWhatComesWhileAnInstanceWaitsForItsTurnIsTakenInThatTurn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		n.start("a", "collect", "x").want(nil)
		n.start("b", "collect", "xxx").want(nil)
		before := len(j.committed())
		j.holdAll()
		n.send("a", "word", "1")
		idle()
		for i := range 3 {
			n.send("b", "word", fmt.Sprint(i))
			idle()
		}
		j.flow()
		n.wantOutput("b", "0 1 2")
		if appends := len(j.committed()) - before; appends != 2 {
			t.Errorf("%d appends", appends)
		}
	})
}

func TestAnInstanceWithManyTurnsLetsOthersGoFirst(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		n.start("busy", "collect", "xx").want(nil)
		n.start("other", "collect", "xx").want(nil)
		j.holdAll()
		n.send("busy", "word", "1")
		idle()
		n.send("other", "word", "1")
		idle()
		n.send("busy", "word", "2")
		idle()
		j.letGo(nil)
		idle()
		if got := fmt.Sprint(j.instancesWaiting()); got != "[other]" {
			t.Errorf("the next turn is of %s", got)
		}
		j.flow()
		n.wantOutput("busy", "1 2")
	})
}

func TestStalledInstanceKeepsNobodyFromTheirTurns(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n, sent := stallWith(t, newTestJournal(), actors.Config{TurnsMax: 1})
		n.start("q", "parent", "").want(nil)
		sent.pending()
		n.partition.Retry("o") // and stalls again
		idle()
		n.start("r", "parent", "").want(nil)
	})
}

func TestRefusedTurnMakesRoomForTheNext(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		j.holdAll()
		first := n.start("a", "collect", "x")
		idle()
		second := n.start("b", "collect", "x")
		idle()
		j.letGo(errRefused)
		first.want(errRefused)
		j.flow()
		second.want(nil)
	})
}

func TestClosingAnswersThoseWhoWaitForTheirTurn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 1}, collect())
		j.holdAll()
		first := n.start("a", "collect", "x")
		idle()
		second := n.start("b", "collect", "x")
		idle()
		time.AfterFunc(time.Second, j.flow)
		n.partition.Close()
		first.want(nil)
		second.want(actors.ErrStopped)
	})
}

// sleepy sleeps for an hour, or until it gets a word.
func sleepy() replay.Definition {
	return program("sleepy", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, ctx.Timer(time.Hour), word.Subscribe(ctx))
		return fmt.Sprint(winner), err
	})
}

func TestTimersThatAreDueTogetherBringFewInstancesIntoMemory(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const many = 100
		j := newTestJournal()
		n := lead(t, j, actors.Config{TurnsMax: 2, ResidentMax: 1}, sleepy())
		for i := range many {
			n.start(fmt.Sprint(i), "sleepy", "").want(nil)
		}
		idle()
		j.holdAll()
		time.Sleep(2 * time.Hour)
		if got := n.system.Stats(n.partition); got.Live > 5 || got.TimersKept != 1 { // with the idle one
			t.Errorf("%d in memory, timers kept: %d", got.Live, got.TimersKept)
		}
		for _, id := range j.instancesWaiting() {
			if id > "3" { // four may be busy, and that was the order of the timers
				t.Errorf("among the first is %s", id)
			}
		}
		n.send(fmt.Sprint(many-1), "word", "") // before its timer has rung
		idle()
		j.flow()
		for i := range many - 1 {
			n.wantOutput(fmt.Sprint(i), "0")
		}
		n.wantOutput(fmt.Sprint(many-1), "1")
	})
}

func TestStalledInstancesKeepNoTimersBack(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, sleepy(), collect())
		for i := range 10 {
			first.start(fmt.Sprint("lost-", i), "collect", "x").want(nil)
			first.start(fmt.Sprint("s-", i), "sleepy", "").want(nil)
		}
		first.close()
		second := lead(t, j, actors.Config{TurnsMax: 1}, sleepy()) // has no code for the others
		for i := range 10 {
			second.send(fmt.Sprint("lost-", i), "word", "")
		}
		for i := range 10 {
			second.wantOutput(fmt.Sprint("s-", i), "0")
		}
		if second.partition.Stalled("lost-9") == nil {
			t.Error("it is not stalled")
		}
	})
}

func TestTimersThatAreKeptBackKeepNothingElseBack(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		var attempts timeline
		n := lead(t, j, actors.Config{TurnsMax: 1}, sleepy(), call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if attempts.mark(ctx) < 100 {
					return "", errors.New("not yet")
				}
				return "", nil
			}))
		n.start("c", "call", "").want(nil)
		for i := range 5 {
			n.start(fmt.Sprint(i), "sleepy", "").want(nil)
		}
		idle()
		j.holdAll()
		time.Sleep(time.Hour)
		idle()
		before := attempts.count()
		time.Sleep(10 * time.Minute)
		if attempts.count() == before {
			t.Error("an activity is not tried again")
		}
		j.flow()
		n.wantOutput("c", "")
	})
}
