package actors_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var echo = replay.Update[string, string]("echo")

var errUnwanted = errors.New("unwanted")

// handleEcho registers an update whose validation returns an error and whose result repeats its
// input, and waits for an event.
func handleEcho(ctx *replay.Context, rejection error, times int) (string, error) {
	validate := func(string) error { return rejection }
	run := func(_ *replay.Context, s string) (string, error) { return strings.Repeat(s, times), nil }
	if err := echo.Handle(ctx, validate, run); err != nil {
		return "", err
	}
	return word.Wait(ctx)
}

func echoEvent(t testing.TB, id, value string) *journalpb.ExternalEvent {
	return &journalpb.ExternalEvent{Name: engine.UpdatePrefix + echo.Name(), Data: payload(t, value), RequestId: id}
}

func echoMessage(t testing.TB, id, value string) actors.Message {
	event := &journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: echoEvent(t, id, value)}}
	return actors.Message{Message: engine.Message{Validation: engine.ValidateFirst, Event: event}}
}

// startWithEcho returns a start that carries an update.
func (n *node) startWithEcho(t testing.TB, name, input, value string) actors.Message {
	started := n.startMessage(name, input)
	started.RequestId = "r"
	m := message(started)
	m.Update = echoEvent(t, "r", value)
	return m
}

// startRetried begins a run whose attempts follow each other after a minute.
func (n *node) startRetried(t testing.TB, id, name string, deadline time.Duration) {
	t.Helper()
	policy, err := engine.RecordedRetry(&engine.RetryPolicy{InitialInterval: time.Minute, MaxAttempts: 3})
	if err != nil {
		t.Fatal(err)
	}
	started := n.startMessage(name, "")
	started.Retry = policy
	if deadline > 0 {
		started.Deadline = time.Now().Add(deadline).UnixNano()
	}
	n.deliver(id, message(started)).want(nil)
	time.Sleep(time.Second) // virtual: the first attempt has failed
}

// failsFirst returns a program whose first attempt fails.
func failsFirst(then func(ctx *replay.Context) (string, error)) replay.Definition {
	return program("retries", func(ctx *replay.Context, _ string) (string, error) {
		if ctx.Attempt() == 1 {
			return "", errors.New("first attempt")
		}
		return then(ctx)
	})
}

// The code is abandoned once, and the start is recorded without the update.
func TestStartWithUpdate_RejectedByCodeWhoseDeferBlocks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		var begun atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{}, program("defers", func(ctx *replay.Context, _ string) (string, error) {
			begun.Add(1)
			defer blockHere(release)
			return handleEcho(ctx, errUnwanted, 1)
		}))
		r := n.deliver("b", n.startWithEcho(t, "defers", "", "x"))
		time.Sleep(30 * time.Second)
		if a := r.get(); a.Err != nil || a.UpdateRecorded {
			t.Errorf("answered %+v", a)
		}
		if got := n.system.Stats(n.partition).AbandonedCode; got != 1 || begun.Load() != 2 {
			t.Errorf("%d times abandoned, %d times begun", got, begun.Load())
		}
		close(release)
	})
}

// startRetriedWithEcho returns a start with an update, of a run that has three attempts.
func (n *node) startRetriedWithEcho(t testing.TB, name string, backoff time.Duration) actors.Message {
	t.Helper()
	policy, err := engine.RecordedRetry(&engine.RetryPolicy{InitialInterval: backoff, MaxAttempts: 3})
	if err != nil {
		t.Fatal(err)
	}
	m := n.startWithEcho(t, name, "", "x")
	m.Event.GetOrchestrationStarted().Retry = policy
	return m
}

// endsWithUpdates handles the update and ends when it is done.
func endsWithUpdates(ctx *replay.Context) (output string, err error) {
	output = "without update"
	run := func(_ *replay.Context, s string) (string, error) {
		output = s
		return s, nil
	}
	if err := echo.Handle(ctx, func(string) error { return nil }, run); err != nil {
		return "", err
	}
	return output, replay.AwaitUpdates(ctx)
}

// The update of a start whose first attempt fails waits for the next one: the run does not end
// before its sender delivers it again.
func TestStartWithUpdate_WaitsWithoutSender(t *testing.T) {
	for name, late := range map[string]bool{"fails before the handler": false, "fails after the handler": true} {
		for _, backoff := range []time.Duration{1, time.Minute} {
			t.Run(fmt.Sprintf("%s, backoff %s", name, backoff), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					n := lead(t, newTestJournal(), actors.Config{}, program("retries", func(ctx *replay.Context, _ string) (string, error) {
						if ctx.Attempt() == 3 {
							return endsWithUpdates(ctx)
						}
						if late { // the body returns before the handler begins
							run := func(*replay.Context, string) (string, error) { return "failed attempt", nil }
							if err := echo.Handle(ctx, func(string) error { return nil }, run); err != nil {
								return "", err
							}
						}
						return "", errUnwanted
					}))
					a := n.deliver("b", n.startRetriedWithEcho(t, "retries", backoff)).want(nil)
					if a.UpdateRecorded || a.UpdateErr != nil || a.Dropped {
						t.Errorf("answered %+v", a)
					}
					n.wantOutput("b", "x")
					if meta, _ := n.journal.Instance("b"); meta.Execution != 3 {
						t.Errorf("%d attempts", meta.Execution)
					}
					n.deliver("b", echoMessage(t, "r", "x")).want(actors.ErrEnded)
				})
			})
		}
	}
}

// The sender that delivers the update again while it waits learns that it is recorded, or why it is
// not.
func TestStartWithUpdate_DeliveredAgainWhileItWaits(t *testing.T) {
	for _, rejection := range []error{nil, errUnwanted} {
		inVirtualTime(t, func(t *testing.T) {
			n := lead(t, newTestJournal(), actors.Config{}, failsFirst(func(ctx *replay.Context) (string, error) { return handleEcho(ctx, rejection, 1) }))
			n.deliver("b", n.startRetriedWithEcho(t, "retries", time.Minute)).want(nil)
			time.Sleep(time.Second)
			again := n.deliver("b", echoMessage(t, "r", "x"))
			time.Sleep(time.Second)
			again.wantPending()
			a := again.get()
			if rejected := new(actors.RejectedError); rejection != nil && !errors.As(a.Err, &rejected) || rejection == nil && (a.Err != nil || !a.Dropped) {
				t.Errorf("validation returns %v: answered %+v", rejection, a)
			}
			want := 0
			if rejection == nil {
				want = 1
			}
			if got := n.count("b", "ExternalEvent"); got != want {
				t.Errorf("validation returns %v: the update is recorded %d times", rejection, got)
			}
		})
	}
}

// The code of the first attempt is blocked, so its start is recorded alone.
func TestStartWithUpdate_WaitsWhileCodeIsBlocked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, program("blocks", func(ctx *replay.Context, _ string) (string, error) {
			if ctx.Attempt() == 1 {
				blockHere(release)
				return "", errUnwanted
			}
			return endsWithUpdates(ctx)
		}))
		n.partition.Deliver("b", n.startRetriedWithEcho(t, "blocks", 1))
		time.Sleep(30 * time.Second)
		close(release)
		n.wantOutput("b", "x")
	})
}

// The update waits for the next execution of a run that continues as new in its first step.
func TestStartWithUpdate_WaitsForNextExecution(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		continues := replay.Orchestration[string, string]("continues")
		n := lead(t, newTestJournal(), actors.Config{}, continues.Bind(func(ctx *replay.Context, input string) (string, error) {
			if input == "" {
				return "", continues.ContinueAsNew(ctx, "next")
			}
			return handleEcho(ctx, nil, 1)
		}))
		n.deliver("b", n.startWithEcho(t, "continues", "", "x")).want(nil)
		n.send("b", word.Name(), "end").want(nil)
		n.wantOutput("b", "end")
		if got := n.count("b", "ExternalEvent"); got != 2 {
			t.Errorf("%d events and updates", got)
		}
	})
}

// What the first attempt rejects is not for the next attempt, which would accept it.
func TestStartWithUpdate_RejectedDoesNotWait(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, program("retries", func(ctx *replay.Context, _ string) (string, error) {
			if ctx.Attempt() > 1 {
				return handleEcho(ctx, nil, 1)
			}
			err := echo.Handle(ctx, func(string) error { return errUnwanted }, func(*replay.Context, string) (string, error) { return "", nil })
			return "", errors.Join(err, errUnwanted)
		}))
		if a := n.deliver("b", n.startRetriedWithEcho(t, "retries", time.Minute)).want(nil); !errors.Is(a.UpdateErr, errUnwanted) {
			t.Errorf("answered %+v", a)
		}
		time.Sleep(2 * time.Minute)
		n.wantHistory("b", "OrchestrationStarted", "TimerCreated", "TimerFired of 2", "ExternalSubscribed")
	})
}

// A waiting update is in flight until it is decided.
func TestStartWithUpdate_CountsWhileItWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{InFlightMax: 1}, failsFirst(func(ctx *replay.Context) (string, error) { return handleEcho(ctx, nil, 1) }))
		n.deliver("b", n.startRetriedWithEcho(t, "retries", time.Minute)).want(nil)
		for range 2 {
			var busy *actors.BusyError
			if a := n.start("c", "retries", "").get(); !errors.As(a.Err, &busy) || busy.Bound != actors.BoundInFlight {
				t.Errorf("answered %+v", a)
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(2 * time.Minute)
		n.start("c", "retries", "").want(nil)
	})
}

func TestHeldUpdate_RejectedByCodeWhoseDeferBlocks(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{}, failsFirst(func(ctx *replay.Context) (string, error) {
			defer blockHere(release)
			return handleEcho(ctx, errUnwanted, 1)
		}))
		n.startRetried(t, "b", "retries", 0)
		r := n.deliver("b", echoMessage(t, "a", "a"))
		time.Sleep(2 * time.Minute)
		var rejected *actors.RejectedError
		if a := r.get(); !errors.As(a.Err, &rejected) {
			t.Errorf("answered %+v", a)
		}
		n.wantHistory("b", "OrchestrationStarted", "TimerCreated", "TimerFired of 2", "ExternalSubscribed")
		if got := n.system.Stats(n.partition).AbandonedCode; got != 1 {
			t.Errorf("%d times abandoned", got)
		}
		close(release)
	})
}

// The updates that wait for an attempt are recorded in several turns if one append cannot hold all.
func TestHeldUpdates_ExceedOneAppend(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var begun atomic.Int32
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, failsFirst(func(ctx *replay.Context) (string, error) {
			if begun.Add(1) > 100 {
				return "", errors.New("no progress")
			}
			return handleEcho(ctx, nil, 600)
		}))
		n.startRetried(t, "b", "retries", 0)
		var replies []*reply
		for _, id := range []string{"a", "b", "c", "d"} {
			replies = append(replies, n.deliver("b", echoMessage(t, id, id)))
		}
		time.Sleep(2 * time.Minute)
		for _, r := range replies {
			r.want(nil)
		}
	})
}

func TestHeldUpdate_RunEndsAtDeadline(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, failsFirst(func(ctx *replay.Context) (string, error) { return handleEcho(ctx, nil, 1) }))
		n.startRetried(t, "b", "retries", 20*time.Second)
		r := n.deliver("b", echoMessage(t, "a", "a"))
		time.Sleep(10 * time.Second)
		r.wantPending()
		r.want(actors.ErrEnded)
	})
}

// The run begins without the update, which its sender delivers again.
func TestStartWithUpdate_ExceedsOneAppend(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, program("large", func(ctx *replay.Context, _ string) (string, error) {
			return handleEcho(ctx, nil, 0)
		}))
		a := n.deliver("b", n.startWithEcho(t, "large", strings.Repeat("x", 1200), strings.Repeat("y", 1200))).get()
		if a.Err != nil || a.UpdateRecorded || a.UpdateErr != nil {
			t.Errorf("answered %+v", a)
		}
		n.wantHistory("b", "OrchestrationStarted", "ExternalSubscribed")
	})
}

func TestStartWithUpdate_CountsBytesInFlight(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{InFlightBytesMax: 10_000}, program("large", func(ctx *replay.Context, _ string) (string, error) {
			return word.Wait(ctx)
		}))
		n.journal.holdAppends()
		for _, id := range []string{"a", "b", "c"} {
			n.deliver(id, n.startWithEcho(t, "large", "", strings.Repeat("y", 20_000)))
		}
		time.Sleep(time.Second)
		if got := n.system.Stats(n.partition).Rejections.InFlight; got != 2 {
			t.Errorf("%d starts rejected", got)
		}
		n.journal.releaseAppends()
	})
}

// A run holds at most 1,000 updates for its next attempt, also of callers that have gone.
func TestHeldUpdates_AreBounded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, failsFirst(func(ctx *replay.Context) (string, error) { return handleEcho(ctx, nil, 1) }))
		n.startRetried(t, "b", "retries", 0)
		for i := range 1000 {
			n.deliver("b", echoMessage(t, string(rune('a'+i%26))+strings.Repeat("x", i/26), "a"))
		}
		var busy *actors.BusyError
		if a := n.deliver("b", echoMessage(t, "further", "a")).get(); !errors.As(a.Err, &busy) || busy.Bound != actors.BoundInstance {
			t.Errorf("answered %+v", a)
		}
	})
}

// delayedConditions decides about conditions later than about anything else.
type delayedConditions struct {
	*testJournal
	decisions chan func()
}

func (j *delayedConditions) SetCondition(c *journalpb.SetCondition, done func(error)) {
	j.decisions <- func() { j.testJournal.SetCondition(c, done) }
}

// A new leader that removes conditions of instances that waited for code keeps the new condition of
// an instance that has stalled meanwhile.
func TestConditions_NewOneOfResidentInstanceIsKept(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		journal := newTestJournal()
		first := lead(t, journal, actors.Config{}, collect())
		first.start("a", "collect", "xx").want(nil)
		first.start("c", "collect", "xx").want(nil)
		first.close()
		without := lead(t, journal, actors.Config{}, bindUpper())
		without.send("a", "word", "a")
		without.send("c", "word", "a")
		time.Sleep(time.Second)
		without.close()

		next := lead(t, newTestJournal(), actors.Config{}, bindUpper(), program("collect", func(ctx *replay.Context, _ string) (string, error) {
			return upper.Call(ctx, "x")
		}))
		next.partition.Close()
		delayed := &delayedConditions{journal, make(chan func(), 100)}
		go func() {
			for decide := range delayed.decisions {
				time.Sleep(5 * time.Millisecond)
				decide()
			}
		}()
		defer close(delayed.decisions)
		next.partition, next.journal = next.system.Lead(t.Context(), delayed, journal.newEpoch(t)), journal
		next.send("c", "word", "a")
		time.Sleep(time.Minute)
		if meta, _ := journal.Instance("c"); meta.Condition.GetKind() != journalpb.ConditionKind_CONDITION_KIND_STALLED {
			t.Errorf("condition is %v", meta.Condition)
		}
		next.partition.Close()
	})
}
