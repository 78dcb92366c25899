package actors_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// timers sets as many timers as its input has letters, of random lengths.
func timers(lengths []time.Duration) replay.Definition {
	return program("timers", func(ctx *replay.Context, _ string) (string, error) {
		var futures []*replay.Future[time.Time]
		for _, d := range lengths {
			futures = append(futures, ctx.Timer(d))
		}
		_, err := replay.All(ctx, futures...)
		return "", err
	})
}

func randomLengths(count int) []time.Duration {
	random := rand.New(rand.NewPCG(1, 2))
	lengths := make([]time.Duration, count)
	for i := range lengths {
		lengths[i] = time.Duration(random.Int64N(int64(24 * time.Hour)))
	}
	return lengths
}

// checkFirings checks that timers fired in the order in which they were due, none too early or
// more than a moment late.
func checkFirings(t *testing.T, events []*journalpb.Event, want int) {
	t.Helper()
	var due []int64
	for _, event := range events {
		fired := event.GetTimerFired()
		if fired == nil {
			continue
		}
		due = append(due, fired.FireAt)
		if late := time.Duration(event.Timestamp - fired.FireAt); late < 0 || late > time.Millisecond {
			t.Fatalf("timer %d fired %v late", event.SourceEventId, late)
		}
	}
	if len(due) != want || !slices.IsSorted(due) {
		t.Fatalf("%d of %d fired, in order: %t", len(due), want, slices.IsSorted(due))
	}
}

func TestTimer_ManyFireWhenDue(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		count := shorttest.Rounds(10_000)
		n := lead(t, newTestJournal(), actors.Config{}, timers(randomLengths(count)))
		n.start("t", "timers", "").want(nil)
		n.wantOutput("t", "")
		checkFirings(t, n.events("t"), count)
	})
}

func TestTimer_SameDueTimeFiresInOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, timers(slices.Repeat([]time.Duration{time.Hour}, 500)))
		n.start("t", "timers", "").want(nil)
		n.wantOutput("t", "")
		var sources []uint64
		for _, event := range n.events("t") {
			if event.GetTimerFired() != nil {
				sources = append(sources, event.SourceEventId)
			}
		}
		if len(sources) != 500 || !slices.IsSorted(sources) {
			t.Errorf("fired: %v", sources)
		}
	})
}

func TestTimer_RescheduledByNextLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		hours := []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour, 4 * time.Hour}
		first := lead(t, j, actors.Config{}, timers(hours))
		first.start("t", "timers", "").want(nil)
		time.Sleep(time.Hour + time.Minute)
		first.close()
		time.Sleep(time.Hour) // the second is due while there is no leader
		start := time.Now()
		second := lead(t, j, actors.Config{}, timers(hours))
		waitIdle()
		if fired := second.count("t", "TimerFired"); fired != 2 {
			t.Errorf("%d have fired", fired)
		}
		second.wantOutput("t", "")
		if elapsed := time.Since(start); elapsed != 2*time.Hour-time.Minute {
			t.Errorf("the others took %v", elapsed)
		}
	})
}

func TestTimer_OverdueFireInDueOrder(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		lengths := randomLengths(100)
		first := lead(t, j, actors.Config{}, timers(lengths))
		first.start("t", "timers", "").want(nil)
		waitIdle()
		first.close()
		time.Sleep(24 * time.Hour)
		second := lead(t, j, actors.Config{}, timers(lengths))
		second.wantOutput("t", "")
		var due []int64
		for _, event := range second.events("t") {
			if fired := event.GetTimerFired(); fired != nil {
				due = append(due, fired.FireAt)
			}
		}
		if len(due) != len(lengths) || !slices.IsSorted(due) {
			t.Errorf("%d of %d fired, in order: %t", len(due), len(lengths), slices.IsSorted(due))
		}
	})
}

func TestTimer_CanceledDoesNotFire(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{},
			program("race", func(ctx *replay.Context, _ string) (string, error) {
				winner, err := replay.Race(ctx, ctx.Timer(time.Hour), word.Subscribe(ctx), ctx.Timer(2*time.Hour))
				if err != nil {
					return "", err
				}
				return fmt.Sprint(winner), ctx.Sleep(3 * time.Hour)
			}))
		n.start("r", "race", "").want(nil)
		n.send("r", "word", "").want(nil)
		n.wantOutput("r", "1")
		n.wantHistory("r", "OrchestrationStarted", "TimerCreated", "ExternalSubscribed", "TimerCreated", "ExternalEvent",
			"CancelRequested of 2", "CancelRequested of 4", "TimerCreated", "TimerFired of 8", "OrchestrationCompleted")
		if appends := len(n.journal.committedAppends()); appends != 3 {
			t.Errorf("%d appends", appends)
		}
	})
}

func TestTimer_EndedInstanceDoesNotFire(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{},
			program("brief", func(ctx *replay.Context, _ string) (string, error) {
				ctx.Timer(time.Hour)
				return word.Wait(ctx)
			}))
		n.start("b", "brief", "").want(nil)
		n.send("b", "word", "a").want(nil)
		n.wantOutput("b", "a")
		time.Sleep(2 * time.Hour)
		if n.log.hasWarnings() {
			t.Errorf("logged: %s", &n.log.text)
		}
	})
}
