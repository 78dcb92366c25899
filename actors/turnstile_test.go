package actors_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
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
