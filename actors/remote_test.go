package actors_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workerNode is a node that runs activities for others.
type workerNode struct {
	t      *testing.T
	system *actors.System
	hello  actors.Hello
}

func workerOn(t *testing.T, name string, config actors.Config, definitions ...replay.Definition) *workerNode {
	t.Helper()
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	config.Registry, config.Logger = registry, slog.New(slog.DiscardHandler)
	w := &workerNode{t: t, system: actors.NewSystem(config), hello: actors.Hello{Node: name}}
	for _, definition := range definitions {
		if activity, ok := definition.Activity(); ok {
			w.hello.Activities = append(w.hello.Activities, activity)
		}
	}
	t.Cleanup(w.system.Close)
	return w
}

// A wire is what lies between a worker and the node that leads.
type wire struct {
	cut     func()
	stop    func(error) // ends the worker's work, for a reason
	worked  sync.WaitGroup
	frozen  atomic.Bool // passes nothing on
	dropped func(actors.FromWorker) bool
	ended   sync.WaitGroup
	errs    [2]error // the leader's, the worker's
}

// work connects a worker to the node that leads.
func (w *workerNode) work(n *node) *wire { return w.workThrough(n, &wire{}) }

func (w *workerNode) workThrough(n *node, c *wire) *wire {
	ctx, cancel := context.WithCancel(context.Background())
	c.cut = cancel
	said, heard := make(chan actors.FromWorker), make(chan actors.FromWorker)
	ordered, obeyed := make(chan actors.ToWorker), make(chan actors.ToWorker)
	c.ended.Go(func() {
		pass(ctx, said, heard, func(m actors.FromWorker) bool {
			return c.frozen.Load() || c.dropped != nil && c.dropped(m)
		})
	})
	c.ended.Go(func() { pass(ctx, ordered, obeyed, func(actors.ToWorker) bool { return c.frozen.Load() }) })
	c.ended.Go(func() {
		c.errs[0] = n.partition.Employ(ctx, heard, ordered)
		if errors.Is(c.errs[0], actors.ErrGoodbye) {
			cancel() // as a stream ends with its handler
		}
	})
	working, stop := context.WithCancelCause(ctx)
	c.stop = stop
	c.worked.Go(func() { c.errs[1] = w.system.Work(working, w.hello, obeyed, said) })
	w.t.Cleanup(c.end)
	idle()
	return c
}

func (c *wire) end() {
	c.cut()
	c.ended.Wait()
	c.worked.Wait()
	c.stop(nil)
}

// pass passes messages on until ctx ends.
func pass[M any](ctx context.Context, from <-chan M, to chan<- M, lost func(M) bool) {
	for {
		select {
		case m := <-from:
			if lost(m) {
				continue
			}
			select {
			case to <- m:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// A bench of nodes counts who has run what.
type tally struct {
	mu  sync.Mutex
	ran map[string]int
}

func (c *tally) count(who string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ran == nil {
		c.ran = make(map[string]int)
	}
	c.ran[who]++
}

func (c *tally) of(who string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran[who]
}

// slowly binds work that takes a while and says who has done it.
func (c *tally) slowly(who string, takes time.Duration) replay.Definition {
	return work.Bind(func(ctx context.Context, n int) (string, error) {
		c.count(who)
		select {
		case <-time.After(takes):
			return fmt.Sprintf("%s %d", who, replay.ActivityInfo(ctx).Number), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
}

var two = func() int { return 2 }

func TestActivitiesSpreadWhenTheLeaderIsFull(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 2}, call(), c.slowly("leader", time.Minute))
		workerOn(t, "a", actors.Config{ActivitiesMax: 5}, c.slowly("a", time.Minute)).work(n)
		workerOn(t, "b", actors.Config{ActivitiesMax: 3}, c.slowly("b", time.Minute)).work(n)
		begin := time.Now()
		for i := range 20 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		idle()
		if l, a, b := c.of("leader"), c.of("a"), c.of("b"); l != 2 || a != 5 || b != 3 {
			t.Errorf("ran %d, %d and %d", l, a, b)
		}
		for i := range 20 {
			n.output(fmt.Sprintf("c%d", i))
		}
		if passed := time.Since(begin); passed > 2*time.Minute+time.Second {
			t.Errorf("took %v", passed)
		}
		if counts := n.system.ActivityCounts(); counts.Local+counts.Remote != 20 || counts.Remote < 12 {
			t.Errorf("counted %+v", counts)
		}
	})
}

func TestActivityGoesWhereItsTagAndItsCodeAre(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.Tag("gpu")))
		n.start("c", "call", "").want(nil)
		idle()
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		wantState := func(want actors.ActivityState) {
			t.Helper()
			if got := n.partition.Activity(ref); got != want {
				t.Errorf("the activity is %q, want %q", got, want)
			}
		}
		wantState(actors.ActivityWaitingForTag)
		workerOn(t, "code", actors.Config{}, c.slowly("code", 0)).work(n)
		wantState(actors.ActivityWaitingForTag)
		workerOn(t, "both", actors.Config{Tags: []string{"gpu"}}, c.slowly("both", time.Minute)).work(n)
		wantState(actors.ActivityRunning)
		n.wantOutput("c", "both 1")
	})
}

// The worker that is cut off, or silent, or closed, does not come back: what it
// had is done by others, as the same attempts.
func TestActivitiesOfALostWorkerAreDoneByOthers(t *testing.T) {
	for name, lose := range map[string]func(*workerNode, *wire){
		"cut off": func(w *workerNode, c *wire) { c.cut() },
		"silent":  func(w *workerNode, c *wire) { c.frozen.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				var c tally
				n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, call(), c.slowly("leader", time.Second))
				n.start("own", "call", "").want(nil)
				a := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Hour))
				wired := a.work(n)
				begin := time.Now()
				for i := range 3 {
					n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
				}
				idle()
				lose(a, wired)
				for i := range 3 {
					n.wantOutput(fmt.Sprintf("c%d", i), "leader 1")
				}
				if passed := time.Since(begin); passed > 6*time.Second {
					t.Errorf("took %v", passed)
				}
				wired.end()
				if again := n.system.ActivityCounts().Again; again != 3 || c.of("a") != 3 {
					t.Errorf("%d begun again, %d by the worker", again, c.of("a"))
				}
			})
		})
	}
}

// What a worker has not done when it stops is begun elsewhere at once, although it
// would be waited for if it were lost.
func TestActivitiesOfAWorkerThatStopsAreBegunElsewhereAtOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1, RejoinWait: time.Hour}, call(), c.slowly("leader", time.Second))
		n.start("own", "call", "").want(nil)
		a := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Minute))
		stopping := &wire{}
		a.workThrough(n, stopping)
		n.start("c", "call", "").want(nil)
		n.start("d", "call", "").want(nil)
		idle()
		if c.of("a") != 2 {
			t.Fatalf("the worker has begun %d", c.of("a"))
		}
		begin := time.Now()
		stopping.stop(replay.ErrNodeStopping)
		n.wantOutput("c", "leader 1")
		n.wantOutput("d", "leader 1")
		wantPassed(t, begin, 3*time.Second) // one after the other on the leader's one place, behind its own
		stopping.end()
		if !errors.Is(stopping.errs[0], actors.ErrGoodbye) || !errors.Is(stopping.errs[1], replay.ErrNodeStopping) {
			t.Errorf("the exchange ended with %v and %v", stopping.errs[0], stopping.errs[1])
		}
		if again := n.system.ActivityCounts().Again; again != 2 || c.of("a") != 2 {
			t.Errorf("%d begun again, %d by the worker", again, c.of("a"))
		}
	})
}

// A goodbye that nobody hears does not hold the worker up for long.
func TestGoodbyeThatIsNotHeardEnds(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{}, call())
		wired := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Minute)).work(n)
		wired.frozen.Store(true)
		begin := time.Now()
		wired.stop(replay.ErrNodeStopping)
		wired.worked.Wait()
		if passed := time.Since(begin); passed > 500*time.Millisecond {
			t.Errorf("took %v", passed)
		}
	})
}

// What a worker offers while the next leader takes up what is open is not taken for
// closed: what runs goes on, and a result is recorded.
func TestOfferThatComesBeforeItsInstanceIsTakenUpIsTaken(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		j := newTestJournal()
		config := actors.Config{Others: two, RejoinWait: time.Minute}
		first := lead(t, j, config, call(once))
		done := workerOn(t, "done", actors.Config{ActivitiesMax: 1}, c.slowly("done", time.Second))
		busy := workerOn(t, "busy", actors.Config{ActivitiesMax: 1}, c.slowly("busy", time.Minute))
		wires := []*wire{done.work(first)}
		first.start("c", "call", "").want(nil)
		idle()
		wires = append(wires, busy.work(first))
		first.start("d", "call", "").want(nil)
		idle()
		first.close()
		for _, w := range wires {
			w.end()
		}
		time.Sleep(5 * time.Second) // one has come to its end
		j.readPace = 10 * time.Second
		begin := time.Now()
		second := lead(t, j, config, call(once), c.slowly("second", 0))
		done.work(second)
		busy.work(second)
		second.wantOutput("c", "done 1")
		second.wantOutput("d", "busy 1")
		if passed := time.Since(begin); passed < 10*time.Second {
			t.Errorf("everything was taken up in %v", passed)
		}
		if c.of("done") != 1 || c.of("busy") != 1 || c.of("second") != 0 {
			t.Errorf("ran %v", c.ran)
		}
		for _, id := range []string{"c", "d"} {
			second.wantHistory(id, "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
		}
	})
}

func TestWorkerThatComesBackInTimeGoesOn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{}, call())
		a := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Minute))
		wired := a.work(n)
		n.start("c", "call", "").want(nil)
		idle()
		for range 5 {
			wired.end()
			time.Sleep(300 * time.Millisecond)
			wired = a.work(n)
		}
		n.wantOutput("c", "a 1")
		if c.of("a") != 1 {
			t.Errorf("ran %d times", c.of("a"))
		}
	})
}

// The end is reached while nobody leads, and while the next leader does already.
func TestResultIsKeptForTheNextLeader(t *testing.T) {
	for _, takes := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(takes.String(), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				var c tally
				j := newTestJournal()
				first := lead(t, j, actors.Config{Others: two}, call(once))
				a := workerOn(t, "a", actors.Config{}, c.slowly("a", takes))
				wired := a.work(first)
				first.start("c", "call", "").want(nil)
				idle()
				first.close()
				wired.end()
				time.Sleep(5 * time.Second)
				second := lead(t, j, actors.Config{Others: two}, call(once), c.slowly("second", 0))
				time.Sleep(300 * time.Millisecond)
				a.work(second)
				second.wantOutput("c", "a 1")
				if c.of("second")+c.of("a") != 1 {
					t.Errorf("ran %d and %d times", c.of("a"), c.of("second"))
				}
				second.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
			})
		})
	}
}

func TestWorkerThatBecomesTheLeaderGoesOnWithWhatItHas(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		j := newTestJournal()
		first := lead(t, j, actors.Config{Others: two}, call(once))
		second := lead(t, newTestJournal(), actors.Config{Others: two}, call(once), c.slowly("second", time.Minute))
		w := &workerNode{t, second.system, actors.Hello{Node: "second", Activities: []string{"work"}}}
		wired := w.work(first)
		first.start("c", "call", "").want(nil)
		idle()
		first.close()
		wired.end()
		second.partition.Close()
		second.journal = j
		second = second.again()
		second.wantOutput("c", "second 1")
		if c.of("second") != 1 {
			t.Errorf("ran %d times", c.of("second"))
		}
	})
}

// Nobody takes the attempt up again, so the next leader begins it.
func TestActivityOfAWorkerThatIsGoneIsBegunByTheNextLeader(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		j := newTestJournal()
		first := lead(t, j, actors.Config{Others: two}, call(once))
		wired := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Hour)).work(first)
		first.start("c", "call", "").want(nil)
		idle()
		wired.end()
		first.close()
		begin := time.Now()
		second := lead(t, j, actors.Config{Others: two}, call(once), c.slowly("second", 0))
		second.wantOutput("c", "second 1")
		wantPassed(t, begin, 500*time.Millisecond)
	})
}

// A result whose acknowledgement was lost is offered again, and dropped.
func TestResultThatIsOfferedTwiceIsRecordedOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		n := lead(t, newTestJournal(), actors.Config{}, call())
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 1}, c.slowly("a", time.Second))
		wired := &wire{dropped: func(m actors.FromWorker) bool { return m.Result != nil }}
		a.workThrough(n, wired)
		n.start("c", "call", "").want(nil)
		n.start("d", "call", "").want(nil)
		time.Sleep(10 * time.Second)
		if c.of("a") != 1 {
			t.Fatal("a place is free whose result is not recorded")
		}
		wired.end()
		a.work(n)
		n.wantOutput("c", "a 1")
		n.wantOutput("d", "a 1")
		if c.of("a") != 2 {
			t.Errorf("ran %d times", c.of("a"))
		}
	})
}

func TestLimitsHoldOnWorkers(t *testing.T) {
	for _, limit := range []replay.TimeoutKind{replay.TimeoutStartToClose, replay.TimeoutHeartbeat, replay.TimeoutScheduleToClose} {
		t.Run(string(limit), func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				option := map[replay.TimeoutKind]replay.ActivityOption{
					replay.TimeoutStartToClose:    replay.StartToClose(time.Minute),
					replay.TimeoutHeartbeat:       replay.HeartbeatTimeout(time.Minute),
					replay.TimeoutScheduleToClose: replay.ScheduleToClose(time.Minute),
				}[limit]
				n := lead(t, newTestJournal(), actors.Config{}, call(once, option))
				var slow sluggish
				workerOn(t, "a", actors.Config{ActivitiesMax: 1}, slow.bind()).work(n)
				begin := time.Now()
				n.start("c", "call", "").want(nil)
				wantTimeout(t, n.failure("c"), limit)
				wantPassed(t, begin, time.Minute)
				idle()
				if len(slow.causes) != 1 {
					t.Fatalf("%d bodies have ended", len(slow.causes))
				}
				wantTimeout(t, slow.causes[0], limit)
				// The place is free again.
				n.start("d", "call", "").want(nil)
				wantTimeout(t, n.failure("d"), limit)
			})
		})
	}
}

func TestActivityOnAWorkerThatIsGivenUpEnds(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("hurry", func(ctx *replay.Context, _ string) (string, error) {
			given := work.Start(ctx, 0)
			if err := ctx.Sleep(time.Minute); err != nil {
				return "", err
			}
			given.Cancel(ctx)
			return "done", ctx.Sleep(time.Minute)
		}))
		var slow sluggish
		workerOn(t, "a", actors.Config{}, slow.bind()).work(n)
		n.start("c", "hurry", "").want(nil)
		n.wantOutput("c", "done")
		if len(slow.causes) != 1 || !errors.Is(slow.causes[0], replay.ErrGivenUp) {
			t.Errorf("ended with %v", slow.causes)
		}
	})
}

func TestFailuresHeartbeatsAndTokensComeFromWorkers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.HeartbeatTimeout(10*time.Second)))
		workerOn(t, "a", actors.Config{}, work.Bind(func(ctx context.Context, _ int) (string, error) {
			done, _ := replay.HeartbeatDetails[int](ctx)
			switch replay.ActivityInfo(ctx).Number {
			case 1:
				for i := range 5 {
					time.Sleep(8 * time.Second)
					if err := replay.Heartbeat(ctx, i+1); err != nil {
						return "", err
					}
				}
				return "", errors.New("half way")
			case 2:
				if last := replay.ActivityInfo(ctx).LastError; done != 5 || last == nil || last.Error() != "half way" {
					return "", replay.NonRetryable(fmt.Errorf("found %d, %v", done, last))
				}
			}
			return "", replay.ErrPending
		})).work(n)
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		if state := n.partition.Activity(ref); state != actors.ActivityPending {
			t.Fatalf("the activity is %q", state)
		}
		done := make(chan error, 1)
		n.partition.CompleteActivity(actors.Completion{Ref: ref, Attempt: 2, Result: payload(t, "by hand")}, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		n.wantOutput("c", "by hand")
	})
}

func TestLimitByNameHoldsOnEveryNode(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		config := actors.Config{ActivityLimits: map[string]int{"work": 2}}
		n := lead(t, newTestJournal(), config, call(), c.slowly("leader", time.Minute), shout(), bindUpper())
		workerOn(t, "a", config, c.slowly("a", time.Minute)).work(n)
		for i := range 10 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		idle()
		if l, a := c.of("leader"), c.of("a"); l != 2 || a != 2 {
			t.Errorf("%d and %d at once", l, a)
		}
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A") // others have places
		for i := range 10 {
			n.output(fmt.Sprintf("c%d", i))
		}
	})
}

func TestRateHoldsForAllNodes(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		body := work.Bind(func(context.Context, int) (string, error) {
			mu.Lock()
			at = append(at, time.Now())
			mu.Unlock()
			time.Sleep(10 * time.Second)
			return "", nil
		})
		n := lead(t, newTestJournal(), actors.Config{
			ActivitiesMax: 1,
			ActivityRates: map[string]actors.Rate{"work": {PerSecond: 2, Burst: 3}},
		}, call(), body)
		workerOn(t, "a", actors.Config{}, body).work(n)
		time.Sleep(time.Minute)
		for i := range 20 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		for i := range 20 {
			n.output(fmt.Sprintf("c%d", i))
		}
		slices.SortFunc(at, time.Time.Compare)
		for i := 3; i < len(at); i++ {
			if passed := at[i].Sub(at[2]); passed != time.Duration(i-2)*500*time.Millisecond {
				t.Errorf("attempt %d began %v after the burst", i, passed)
			}
		}
		if !at[0].Equal(at[2]) {
			t.Errorf("the burst took %v", at[2].Sub(at[0]))
		}
	})
}

// The leader dies when it has the result, and before that is recorded.
func TestResultIsAcknowledgedWhenItIsRecorded(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		j := newTestJournal()
		first := lead(t, j, actors.Config{Others: two}, call(once))
		a := workerOn(t, "a", actors.Config{}, c.slowly("a", time.Minute))
		wired := a.work(first)
		first.start("c", "call", "").want(nil)
		idle()
		j.set(func(j *testJournal) { j.judge = func(*journalpb.Append) error { return errRefused } })
		time.Sleep(2 * time.Minute)
		first.close()
		wired.end()
		j.set(func(j *testJournal) { j.judge = nil })
		second := lead(t, j, actors.Config{Others: two}, call(once))
		a.work(second)
		second.wantOutput("c", "a 1")
		if c.of("a") != 1 {
			t.Errorf("ran %d times", c.of("a"))
		}
	})
}

// What is told twice is done once, and what it has come to is said again. It is
// over before the worker takes this leader for silent.
func TestWorkerThatIsToldTwiceRunsOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 3}, c.slowly("a", 100*time.Millisecond))
		orders, said := make(chan actors.ToWorker), make(chan actors.FromWorker)
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { _ = a.system.Work(ctx, a.hello, orders, said) })
		results, freed := 0, 0
		listen := func(until func() bool) {
			for !until() {
				m := <-said
				freed += m.Freed
				if m.Result != nil {
					results++
				}
			}
		}
		listen(func() bool { return freed == 3 })
		id := actors.AttemptID{Ref: &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}, Number: 1}
		order := actors.ToWorker{Task: &actors.Task{AttemptID: id, Name: "work", Input: payload(t, 0)}}
		orders <- order
		orders <- order
		listen(func() bool { return results == 1 })
		orders <- order
		listen(func() bool { return results == 2 })
		orders <- actors.ToWorker{Ack: &id}
		orders <- actors.ToWorker{Ack: &id}
		listen(func() bool { return freed == 4 })
		if c.of("a") != 1 {
			t.Errorf("ran %d times", c.of("a"))
		}
		cancel()
		working.Wait()
	})
}
