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

func TestPartitionClose_AnswersPendingMessages(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "xxx").want(nil)
		n.journal.holdAppends()
		inFlight := n.send("c", "word", "a")
		waitIdle()
		waiting := sendWords(n, "c", 0, 3)
		closed := make(chan struct{})
		go func() {
			n.close()
			close(closed)
		}()
		waitIdle()
		select {
		case <-closed:
			t.Fatal("closed while an append was undecided")
		default:
		}
		n.send("c", "word", "late").want(actors.ErrStopped)
		n.send("other", "word", "late").want(actors.ErrStopped)
		inFlight.wantPending()
		n.journal.decideHeld(nil)
		<-closed
		inFlight.want(nil)
		for _, r := range waiting {
			r.want(actors.ErrStopped)
		}
		n.send("c", "word", "later").want(actors.ErrStopped)
		n.close() // again
	})
}

func TestPartitionClose_OnLeadershipEnd(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "x").want(nil)
		n.journal.newEpoch(t) // of another leader
		var stale *state.StaleEpochError
		a := n.send("c", "word", "a").get()
		if !errors.As(a.Err, &stale) {
			t.Errorf("answered %v", a.Err)
		}
		n.partition.Close()
		n.partition.Close()
	})
}

// waitGoroutines waits until there are no more goroutines than before.
func waitGoroutines(t *testing.T, before int) {
	t.Helper()
	limit := time.Now().Add(2 * time.Minute)
	for runtime.NumGoroutine() > before {
		if time.Now().After(limit) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

func TestSystemClose_LeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		started := make(chan struct{}, 100)
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 20, ResidentMax: 10}, collect(), call(), timers([]time.Duration{time.Hour}),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				started <- struct{}{}
				<-ctx.Done()
				return "", ctx.Err()
			}))
		for i := range 50 {
			n.start(fmt.Sprint("call", i), "call", "").want(nil)
			n.start(fmt.Sprint("collect", i), "collect", "x").want(nil)
			n.start(fmt.Sprint("timers", i), "timers", "").want(nil)
		}
		for range 20 {
			<-started
		}
		n.close()
		n.close()
	}
	waitGoroutines(t, before)
}

func TestSystemClose_AbandonsBlockedActivity(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{GracePeriod: 5 * time.Second}, call(),
			work.Bind(func(context.Context, int) (string, error) { <-release; return "late", nil }))
		n.start("c", "call", "").want(nil)
		waitIdle()
		start := time.Now()
		n.partition.Close()
		if elapsed := time.Since(start); elapsed != 0 {
			t.Errorf("the partition took %v to close", elapsed)
		}
		n.system.Close()
		if elapsed := time.Since(start); elapsed != 5*time.Second {
			t.Errorf("the system took %v to close", elapsed)
		}
		if !n.log.contains("activity bodies abandoned") {
			t.Error("nothing was logged")
		}
		close(release) // an abandoned activity does no harm, and its goroutine ends
		waitIdle()
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled")
	})
}

func TestSystemClose_CancelsActivities(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		ended := make(chan error, 1)
		first := lead(t, j, actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				<-ctx.Done()
				ended <- ctx.Err()
				return "", ctx.Err()
			}))
		first.start("c", "call", "").want(nil)
		waitIdle()
		first.close()
		<-ended
		// That was not a failure of the activity: the next leader runs it.
		second := lead(t, j, actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				return fmt.Sprint(replay.ActivityInfo(ctx).Number), nil
			}))
		second.wantOutput("c", "1")
	})
}
