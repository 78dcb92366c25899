package actors_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A workerNode is a node that runs activities for others.
type workerNode struct {
	t            *testing.T
	system       *actors.System
	registration *clusterpb.RegisterWorker
}

func workerOn(t *testing.T, name string, config actors.Config, definitions ...replay.Definition) *workerNode {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	config.Registry, config.Logger = registry, slog.New(slog.DiscardHandler)
	w := &workerNode{t: t, system: actors.NewSystem(config), registration: &clusterpb.RegisterWorker{Node: name}}
	for _, definition := range definitions {
		if activity, ok := definition.Activity(); ok {
			w.registration.Activities = append(w.registration.Activities, activity)
		}
	}
	t.Cleanup(w.system.Close)
	return w
}

// A connection is the link between a worker and the leader.
type connection struct {
	disconnect func()
	stopWorker func(error) // ends the worker, with a cause
	workerDone sync.WaitGroup
	frozen     atomic.Bool // passes no messages on
	drop       func(*clusterpb.FromWorker) bool
	done       sync.WaitGroup
	errs       [2]error // the leader's, the worker's
}

func (w *workerNode) connect(n *node) *connection { return w.connectThrough(n, &connection{}) }

func (w *workerNode) connectThrough(n *node, c *connection) *connection {
	ctx, cancel := context.WithCancel(context.Background())
	c.disconnect = cancel
	reported, received := make(chan *clusterpb.FromWorker), make(chan *clusterpb.FromWorker)
	commands, delivered := make(chan *clusterpb.ToWorker), make(chan *clusterpb.ToWorker)
	c.done.Go(func() {
		forward(ctx, reported, received, func(m *clusterpb.FromWorker) bool {
			return c.frozen.Load() || c.drop != nil && c.drop(m)
		})
	})
	c.done.Go(func() { forward(ctx, commands, delivered, func(*clusterpb.ToWorker) bool { return c.frozen.Load() }) })
	c.done.Go(func() {
		c.errs[0] = n.partition.ServeWorker(ctx, session.PingsOf(w.registration), received, commands)
		if errors.Is(c.errs[0], session.ErrWorkerDrained) {
			cancel() // as a stream ends with its handler
		}
	})
	working, stop := context.WithCancelCause(ctx)
	c.stopWorker = stop
	c.workerDone.Go(func() { c.errs[1] = w.system.RunWorker(working, 0, w.registration, delivered, reported) })
	w.t.Cleanup(c.close)
	waitIdle()
	return c
}

func (c *connection) close() {
	c.disconnect()
	c.done.Wait()
	c.workerDone.Wait()
	c.stopWorker(nil)
}

// forward passes messages on until ctx ends.
func forward[M any](ctx context.Context, from <-chan M, to chan<- M, lost func(M) bool) {
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

// An attemptCounter counts which node ran what.
type attemptCounter struct {
	mu       sync.Mutex
	attempts map[string]int
}

func (c *attemptCounter) count(worker string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attempts == nil {
		c.attempts = make(map[string]int)
	}
	c.attempts[worker]++
}

func (c *attemptCounter) attemptsOn(worker string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempts[worker]
}

// slowWork binds work that takes some time and returns the name of its worker.
func (c *attemptCounter) slowWork(worker string, duration time.Duration) replay.Definition {
	return work.Bind(func(ctx context.Context, n int) (string, error) {
		c.count(worker)
		select {
		case <-time.After(duration):
			return fmt.Sprintf("%s %d", worker, replay.ActivityInfo(ctx).Number), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
}

var twoNodes = func() int { return 2 }

func TestScheduler_SpreadsWhenLeaderIsFull(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 2}, call(), c.slowWork("leader", time.Minute))
		workerOn(t, "a", actors.Config{ActivitiesMax: 5}, c.slowWork("a", time.Minute)).connect(n)
		workerOn(t, "b", actors.Config{ActivitiesMax: 3}, c.slowWork("b", time.Minute)).connect(n)
		start := time.Now()
		for i := range 20 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		waitIdle()
		if l, a, b := c.attemptsOn("leader"), c.attemptsOn("a"), c.attemptsOn("b"); l != 2 || a != 5 || b != 3 {
			t.Errorf("ran %d, %d and %d", l, a, b)
		}
		use := n.system.ActivityUse()
		if want := (activity.NameCounts{Open: 20, Queued: 10, Running: 10, QueuedByTag: map[string]int{"": 10}}); !reflect.DeepEqual(use.Counts["work"], want) || use.Slots != 2 || use.FreeSlots != 0 {
			t.Errorf("the use is %+v; want %+v for work", use, want)
		}
		for i := range 20 {
			n.output(fmt.Sprintf("c%d", i))
		}
		if elapsed := time.Since(start); elapsed > 2*time.Minute+time.Second {
			t.Errorf("took %v", elapsed)
		}
		if counts := n.system.ActivityCounts(); counts.Local+counts.Remote != 20 || counts.Remote < 12 {
			t.Errorf("counted %+v", counts)
		}
		waitIdle()
		if use := n.system.ActivityUse(); len(use.Counts) != 0 || use.FreeSlots != 2 {
			t.Errorf("the use at the end is %+v", use)
		}
	})
}

func TestScheduler_MatchesTagAndCode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.Tag("gpu")))
		n.start("c", "call", "").want(nil)
		waitIdle()
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		wantState := func(want activity.State) {
			t.Helper()
			if got := n.partition.AttemptsOf(ref).State; got != want {
				t.Errorf("the activity is %q, want %q", got, want)
			}
		}
		wantState(activity.WaitingForTag)
		workerOn(t, "code", actors.Config{}, c.slowWork("code", 0)).connect(n)
		wantState(activity.WaitingForTag)
		workerOn(t, "both", actors.Config{Tags: []string{"gpu"}}, c.slowWork("both", time.Minute)).connect(n)
		wantState(activity.Running)
		n.wantOutput("c", "both 1")
	})
}

// The worker is cut off, frozen or closed, and does not come back: others make its attempts, under
// the same numbers.
func TestWorkerLost_ActivitiesReassigned(t *testing.T) {
	for name, lose := range map[string]func(*workerNode, *connection){
		"cut off": func(w *workerNode, c *connection) { c.disconnect() },
		"silent":  func(w *workerNode, c *connection) { c.frozen.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				var c attemptCounter
				n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, call(), c.slowWork("leader", time.Second))
				n.start("own", "call", "").want(nil)
				a := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Hour))
				conn := a.connect(n)
				start := time.Now()
				for i := range 3 {
					n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
				}
				waitIdle()
				lose(a, conn)
				for i := range 3 {
					n.wantOutput(fmt.Sprintf("c%d", i), "leader 1")
				}
				if elapsed := time.Since(start); elapsed > 6*time.Second {
					t.Errorf("took %v", elapsed)
				}
				conn.close()
				waitIdle()
				if use := n.system.ActivityUse(); len(use.Counts) != 0 {
					t.Errorf("the use at the end is %+v", use)
				}
				if again := n.system.ActivityCounts().Reassigned; again != 3 || c.attemptsOn("a") != 3 {
					t.Errorf("%d reassigned, %d by the worker", again, c.attemptsOn("a"))
				}
			})
		})
	}
}

// Unfinished attempts of a draining worker begin elsewhere at once, although those of a lost one
// would wait.
func TestWorkerDrain_ReassignsAtOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1, RejoinTimeout: time.Hour}, call(), c.slowWork("leader", time.Second))
		n.start("own", "call", "").want(nil)
		a := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Minute))
		stopping := &connection{}
		a.connectThrough(n, stopping)
		n.start("c", "call", "").want(nil)
		n.start("d", "call", "").want(nil)
		waitIdle()
		if c.attemptsOn("a") != 2 {
			t.Fatalf("the worker has begun %d", c.attemptsOn("a"))
		}
		start := time.Now()
		stopping.stopWorker(replay.ErrNodeStopping)
		n.wantOutput("c", "leader 1")
		n.wantOutput("d", "leader 1")
		wantElapsed(t, start, 3*time.Second) // sequentially in the leader's one slot, after its own
		stopping.close()
		if !errors.Is(stopping.errs[0], session.ErrWorkerDrained) || !errors.Is(stopping.errs[1], replay.ErrNodeStopping) {
			t.Errorf("the session ended with %v and %v", stopping.errs[0], stopping.errs[1])
		}
		if again := n.system.ActivityCounts().Reassigned; again != 2 || c.attemptsOn("a") != 2 {
			t.Errorf("%d reassigned, %d by the worker", again, c.attemptsOn("a"))
		}
	})
}

// A worker that takes no more attempts runs the one that has begun, and gives back those that wait
// for a slot or arrive later, also in its next session.
func TestWorkerStopAssigning_ReturnsWhatHasNotBegun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 1}, c.slowWork("a", time.Minute))
		var commands chan *clusterpb.ToWorker
		var reported chan *clusterpb.FromWorker
		var working sync.WaitGroup
		begin := func() (end func()) {
			commands, reported = make(chan *clusterpb.ToWorker), make(chan *clusterpb.FromWorker)
			ctx, cancel := context.WithCancel(t.Context())
			working.Go(func() { _ = a.system.RunWorker(ctx, 0, a.registration, commands, reported) })
			return func() { cancel(); working.Wait() }
		}
		await := func(what string, is func(*clusterpb.FromWorker) bool) {
			t.Helper()
			for {
				select {
				case m := <-reported:
					if m.GetFreeSlots() > 0 && what != "slots" {
						t.Errorf("while awaiting %s: %d free slots are offered", what, m.GetFreeSlots())
					}
					if is(m) {
						return
					}
				case <-time.After(100 * time.Millisecond):
					commands <- &clusterpb.ToWorker{}
				}
			}
		}
		assign := func(eventID uint64) *clusterpb.AttemptID {
			command, assignment := new(session.Assignment).Of(&journalpb.OperationRef{Instance: "c", Execution: 1, EventId: eventID}, 1)
			assignment.Name, assignment.Input = "work", payload(t, 0)
			commands <- command
			return assignment.Attempt
		}
		returned := func(ids ...*clusterpb.AttemptID) func(*clusterpb.FromWorker) bool {
			return func(m *clusterpb.FromWorker) bool {
				return m.GetStopAssigning() != nil && proto.Equal(m.GetStopAssigning(), &clusterpb.StopAssigning{Returned: ids})
			}
		}
		end := begin()
		await("slots", func(m *clusterpb.FromWorker) bool { return m.GetFreeSlots() == 1 })
		begun, queued := assign(2), assign(3)
		waitIdle()
		idle := a.system.StopAssigning()
		await("what was queued", returned(queued))
		await("what came later", returned(assign(4)))
		end()
		end = begin()
		await("the attempt that has begun", func(m *clusterpb.FromWorker) bool { return proto.Equal(m.GetRunningAttempt().GetAttempt(), begun) })
		await("the next session", returned())
		await("the result", func(m *clusterpb.FromWorker) bool { return proto.Equal(m.GetResult().GetAttempt(), begun) })
		waitIdle()
		select {
		case <-idle:
			t.Error("the worker is idle before its result is acknowledged")
		default:
		}
		commands <- session.Ack(begun)
		<-idle
		<-a.system.StopAssigning()
		end()
		if c.attemptsOn("a") != 1 {
			t.Errorf("%d have begun", c.attemptsOn("a"))
		}
	})
}

// The leader begins what a worker returns on another at once, under the same number, assigns it
// nothing more, and takes the results of what it runs.
func TestWorkerStopAssigning_LeaderAssignsToOthers(t *testing.T) {
	for _, exempt := range []bool{false, true} {
		inVirtualTime(t, func(t *testing.T) {
			var c attemptCounter
			n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1, RejoinTimeout: time.Hour, LeaderExempt: exempt}, call(), c.slowWork("leader", time.Second))
			ctx, cancel := context.WithCancel(t.Context())
			in, out := make(chan *clusterpb.FromWorker), make(chan *clusterpb.ToWorker)
			var serving sync.WaitGroup
			defer serving.Wait()
			defer cancel()
			serving.Go(func() { _ = n.partition.ServeWorker(ctx, session.WorkerPings, in, out) })
			assigned := func() *clusterpb.AttemptID {
				for {
					select {
					case m := <-out:
						if m.GetAssignAttempt() != nil {
							return m.GetAssignAttempt().Attempt
						}
					case <-time.After(time.Second):
						in <- &clusterpb.FromWorker{}
					}
				}
			}
			if !exempt {
				n.start("own", "call", "").want(nil)
			}
			in <- session.Register(&clusterpb.RegisterWorker{Worker: "w", Client: "client", Activities: []string{"work"}})
			in <- session.FreeSlots(3)
			n.start("kept", "call", "").want(nil)
			kept := assigned()
			n.start("returned", "call", "").want(nil)
			back := assigned()
			in <- session.StopAssigning(back)
			waitIdle()
			n.start("next", "call", "").want(nil)
			start := time.Now()
			n.wantOutput("returned", "leader 1")
			n.wantOutput("next", "leader 1")
			wantElapsed(t, start, map[bool]time.Duration{false: 3 * time.Second, true: 2 * time.Second}[exempt])
			result, of := new(session.Result).Of(kept)
			of.Output = payload(t, "w 1")
			in <- result
			n.wantOutput("kept", "w 1")
			in <- session.StopAssigning(back, kept) // too late: both have ended
			waitIdle()
			if again := n.system.ActivityCounts().Reassigned; again != 1 {
				t.Errorf("%d reassigned, want 1", again)
			}
		})
	}
}

// A drain message that no leader takes does not delay the worker for long.
func TestWorkerDrain_UnansweredTimesOut(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{}, call())
		conn := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Minute)).connect(n)
		conn.frozen.Store(true)
		start := time.Now()
		conn.stopWorker(replay.ErrNodeStopping)
		conn.workerDone.Wait()
		if elapsed := time.Since(start); elapsed > 500*time.Millisecond {
			t.Errorf("took %v", elapsed)
		}
	})
}

// What a worker offers during recovery is not taken for closed: running attempts continue, and a
// result is recorded.
func TestWorkerRejoin_BeforeInstanceRecovered(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		j := newTestJournal()
		config := actors.Config{OtherNodes: twoNodes, RejoinTimeout: time.Minute}
		first := lead(t, j, config, call(oneAttempt))
		done := workerOn(t, "done", actors.Config{ActivitiesMax: 1}, c.slowWork("done", time.Second))
		busy := workerOn(t, "busy", actors.Config{ActivitiesMax: 1}, c.slowWork("busy", time.Minute))
		conns := []*connection{done.connect(first)}
		first.start("c", "call", "").want(nil)
		waitIdle()
		conns = append(conns, busy.connect(first))
		first.start("d", "call", "").want(nil)
		waitIdle()
		first.close()
		for _, w := range conns {
			w.close()
		}
		time.Sleep(5 * time.Second) // one has ended
		j.readDelay = 10 * time.Second
		start := time.Now()
		second := lead(t, j, config, call(oneAttempt), c.slowWork("second", 0))
		done.connect(second)
		busy.connect(second)
		second.wantOutput("c", "done 1")
		second.wantOutput("d", "busy 1")
		if elapsed := time.Since(start); elapsed < 10*time.Second {
			t.Errorf("recovery took %v", elapsed)
		}
		if c.attemptsOn("done") != 1 || c.attemptsOn("busy") != 1 || c.attemptsOn("second") != 0 {
			t.Errorf("ran %v", c.attempts)
		}
		for _, id := range []string{"c", "d"} {
			second.wantHistory(id, "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
		}
	})
}

func TestWorkerRejoin_ContinuesAttempts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{}, call())
		a := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Minute))
		conn := a.connect(n)
		n.start("c", "call", "").want(nil)
		waitIdle()
		for range 5 {
			conn.close()
			time.Sleep(300 * time.Millisecond)
			conn = a.connect(n)
		}
		n.wantOutput("c", "a 1")
		if c.attemptsOn("a") != 1 {
			t.Errorf("ran %d times", c.attemptsOn("a"))
		}
	})
}

// The attempt ends while there is no leader, or under the next leader.
func TestWorkerResult_DeliveredToNextLeader(t *testing.T) {
	for _, duration := range []time.Duration{2 * time.Second, time.Minute} {
		t.Run(duration.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				var c attemptCounter
				j := newTestJournal()
				first := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
				a := workerOn(t, "a", actors.Config{}, c.slowWork("a", duration))
				conn := a.connect(first)
				first.start("c", "call", "").want(nil)
				waitIdle()
				first.close()
				conn.close()
				time.Sleep(5 * time.Second)
				second := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt), c.slowWork("second", 0))
				time.Sleep(300 * time.Millisecond)
				a.connect(second)
				second.wantOutput("c", "a 1")
				if c.attemptsOn("second")+c.attemptsOn("a") != 1 {
					t.Errorf("ran %d and %d times", c.attemptsOn("a"), c.attemptsOn("second"))
				}
				second.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
			})
		})
	}
}

func TestWorkerRejoin_BecomesLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		j := newTestJournal()
		first := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
		second := lead(t, newTestJournal(), actors.Config{OtherNodes: twoNodes}, call(oneAttempt), c.slowWork("second", time.Minute))
		w := &workerNode{t, second.system, &clusterpb.RegisterWorker{Node: "second", Activities: []string{"work"}}}
		conn := w.connect(first)
		first.start("c", "call", "").want(nil)
		waitIdle()
		first.close()
		conn.close()
		second.partition.Close()
		second.journal = j
		second = second.leadAgain()
		second.wantOutput("c", "second 1")
		if c.attemptsOn("second") != 1 {
			t.Errorf("ran %d times", c.attemptsOn("second"))
		}
	})
}

// A leader that loses its partition continues its own attempts, and the next leader takes the
// result: the same node, or another for which it works.
func TestLeader_OwnAttemptsSurvivePartitionClose(t *testing.T) {
	for _, duration := range []time.Duration{2 * time.Second, time.Minute} {
		for name, next := range map[string]func(t *testing.T, first *node) *node{
			"same node": func(_ *testing.T, first *node) *node { return first.leadAgain() },
			"other node": func(t *testing.T, first *node) *node {
				second := lead(t, first.journal, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
				(&workerNode{t, first.system, &clusterpb.RegisterWorker{Node: "first", Activities: []string{"work"}}}).connect(second)
				return second
			},
		} {
			t.Run(fmt.Sprint(name, duration), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					var c attemptCounter
					first := lead(t, newTestJournal(), actors.Config{}, call(oneAttempt), c.slowWork("first", duration))
					first.start("c", "call", "").want(nil)
					waitIdle()
					first.partition.Close()
					time.Sleep(5 * time.Second)
					second := next(t, first)
					second.wantOutput("c", "first 1")
					if c.attemptsOn("first") != 1 {
						t.Errorf("ran %d times", c.attemptsOn("first"))
					}
					second.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
				})
			})
		}
	}
}

// An attempt that has sent heartbeats for longer than its heartbeat timeout survives a change of
// the leader: its heartbeats went to the earlier one.
func TestLeader_ResumedAttemptKeepsItsHeartbeatTimeout(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		work := replay.Activity[string, string]("work").Bind(func(ctx context.Context, _ string) (string, error) {
			begun.Add(1)
			for range 60 {
				if err := replay.Heartbeat(ctx, "beat"); err != nil {
					return "", err
				}
				select {
				case <-time.After(300 * time.Millisecond):
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			}
			return "done", nil
		})
		code := program("call", func(ctx *replay.Context, _ string) (string, error) {
			return replay.Activity[string, string]("work").Call(ctx, "", replay.HeartbeatTimeout(time.Second), oneAttempt)
		})
		first := lead(t, newTestJournal(), actors.Config{}, code, work)
		first.start("c", "call", "").want(nil)
		time.Sleep(10 * time.Second)
		first.partition.Close()
		first.leadAgain().wantOutput("c", "done")
		if n := begun.Load(); n != 1 {
			t.Errorf("%d attempts", n)
		}
	})
}

// A leader that does not know yet that it has been replaced gets no heartbeats, and cancels the
// attempt that continues under the next leader.
func TestWorker_MessagesOfReplacedLeaderAreDropped(t *testing.T) {
	work := replay.Activity[string, string]("work").Bind(func(ctx context.Context, _ string) (string, error) {
		for range 100 {
			_ = replay.Heartbeat(ctx, "beat")
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		return fmt.Sprint("done at attempt ", replay.ActivityInfo(ctx).Number), nil
	})
	code := program("call", func(ctx *replay.Context, _ string) (string, error) {
		return replay.Activity[string, string]("work").Call(ctx, "", replay.HeartbeatTimeout(2*time.Second))
	})
	for name, begin := range map[string]func(t *testing.T, j *testJournal) (first, second *node){
		"worker of the same node": func(t *testing.T, j *testJournal) (first, second *node) {
			first = lead(t, j, actors.Config{}, code, work)
			first.start("c", "call", "").want(nil)
			time.Sleep(time.Second)
			return first, first.leadAgain()
		},
		"worker of another node": func(t *testing.T, j *testJournal) (first, second *node) {
			first = lead(t, j, actors.Config{OtherNodes: twoNodes}, code)
			w := workerOn(t, "w", actors.Config{}, work)
			w.connect(first)
			first.start("c", "call", "").want(nil)
			time.Sleep(time.Second)
			second = lead(t, j, actors.Config{OtherNodes: twoNodes}, code)
			w.connect(second)
			return first, second
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				_, second := begin(t, newTestJournal())
				second.wantOutput("c", "done at attempt 1")
			})
		})
	}
}

// A session with a former leader that begins late does not replace the node's own leadership.
func TestWorker_SessionWithFormerLeaderIsRejected(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{}, call(oneAttempt), c.slowWork("n", time.Second))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		registration := &clusterpb.RegisterWorker{Node: "n", Activities: []string{"work"}}
		if err := n.system.RunWorker(ended, 0, registration, make(chan *clusterpb.ToWorker), make(chan *clusterpb.FromWorker)); err == nil {
			t.Error("the session began")
		}
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "n 1")
	})
}

// The worker does not rejoin, so the next leader begins the attempt.
func TestWorkerLost_NextLeaderRestarts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		j := newTestJournal()
		first := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
		conn := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Hour)).connect(first)
		first.start("c", "call", "").want(nil)
		waitIdle()
		conn.close()
		first.close()
		start := time.Now()
		second := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt), c.slowWork("second", 0))
		second.wantOutput("c", "second 1")
		wantElapsed(t, start, 500*time.Millisecond)
	})
}

// A result whose acknowledgement was lost is offered again, and dropped.
func TestWorkerResult_DuplicateRecordedOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{}, call())
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 1}, c.slowWork("a", time.Second))
		conn := &connection{drop: func(m *clusterpb.FromWorker) bool { return m.GetResult() != nil }}
		a.connectThrough(n, conn)
		n.start("c", "call", "").want(nil)
		n.start("d", "call", "").want(nil)
		time.Sleep(10 * time.Second)
		if c.attemptsOn("a") != 1 {
			t.Fatal("a slot is free before its result is recorded")
		}
		conn.close()
		a.connect(n)
		n.wantOutput("c", "a 1")
		n.wantOutput("d", "a 1")
		if c.attemptsOn("a") != 2 {
			t.Errorf("ran %d times", c.attemptsOn("a"))
		}
	})
}

// The result of an attempt that timed out does not count, whatever its worker knows of that: not
// for the attempt that runs now, nor for the activity.
func TestWorkerResult_OfEarlierAttemptIsDropped(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, call(replay.StartToClose(time.Minute)), c.slowWork("leader", 20*time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		in, out := make(chan *clusterpb.FromWorker), make(chan *clusterpb.ToWorker)
		var serving sync.WaitGroup
		defer serving.Wait()
		defer cancel()
		serving.Go(func() { _ = n.partition.ServeWorker(ctx, session.WorkerPings, in, out) })
		assigned := make(chan *clusterpb.AttemptID, 10)
		serving.Go(func() {
			for {
				select {
				case m := <-out:
					if m.GetAssignAttempt() != nil {
						assigned <- m.GetAssignAttempt().Attempt
					}
				case <-time.After(time.Second):
					select {
					case in <- &clusterpb.FromWorker{}:
					case <-ctx.Done():
						return
					}
				case <-ctx.Done():
					return
				}
			}
		})
		n.start("own", "call", "").want(nil)
		in <- session.Register(&clusterpb.RegisterWorker{Worker: "w", Client: "client", Activities: []string{"work"}})
		in <- session.FreeSlots(1)
		n.start("c", "call", "").want(nil)
		time.Sleep(65 * time.Second) // the second attempt runs on the leader
		if len(assigned) != 1 || c.attemptsOn("leader") != 2 {
			t.Fatalf("%d attempts are assigned, %d begun on the leader", len(assigned), c.attemptsOn("leader"))
		}
		result, of := new(session.Result).Of(<-assigned)
		of.Output = payload(t, "too late")
		in <- result
		n.wantOutput("c", "leader 2")
	})
}

func TestWorker_ActivityTimeouts(t *testing.T) {
	for _, limit := range []replay.TimeoutKind{replay.TimeoutStartToClose, replay.TimeoutHeartbeat, replay.TimeoutScheduleToClose} {
		t.Run(string(limit), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				option := map[replay.TimeoutKind]replay.Option{
					replay.TimeoutStartToClose:    replay.StartToClose(time.Minute),
					replay.TimeoutHeartbeat:       replay.HeartbeatTimeout(time.Minute),
					replay.TimeoutScheduleToClose: replay.ScheduleToClose(time.Minute),
				}[limit]
				n := lead(t, newTestJournal(), actors.Config{}, call(oneAttempt, option))
				var slow slowActivity
				workerOn(t, "a", actors.Config{ActivitiesMax: 1}, slow.bind()).connect(n)
				start := time.Now()
				n.start("c", "call", "").want(nil)
				wantTimeout(t, n.failure("c"), limit)
				wantElapsed(t, start, time.Minute)
				waitIdle()
				if len(slow.causes) != 1 {
					t.Fatalf("%d bodies have ended", len(slow.causes))
				}
				wantTimeout(t, slow.causes[0], limit)
				// The slot is free again.
				n.start("d", "call", "").want(nil)
				wantTimeout(t, n.failure("d"), limit)
			})
		})
	}
}

func TestWorker_CancelEndsAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("hurry", func(ctx *replay.Context, _ string) (string, error) {
			result := work.Start(ctx, 0)
			if err := ctx.Sleep(time.Minute); err != nil {
				return "", err
			}
			result.Cancel(ctx)
			return "done", ctx.Sleep(time.Minute)
		}))
		var slow slowActivity
		workerOn(t, "a", actors.Config{}, slow.bind()).connect(n)
		n.start("c", "hurry", "").want(nil)
		n.wantOutput("c", "done")
		if len(slow.causes) != 1 || !errors.Is(slow.causes[0], replay.ErrActivityCanceled) {
			t.Errorf("ended with %v", slow.causes)
		}
	})
}

func TestWorker_FailuresHeartbeatsTokens(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
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
			return "", replay.ErrResultPending
		})).connect(n)
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		if state := n.partition.AttemptsOf(ref).State; state != activity.Pending {
			t.Fatalf("the activity is %q", state)
		}
		done := make(chan error, 1)
		n.partition.CompleteActivity(activity.Completion{Ref: ref, Attempt: 2, Result: payload(t, "by hand")}, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		n.wantOutput("c", "by hand")
	})
}

func TestActivityLimits_PerNode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		config := actors.Config{ActivityLimits: map[string]int{"work": 2}}
		n := lead(t, newTestJournal(), config, call(), c.slowWork("leader", time.Minute), shout(), bindUpper())
		workerOn(t, "a", config, c.slowWork("a", time.Minute)).connect(n)
		for i := range 10 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		waitIdle()
		if l, a := c.attemptsOn("leader"), c.attemptsOn("a"); l != 2 || a != 2 {
			t.Errorf("%d and %d at once", l, a)
		}
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A") // others have slots
		for i := range 10 {
			n.output(fmt.Sprintf("c%d", i))
		}
	})
}

func TestActivityRates_AcrossNodes(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
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
			ActivityRates: map[string]activity.Rate{"work": {PerSecond: 2, Burst: 3}},
		}, call(), body)
		workerOn(t, "a", actors.Config{}, body).connect(n)
		time.Sleep(time.Minute)
		for i := range 20 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		for i := range 20 {
			n.output(fmt.Sprintf("c%d", i))
		}
		slices.SortFunc(at, time.Time.Compare)
		for i := 3; i < len(at); i++ {
			if elapsed := at[i].Sub(at[2]); elapsed != time.Duration(i-2)*500*time.Millisecond {
				t.Errorf("attempt %d began %v after the burst", i, elapsed)
			}
		}
		if !at[0].Equal(at[2]) {
			t.Errorf("the burst took %v", at[2].Sub(at[0]))
		}
	})
}

// A rate can be set, changed and removed while the partition is led. One that stays the same is not
// affected.
func TestActivityRates_ChangeApplies(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		n := lead(t, newTestJournal(), actors.Config{
			ActivityRates: map[string]activity.Rate{"work": {PerSecond: 0.001}},
		}, call(), c.slowWork("here", 0))
		began := func() int { waitIdle(); return c.attemptsOn("here") }
		for i := range 10 {
			n.start(fmt.Sprintf("c%d", i), "call", "").want(nil)
		}
		if got := began(); got != 1 {
			t.Errorf("%d attempts began at first", got)
		}
		n.system.SetActivityRates(map[string]activity.Rate{"work": {PerSecond: 0.001}, "other": {PerSecond: 1}})
		if got := began(); got != 1 {
			t.Errorf("%d attempts began after another rate was set", got)
		}
		n.system.SetActivityRates(map[string]activity.Rate{"work": {PerSecond: 1}})
		time.Sleep(3 * time.Second)
		if got := began(); got != 5 {
			t.Errorf("%d attempts began in 3 s; want one at once and three more", got-1)
		}
		n.system.SetActivityRates(nil)
		if got := began(); got != 10 {
			t.Errorf("%d attempts began without a rate", got)
		}
	})
}

// The leader fails after it has received the result and before it is recorded.
func TestWorkerResult_AckAfterRecord(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		j := newTestJournal()
		first := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
		a := workerOn(t, "a", actors.Config{}, c.slowWork("a", time.Minute))
		conn := a.connect(first)
		first.start("c", "call", "").want(nil)
		waitIdle()
		j.configure(func(j *testJournal) { j.check = func(*journalpb.Append) error { return errRejected } })
		time.Sleep(2 * time.Minute)
		first.close()
		conn.close()
		j.configure(func(j *testJournal) { j.check = nil })
		second := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
		a.connect(second)
		second.wantOutput("c", "a 1")
		if c.attemptsOn("a") != 1 {
			t.Errorf("ran %d times", c.attemptsOn("a"))
		}
	})
}

// The report of a running attempt may be handled after its result, because it waits for the
// recovery of the instance. The worker must keep the result until it is recorded.
func TestWorkerResult_KeptDespiteLateRunningMessage(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n := lead(t, j, actors.Config{OtherNodes: twoNodes}, call(oneAttempt))
		ctx, cancel := context.WithCancel(t.Context())
		from, to := make(chan *clusterpb.FromWorker), make(chan *clusterpb.ToWorker)
		var serving sync.WaitGroup
		serving.Go(func() { _ = n.partition.ServeWorker(ctx, session.NodePings, from, to) })
		defer serving.Wait()
		defer cancel()
		from <- session.Register(&clusterpb.RegisterWorker{Node: "a", Activities: []string{"work"}})
		from <- session.FreeSlots(1)
		n.start("c", "call", "").want(nil)
		assigned := (<-to).GetAssignAttempt().GetAttempt()
		j.configure(func(j *testJournal) { j.check = func(*journalpb.Append) error { return errRejected } })
		message, result := new(session.Result).Of(assigned)
		result.Output = payload(t, "done")
		from <- message
		from <- session.Running(assigned, "work", time.Second)
		waitIdle()
		select {
		case m := <-to:
			t.Errorf("the leader sent %v", m)
		default:
		}
		j.configure(func(j *testJournal) { j.check = nil })
		n.wantOutput("c", "done")
		if m := <-to; !proto.Equal(m.GetAck(), assigned) {
			t.Errorf("the leader sent %v", m)
		}
	})
}

// The same attempt assigned again while its canceled body still runs begins after that body has
// returned.
func TestWorker_AssignedAgainWaitsForCanceledBody(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var running, begun atomic.Int32
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 3}, work.Bind(func(context.Context, int) (string, error) {
			if begun.Add(1); running.Add(1) > 1 {
				t.Error("two bodies of one attempt run at once")
			}
			time.Sleep(time.Minute)
			running.Add(-1)
			return "done", nil
		}))
		commands, reported := make(chan *clusterpb.ToWorker), make(chan *clusterpb.FromWorker)
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { _ = a.system.RunWorker(ctx, 0, a.registration, commands, reported) })
		results, freeSlots := 0, 0
		working.Go(func() {
			for keepAlive := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case m := <-reported:
					freeSlots += int(m.GetFreeSlots())
					if m.GetResult() != nil {
						results++
						cancel()
					}
				case <-keepAlive.C:
					commands <- &clusterpb.ToWorker{}
				case <-ctx.Done():
					return
				}
			}
		})
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		assign, assignment := new(session.Assignment).Of(ref, 1)
		assignment.Name, assignment.Input = "work", payload(t, 0)
		start := time.Now()
		commands <- assign
		waitIdle()
		commands <- session.Cancel(assignment.Attempt, "")
		commands <- assign
		working.Wait()
		wantElapsed(t, start, 2*time.Minute)
		if begun.Load() != 2 || results != 1 || freeSlots != 4 {
			t.Errorf("%d bodies have begun, %d results, %d free slots", begun.Load(), results, freeSlots)
		}
	})
}

// A repeated assignment runs once, and its result is sent again. The attempt ends before the
// worker considers this leader unreachable.
func TestWorker_DuplicateAssignmentRunsOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		a := workerOn(t, "a", actors.Config{ActivitiesMax: 3}, c.slowWork("a", 100*time.Millisecond))
		commands, reported := make(chan *clusterpb.ToWorker), make(chan *clusterpb.FromWorker)
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { _ = a.system.RunWorker(ctx, 0, a.registration, commands, reported) })
		results, freeSlots := 0, 0
		listen := func(until func() bool) {
			for !until() {
				m := <-reported
				freeSlots += int(m.GetFreeSlots())
				if m.GetResult() != nil {
					results++
				}
			}
		}
		listen(func() bool { return freeSlots == 3 })
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		command, assignment := new(session.Assignment).Of(ref, 1)
		assignment.Name, assignment.Input = "work", payload(t, 0)
		commands <- command
		commands <- command
		listen(func() bool { return results == 1 })
		commands <- command
		listen(func() bool { return results == 2 })
		commands <- session.Ack(assignment.Attempt)
		commands <- session.Ack(assignment.Attempt)
		listen(func() bool { return freeSlots == 4 })
		if c.attemptsOn("a") != 1 {
			t.Errorf("ran %d times", c.attemptsOn("a"))
		}
		cancel()
		working.Wait()
	})
}
