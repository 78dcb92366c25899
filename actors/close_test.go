package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/replay"
)

func TestCloseAnswersWhatWaits(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "xxx").want(nil)
		n.journal.holdAll()
		inFlight := n.send("c", "word", "a")
		idle()
		waiting := sendWords(n, "c", 0, 3)
		closed := make(chan struct{})
		go func() {
			n.close()
			close(closed)
		}()
		idle()
		select {
		case <-closed:
			t.Fatal("closed while an append was undecided")
		default:
		}
		n.send("c", "word", "late").want(actors.ErrStopped)
		n.send("other", "word", "late").want(actors.ErrStopped)
		inFlight.pending()
		n.journal.letGo(nil)
		<-closed
		inFlight.want(nil)
		for _, r := range waiting {
			r.want(actors.ErrStopped)
		}
		n.send("c", "word", "later").want(actors.ErrStopped)
		n.close() // once more
	})
}

func TestClosedByTheEndOfAReign(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "x").want(nil)
		n.journal.reign(t) // somebody else's
		var stale *state.StaleEpochError
		a := n.send("c", "word", "a").get()
		if !errors.As(a.Err, &stale) {
			t.Errorf("answered %v", a.Err)
		}
		n.partition.Close()
		n.partition.Close()
	})
}

// endsSoon waits until there are no more goroutines than before.
func endsSoon(t *testing.T, before int) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(limit) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

func TestNoGoroutineIsLeftAfterClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		begun := make(chan struct{}, 100)
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 20, ResidentMax: 10}, collect(), call(), timers([]time.Duration{time.Hour}),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return "", ctx.Err()
			}))
		for i := range 50 {
			n.start(fmt.Sprint("call", i), "call", "").want(nil)
			n.start(fmt.Sprint("collect", i), "collect", "x").want(nil)
			n.start(fmt.Sprint("timers", i), "timers", "").want(nil)
		}
		for range 20 {
			<-begun
		}
		n.close()
		n.close()
	}
	endsSoon(t, before)
}

func TestActivityThatDoesNotHeedItsContextIsLeftBehind(t *testing.T) {
	virtually(t, func(t *testing.T) {
		leave := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{Grace: 5 * time.Second}, call(),
			work.Bind(func(context.Context, int) (string, error) { <-leave; return "late", nil }))
		n.start("c", "call", "").want(nil)
		idle()
		begin := time.Now()
		n.partition.Close()
		if passed := time.Since(begin); passed != 0 {
			t.Errorf("the partition took %v to close", passed)
		}
		n.system.Close()
		if passed := time.Since(begin); passed != 5*time.Second {
			t.Errorf("the system took %v to close", passed)
		}
		if !n.log.contains("activities left behind") {
			t.Error("nothing in the log")
		}
		close(leave) // what it still does hurts nobody, and its goroutine ends
		idle()
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled")
	})
}

func TestActivitiesAreToldWhenThePartitionIsClosed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		ended := make(chan error, 1)
		first := lead(t, j, actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				return "", ctx.Err()
			}))
		first.start("c", "call", "").want(nil)
		idle()
		first.close()
		<-ended
		// That was no failure of the activity: the next leader runs it.
		second := lead(t, j, actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				return fmt.Sprint(replay.ActivityInfo(ctx).Number), nil
			}))
		second.wantOutput("c", "1")
	})
}
