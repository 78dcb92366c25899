package actors_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func copyMessage(source string, execution, upTo uint64, request string) actors.Message {
	return actors.Message{
		Message: engine.Message{Event: new(journalpb.Event)},
		Copy: &journalpb.CopyHistory{
			Source: source, SourceExecution: execution, UpTo: upTo, RequestId: request, KeepEvents: true,
			Origin: &journalpb.Origin{Principal: "client ops", Reason: "incident"},
		},
	}
}

// copy begins a run of an instance with a copy of the latest execution of the source.
func (n *node) copy(target, source string, upTo uint64) *reply {
	n.t.Helper()
	meta, ok := n.journal.Instance(source)
	if !ok {
		n.t.Fatalf("no instance %q", source)
	}
	return n.deliver(target, copyMessage(source, meta.Execution, upTo, fmt.Sprint("copy-", upTo, "-", meta.Execution)))
}

func wantRefused(t testing.TB, r *reply, reason state.CopyReason) {
	t.Helper()
	if refused, ok := errors.AsType[*state.CopyError](r.get().Err); !ok || refused.Reason != reason {
		t.Errorf("%v, want %q", refused, reason)
	}
}

// twoSteps calls upper, sleeps, waits for a word, calls a child, and calls upper again. calls
// counts the calls of upper.
func twoSteps(calls *atomic.Int64) []replay.Definition {
	return []replay.Definition{
		upper.Bind(func(_ context.Context, text string) (string, error) {
			calls.Add(1)
			return strings.ToUpper(text), nil
		}),
		shout(),
		program("two steps", func(ctx *replay.Context, text string) (string, error) {
			first, err := upper.Call(ctx, text)
			if err != nil {
				return "", err
			}
			if err := ctx.Sleep(time.Hour); err != nil {
				return "", err
			}
			second, err := word.Wait(ctx)
			if err != nil {
				return "", err
			}
			third, err := shoutHandle.Call(ctx, second)
			if err != nil {
				return "", err
			}
			last, err := upper.Call(ctx, "end")
			return first + " " + second + " " + third + " " + last, err
		}),
	}
}

// The events of "two steps".
const (
	callOfTwoSteps  = 2
	sleepOfTwoSteps = 4
	waitOfTwoSteps  = 6
	childOfTwoSteps = 8
	lastOfTwoSteps  = 10
)

func runTwoSteps(n *node) {
	n.t.Helper()
	n.start("a", "two steps", "x").want(nil)
	time.Sleep(2 * time.Hour)
	n.send("a", "word", "w").want(nil)
	n.wantOutput("a", "X w W END")
}

func TestCopy_RewindsEndedRun(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var calls atomic.Int64
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, twoSteps(&calls)...)
		runTwoSteps(n)
		for _, c := range []struct{ upTo, again uint64 }{
			{1, 3}, {callOfTwoSteps, 3}, {callOfTwoSteps + 1, 2}, {sleepOfTwoSteps, 2}, {waitOfTwoSteps, 2}, {childOfTwoSteps - 1, 2},
			{childOfTwoSteps + 1, 1}, {lastOfTwoSteps, 1}, {lastOfTwoSteps + 1, 0},
		} {
			before, execution := calls.Load(), uint64(1)
			meta, _ := n.journal.Instance("a")
			answer := n.deliver("a", copyMessage("a", execution, c.upTo, fmt.Sprint("request-", c.upTo))).want(nil)
			if answer.FirstExecution != meta.Execution+1 || answer.Dropped {
				t.Errorf("up to %d: %+v", c.upTo, answer)
			}
			again := n.deliver("a", copyMessage("a", execution, c.upTo, fmt.Sprint("request-", c.upTo))).want(nil)
			if again.FirstExecution != answer.FirstExecution || again.Incarnation != answer.Incarnation || !again.Dropped {
				t.Errorf("repeated: %+v, first %+v", again, answer)
			}
			n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
			n.wantOutput("a", "X w W END")
			if made := uint64(calls.Load() - before); made != c.again {
				t.Errorf("up to %d: %d calls were made again, want %d", c.upTo, made, c.again)
			}
		}
		wantRefused(t, n.copy("a", "a", 100), state.CopyBeyondEnd)
		wantRefused(t, n.deliver("a", copyMessage("a", 1, childOfTwoSteps, "r")), state.CopyOpenChild)
		if n.log.hasWarnings() {
			t.Errorf("a refusal was logged:\n%s", n.log.text.String())
		}
	})
}

// A run that is rewound while it runs is terminated, and nothing of it reaches the new one: its
// timer, its activity, its child.
func TestCopy_RewindsRunningInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var calls atomic.Int64
		for _, resident := range []int{0, 1} {
			n := leadWithIncarnations(t, newTestJournal(), actors.Config{ResidentMax: resident}, twoSteps(&calls)...)
			n.start("a", "two steps", "x").want(nil)
			if resident > 0 {
				n.start("other", "shout", "x").want(nil)
			}
			waitIdle()
			time.Sleep(30 * time.Minute)
			n.copy("a", "a", sleepOfTwoSteps).want(nil)
			waitIdle()
			var types []string
			for event := range n.journal.Events("a", 1, 1) {
				types = append(types, event.Type())
			}
			if last := types[len(types)-1]; last != "OrchestrationTerminated" {
				t.Errorf("the first execution has %v", types)
			}
			time.Sleep(29 * time.Minute)
			if got := n.count("a", "TimerFired"); got != 0 {
				t.Error("the timer has fired too early")
			}
			time.Sleep(2 * time.Minute)
			if got := n.count("a", "TimerFired"); got != 1 {
				t.Errorf("the timer has fired %d times at the recorded time", got)
			}
			n.send("a", "word", "w").want(nil)
			n.wantOutput("a", "X w W END")
		}
	})
}

// The operator's remedy for a bad deployment: a stalled run goes on from before the mismatch.
func TestCopy_RewindsStalledInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var calls atomic.Int64
		j := newTestJournal()
		n := leadWithIncarnations(t, j, actors.Config{}, twoSteps(&calls)...)
		n.start("a", "two steps", "x").want(nil)
		time.Sleep(2 * time.Hour)
		n.close()
		// The new code waits for a word instead of sleeping.
		n = leadWithIncarnations(t, j, actors.Config{}, bindUpper(), program("two steps", func(ctx *replay.Context, text string) (string, error) {
			first, err := upper.Call(ctx, text)
			if err != nil {
				return "", err
			}
			second, err := word.Wait(ctx)
			return first + second, err
		}))
		n.send("a", "word", "w")
		waitIdle()
		if n.partition.StallReason("a") == nil {
			t.Fatal("not stalled")
		}
		wantRefused(t, n.copy("a", "a", 100), state.CopyBeyondEnd)
		n.copy("a", "a", callOfTwoSteps+1).want(nil)
		n.wantOutput("a", "Xw")
		if reason := n.partition.StallReason("a"); reason != nil {
			t.Errorf("still stalled: %v", reason)
		}
	})
}

// A copy cuts a step between two cancellations: the subscription that is not canceled yet gets the
// kept event, and its cancellation gives it back.
func TestCopy_CutsCancellationsOfSubscriptions(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		goOn, other := replay.Event[string]("go"), replay.Event[string]("other")
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, program("cut", func(ctx *replay.Context, _ string) (string, error) {
			if _, err := replay.Race(ctx, goOn.Subscribe(ctx), other.Subscribe(ctx), word.Subscribe(ctx)); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}))
		n.start("a", "cut", "x").want(nil)
		n.send("a", "go", "g").want(nil)
		waitIdle()
		n.send("a", "word", "w").want(nil)
		n.wantOutput("a", "w")
		if canceled, err := n.journal.Event("a", 1, 6); err != nil || canceled.GetCancelRequested() == nil {
			t.Fatal(canceled, err)
		}
		n.copy("a", "a", 6).want(nil)
		n.wantOutput("a", "w")
	})
}

// Code that does not return is abandoned.
func TestCopy_RewindsHungInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		var hangs atomic.Bool
		hangs.Store(true)
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, bindUpper(), program("hangs", func(ctx *replay.Context, text string) (string, error) {
			first, err := upper.Call(ctx, text)
			if hangs.Load() {
				<-release
			}
			return first, err
		}))
		defer close(release)
		n.start("a", "hangs", "x").want(nil)
		time.Sleep(time.Minute)
		if hung, _ := n.partition.LiveState("a"); !hung {
			t.Fatal("not hung")
		}
		hangs.Store(false)
		n.copy("a", "a", 2).want(nil)
		n.wantOutput("a", "X")
	})
}

// A refused copy leaves a hung instance as it was: the code restarts. A fork onto one waits for the
// code.
func TestCopy_RefusedOnHungInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, bindUpper(), program("hangs", func(ctx *replay.Context, text string) (string, error) {
			first, err := upper.Call(ctx, text)
			<-release
			return first, err
		}))
		for _, id := range []string{"a", "b"} {
			n.start(id, "hangs", id).want(nil)
		}
		time.Sleep(time.Minute)
		for _, id := range []string{"a", "b"} {
			if hung, _ := n.partition.LiveState(id); !hung {
				t.Fatalf("%s is not hung", id)
			}
		}
		fork := n.copy("b", "a", 1)
		wantRefused(t, n.copy("a", "a", 1000), state.CopyBeyondEnd)
		time.Sleep(time.Minute)
		fork.wantPending()
		close(release)
		wantRefused(t, fork, state.CopyTargetExists)
		n.wantOutput("a", "A")
		n.wantOutput("b", "B")
	})
}

func TestCopy_Forks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var calls atomic.Int64
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, twoSteps(&calls)...)
		n.start("a", "two steps", "x").want(nil)
		waitIdle()
		answer := n.copy("b", "a", callOfTwoSteps+1).want(nil)
		if answer.FirstExecution != 1 {
			t.Errorf("%+v", answer)
		}
		wantRefused(t, n.deliver("b", copyMessage("a", 1, 1, "another")), state.CopyTargetExists)
		other := copyMessage("a", 1, 1, "input")
		other.Copy.Input = payload(t, "y")
		n.deliver("c", other).want(nil)
		time.Sleep(2 * time.Hour)
		for id, want := range map[string]string{"a": "X", "b": "X", "c": "Y"} {
			n.send(id, "word", id).want(nil)
			n.wantOutput(id, want+" "+id+" "+strings.ToUpper(id)+" END")
		}
		if meta, _ := n.journal.Instance("a"); meta.Execution != 1 {
			t.Errorf("the source has execution %d", meta.Execution)
		}
	})
}

// The copied and the kept payloads stay encoded.
func TestCopy_WithCodec(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var calls atomic.Int64
		payloads := newAEADCodec(t)
		sealed := func(text string) *journalpb.Payload {
			encoded, err := payloads.Encode(replay.PayloadInfo{}, text)
			if err != nil {
				t.Fatal(err)
			}
			return encoded
		}
		n := leadWith(t, newTestJournal(), actors.Config{}, payloads, twoSteps(&calls)...)
		n.partition.Close()
		n.partitionConfig = actors.PartitionConfig{HasIncarnations: func() bool { return true }}
		n = n.leadAgain()
		n.deliver("a", message(&journalpb.OrchestrationStarted{Name: "two steps", Input: sealed("x")})).want(nil)
		time.Sleep(2 * time.Hour)
		n.deliver("a", actors.Message{Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
			ExternalEvent: &journalpb.ExternalEvent{Name: "word", Data: sealed("w")},
		}}}}).want(nil)
		n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
		n.copy("a", "a", callOfTwoSteps+1).want(nil)
		n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
		end, err := payloads.OpenEvent(n.last("a"))
		if err != nil || string(end.GetOrchestrationCompleted().GetOutput().GetData()) != `"X w W END"` {
			t.Errorf("%v, %v", end, err)
		}
	})
}

// A run that has continued as new is run again from its first execution; rewind copies from the
// latest.
func TestCopy_AfterContinueAsNew(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		counter := replay.Orchestration[int, string]("counter")
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, bindUpper(), counter.Bind(func(ctx *replay.Context, count int) (string, error) {
			text, err := upper.Call(ctx, fmt.Sprint("x", count))
			if err != nil || count == 2 {
				return text, err
			}
			return "", counter.ContinueAsNew(ctx, count+1)
		}))
		n.start("a", "counter", 0).want(nil)
		n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
		n.copy("a", "a", 2).want(nil) // execution 4
		n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
		n.wantOutput("a", "X2")
		n.deliver("a", copyMessage("a", 2, 3, "r")).want(nil) // executions 5 and 6
		n.awaitStatus("a", journalpb.Status_STATUS_COMPLETED)
		n.wantOutput("a", "X2")
		wantRefused(t, n.deliver("a", copyMessage("a", 2, 4, "s")), state.CopyEnded)
		if meta, _ := n.journal.Instance("a"); meta.Execution != 6 || meta.FirstExecution != 5 {
			t.Errorf("%v", meta)
		}
	})
}

// A running child belongs to its parent, which would get two ends.
func TestCopy_ParentWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := leadWithIncarnations(t, newTestJournal(), actors.Config{}, waitingChild(), program("parent", func(ctx *replay.Context, text string) (string, error) {
			return kid.Call(ctx, text, replay.ChildID("kid"))
		}))
		n.start("p", "parent", "x").want(nil)
		waitIdle()
		wantRefused(t, n.copy("kid", "kid", 1), state.CopyHasParent)
		n.copy("fork", "kid", 1).want(nil)
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("p", "a")
		n.copy("kid", "kid", 1).want(nil) // its parent has the end
		n.wantOutput("kid", "a")          // the event is kept
		n.send("fork", "word", "c").want(nil)
		n.wantOutput("fork", "c")
	})
}

// An activity that is open at the point gets its whole time again, as under every later leader.
func TestCopy_ActivityTimeouts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts atomic.Int64
		j := newTestJournal()
		definitions := []replay.Definition{
			upper.Bind(func(ctx context.Context, text string) (string, error) {
				attempts.Add(1)
				<-ctx.Done()
				return "", ctx.Err()
			}),
			program("limited", func(ctx *replay.Context, text string) (string, error) {
				return upper.Call(ctx, text, replay.ScheduleToClose(time.Hour))
			}),
		}
		n := leadWithIncarnations(t, j, actors.Config{}, definitions...)
		n.start("a", "limited", "x").want(nil)
		time.Sleep(5 * time.Hour)
		n.awaitStatus("a", journalpb.Status_STATUS_FAILED)
		n.copy("a", "a", 2).want(nil)
		time.Sleep(30 * time.Minute)
		n = n.leadAgain()
		time.Sleep(29 * time.Minute)
		if meta, _ := j.Instance("a"); meta.Status != journalpb.Status_STATUS_RUNNING || attempts.Load() < 2 {
			t.Fatalf("after 59 minutes: %v, %d attempts", meta, attempts.Load())
		}
		time.Sleep(2 * time.Minute)
		n.awaitStatus("a", journalpb.Status_STATUS_FAILED)
	})
}

// With a leader that is lost right before or after the record, there is exactly one copy, and the
// next leader continues it.
func TestCopy_LeaderLost(t *testing.T) {
	for _, running := range []bool{false, true} {
		for _, when := range []string{"before", "after", "after the answer"} {
			t.Run(fmt.Sprint(when, " running ", running), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					var calls atomic.Int64
					j := newTestJournal()
					n := leadWithIncarnations(t, j, actors.Config{}, twoSteps(&calls)...)
					if running {
						n.start("a", "two steps", "x").want(nil)
						waitIdle()
					} else {
						runTwoSteps(n)
					}
					switch when {
					case "before":
						j.crashAt(0, false)
					case "after":
						j.crashAt(1, false)
					default:
						j.crashAt(1, true)
					}
					m := copyMessage("a", 1, callOfTwoSteps, "r")
					first := n.deliver("a", m).get()
					if (first.Err == nil) != (when == "after the answer") {
						t.Fatalf("%+v", first)
					}
					n.partition.Close()
					j.clearCrash()
					n = n.leadAgain()
					if answer := n.deliver("a", m).want(nil); answer.FirstExecution != 2 || answer.Dropped != (when != "before") {
						t.Errorf("repeated: %+v", answer)
					}
					time.Sleep(2 * time.Hour)
					if running {
						n.send("a", "word", "w").want(nil)
					}
					n.wantOutput("a", "X w W END")
					if meta, _ := j.Instance("a"); meta.Execution != 2 {
						t.Errorf("%d executions", meta.Execution)
					}
					// Even after another copy, the request is answered with its own run.
					n.deliver("a", copyMessage("a", 1, 1, "s")).want(nil)
					if answer := n.deliver("a", m).want(nil); answer.FirstExecution != 2 {
						t.Errorf("repeated after another copy: %+v", answer)
					}
					n.deliver("a", actors.Message{Message: engine.Message{Event: terminatedEvent()}}).want(nil)
				})
			})
		}
	}
}

// TestRandomCopies rewinds the last execution of random programs to random events. Whatever happens
// to the leader, the program must return what it returned before, and nothing that the copy has
// completed is done again.
func TestRandomCopies(t *testing.T) {
	seeds := uint64(shorttest.Cases(400))
	var copies int
	for seed := uint64(1); seed <= seeds && !t.Failed(); seed += 2 {
		for _, lost := range []bool{false, true} {
			inVirtualTime(t, func(t *testing.T) {
				w := newWorld(t, seed, 0)
				if w.ending != byItself {
					return
				}
				w.lossless, w.incarnations = !lost, true
				w.withoutOperator = true // a copied hold would last: its release comes later
				w.lead()
				w.clients.Go(w.start)
				w.runToEnd()
				w.clients.Wait()
				w.checkSent()
				source, _ := w.journal.Instance(rootID)
				for range 4 {
					copies += w.copyAndCheck(source, 1+uint64(w.intn(int(source.LastEventId)-1)), lost)
				}
				w.leader().partition.Close()
				w.closeZombie()
				if t.Failed() {
					w.logHistories()
				}
			})
			if t.Failed() {
				t.Logf("seed %d, leader lost %t", seed, lost)
				return
			}
		}
	}
	if copies < int(seeds)/4 {
		t.Errorf("only %d copies", copies)
	}
	t.Logf("%d copies", copies)
}

// copyAndCheck rewinds the root to an event of an execution that has ended.
func (w *world) copyAndCheck(source *journalpb.Instance, upTo uint64, lost bool) (copies int) {
	t := w.t
	outcome := w.outcome
	history := w.encodedEvents(source.Execution)
	if w.callsChosenIDs(source.Execution, upTo) || w.hasLongTimer(source.Execution, upTo) {
		return 0 // the instances exist, so the calls would fail; the timer, which must not fire, may be due
	}
	done := w.closedUpTo(source.Execution, upTo)
	var again []string
	before, _ := w.journal.Instance(rootID)
	w.mu.Lock()
	w.onAttempt = func(a *replay.Attempt) {
		if a.Instance == rootID && a.Execution > before.Execution && done[a.EventID] {
			again = append(again, a.IdempotencyKey())
		}
	}
	w.mu.Unlock()
	children := w.childrenUpTo(source.Execution, upTo)
	if lost {
		w.journal.crashAt(w.intn(3), w.intn(2) == 0)
	}
	m := copyMessage(rootID, source.Execution, upTo, fmt.Sprint("copy-", before.Execution))
	for {
		answer := w.leader().deliver(rootID, m).get()
		if refused, ok := errors.AsType[*state.CopyError](answer.Err); ok {
			if refused.Reason != state.CopyOpenChild && refused.Reason != state.CopyOpenMessage {
				t.Errorf("up to %d: %v", upTo, refused)
			}
			w.journal.clearCrash()
			return 0
		}
		if answer.Err == nil {
			break
		}
		if isCrashed(w.journal) {
			w.replaceLeader()
			w.journal.clearCrash()
		}
	}
	if isCrashed(w.journal) {
		w.replaceLeader()
	}
	w.journal.clearCrash()
	w.deliver(rootID, &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{OrchestrationResumed: &journalpb.OrchestrationResumed{}}})
	w.runToEnd()
	after, _ := w.journal.Instance(rootID)
	if after.FirstExecution != before.Execution+1 {
		t.Errorf("up to %d: the run begins with execution %d after %d", upTo, after.FirstExecution, before.Execution)
	}
	if last, err := w.journal.Event(rootID, after.Execution, after.LastEventId); err != nil || outcomeOf(last) != outcome {
		t.Errorf("copied up to %d: returned\n\t%s\nwant, as before,\n\t%s", upTo, outcomeOf(last), outcome)
	}
	if copied := w.encodedEvents(after.FirstExecution); !slices.EqualFunc(copied[1:upTo], history[1:upTo], bytes.Equal) {
		t.Errorf("copied up to %d: the first events differ", upTo)
	}
	if len(again) > 0 {
		t.Errorf("copied up to %d: done again: %v", upTo, again)
	}
	for id, meta := range children {
		if now, _ := w.journal.Instance(id); !proto.Equal(now, meta) {
			t.Errorf("copied up to %d: child %s has gone on from %v to %v", upTo, id, meta, now)
		}
	}
	for number := after.FirstExecution; number <= after.Execution; number++ {
		newExecution(t, w.journal.Machine, after, number).checkReplay(w.registry())
	}
	return 1
}

func (w *world) eventsOf(execution uint64) (events []*journalpb.Event) {
	for event, err := range w.journal.Events(rootID, execution, 1) {
		if err != nil {
			w.t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

func (w *world) encodedEvents(execution uint64) (encoded [][]byte) {
	for _, event := range w.eventsOf(execution) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
		if err != nil {
			w.t.Fatal(err)
		}
		encoded = append(encoded, b)
	}
	return encoded
}

// callsChosenIDs reports whether an execution has started an instance with an ID of its own after
// an event, or a program, which may do so.
func (w *world) callsChosenIDs(execution, upTo uint64) bool {
	for _, event := range w.eventsOf(execution)[upTo:] {
		id := event.GetSubOrchestrationScheduled().GetInstance() + event.GetOrchestrationChained().GetInstance()
		if id != "" && (!strings.Contains(id, "::") || event.GetSubOrchestrationScheduled().GetName() == programHandle.Name()) {
			return true
		}
	}
	return false
}

// hasLongTimer reports whether a timer of an hour is open at an event.
func (w *world) hasLongTimer(execution, upTo uint64) bool {
	closed := w.closedUpTo(execution, upTo)
	for _, event := range w.eventsOf(execution)[:upTo] {
		if created := event.GetTimerCreated(); created != nil && !closed[event.EventId] && created.FireAt-event.Timestamp == int64(forever) {
			return true
		}
	}
	return false
}

// closedUpTo returns the activities that are closed at an event.
func (w *world) closedUpTo(execution, upTo uint64) map[uint64]bool {
	closed := make(map[uint64]bool)
	for _, event := range w.eventsOf(execution)[:upTo] {
		if event.SourceEventId != 0 {
			closed[event.SourceEventId] = true
		}
	}
	return closed
}

// childrenUpTo returns the children that an execution has started up to an event.
func (w *world) childrenUpTo(execution, upTo uint64) map[string]*journalpb.Instance {
	children := make(map[string]*journalpb.Instance)
	for _, event := range w.eventsOf(execution)[:upTo] {
		if child := event.GetSubOrchestrationScheduled(); child != nil {
			if meta, ok := w.journal.Instance(child.Instance); ok {
				children[child.Instance] = meta
			}
		}
	}
	return children
}
