package actors_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// refuseFirst refuses the first appends that have an event of that type.
func refuseFirst(t testing.TB, many int, kind string, refusals *int) func(*journalpb.Append) error {
	return func(a *journalpb.Append) error {
		for _, event := range eventsIn(t, a) {
			if event.Type() == kind && *refusals < many {
				*refusals++
				return errRefused
			}
		}
		return nil
	}
}

func TestRefusedAppendLeavesNoTrace(t *testing.T) {
	virtually(t, func(t *testing.T) {
		runs := 0
		n := lead(t, newTestJournal(), actors.Config{}, collect(), shout(),
			upper.Bind(func(context.Context, string) (string, error) { runs++; return "A", nil }))
		refusals := 0
		n.journal.set(func(j *testJournal) { j.judge = refuseFirst(t, 1, "ActivityScheduled", &refusals) })
		n.start("s", "shout", "a").want(errRefused)
		idle()
		if _, ok := n.journal.Instance("s"); ok || runs != 0 {
			t.Error("something was left of it")
		}
		n.send("s", "word", "a").want(actors.ErrNotFound)
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
	})
}

func TestInstanceGoesOnAfterARefusedAppend(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "xxx").want(nil)
		refusals := 0
		n.journal.set(func(j *testJournal) { j.judge = refuseFirst(t, 1, "ExternalEvent", &refusals) })
		n.send("c", "word", "lost").want(errRefused)
		n.send("c", "word", "a").want(nil)
		n.send("c", "word", "b").want(nil)
		n.send("c", "word", "c").want(nil)
		n.wantOutput("c", "a b c")
	})
}

// An execution that continues as new before it takes any message leaves them all to
// the next one. While the journal refuses that, nobody tries again but who has
// sent them.
func TestWhatTheNextExecutionTakesDoesNotWakeARefusedOne(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var handle = replay.Orchestration[int, string]("eager")
		n := lead(t, newTestJournal(), actors.Config{}, handle.Bind(func(ctx *replay.Context, number int) (string, error) {
			if number < 3 {
				return "", handle.ContinueAsNew(ctx, number+1)
			}
			return word.Wait(ctx)
		}))
		refusals := 0
		n.journal.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error {
				if first := a.Segments[0]; first.Execution != 2 || refusals == 100 {
					return nil
				}
				refusals++
				return errRefused
			}
		})
		n.start("e", "eager", 1).want(nil)
		time.Sleep(time.Second)
		sent := n.send("e", "word", "a")
		idle()
		if before := refusals; before == 0 || before > 10 {
			t.Errorf("%d appends were refused in a second", before)
		}
		sent.want(errRefused)
		n.journal.mend()
		n.send("e", "word", "b").want(nil)
		n.wantOutput("e", "b")
	})
}

// Every kind of internal message is refused some times, and all comes to its
// end.
func TestInternalMessagesAreRepeatedUntilTheyAreTaken(t *testing.T) {
	for _, kind := range []string{"ActivityCompleted", "TimerFired", "OrchestrationStarted", "SubOrchestrationCompleted", "OrchestrationCompleted"} {
		t.Run(kind, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), everything())
				n.start("e", "everything", "a").want(nil)
				idle()
				n.send("e", "word", "b").want(nil)
				refusals := 0
				n.journal.set(func(j *testJournal) { j.judge = refuseFirst(t, 5, kind, &refusals) })
				n.wantOutput("e", "AbB")
				if kind != "ActivityCompleted" && refusals != 5 {
					t.Errorf("%d refusals", refusals)
				}
			})
		})
	}
}

func TestPanicInAnOrchestrationFailsThatInstance(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect(),
			program("panics", func(ctx *replay.Context, _ string) (string, error) {
				if _, err := word.Wait(ctx); err != nil {
					return "", err
				}
				panicky()
				return "", nil
			}))
		n.start("p", "panics", "").want(nil)
		n.start("c", "collect", "xx").want(nil)
		n.send("c", "word", "a").want(nil)
		n.send("p", "word", "").want(nil)
		var crash *replay.PanicError
		if err := n.failure("p"); !errors.As(err, &crash) || !strings.Contains(crash.Stack, "panicky") {
			t.Errorf("failed with %#v", err)
		}
		n.send("c", "word", "b").want(nil)
		n.wantOutput("c", "a b")
	})
}

// panicIn panics for appends of one instance.
func panicIn(instance string) func(*journalpb.Append) error {
	return func(a *journalpb.Append) error {
		if a.Instance == instance {
			panic("a bug in the engine")
		}
		return nil
	}
}

func TestFaultOfTheEngineHitsOneInstance(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		for _, id := range []string{"bad", "good"} {
			n.start(id, "collect", "xx").want(nil)
			n.send(id, "word", "a").want(nil)
		}
		n.journal.set(func(j *testJournal) { j.judge = panicIn("bad") })
		for range 3 {
			var fault *actors.FaultError
			a := n.send("bad", "word", "lost").get()
			if !errors.As(a.Err, &fault) || fault.Instance != "bad" || !strings.Contains(fault.Stack, "panicIn") {
				t.Fatalf("answered %v", a.Err)
			}
		}
		if !n.log.contains("a bug in the engine") {
			t.Error("nothing in the log")
		}
		n.send("good", "word", "b").want(nil)
		n.wantOutput("good", "a b")
		n.journal.set(func(j *testJournal) { j.judge = nil })
		n.send("bad", "word", "b").want(nil)
		n.wantOutput("bad", "a b")
	})
}

// A fault while messages wait is the answer to all of them, and internal ones
// come again.
func TestFaultIsAnsweredToAllThatWait(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), collect())
		n.journal.set(func(j *testJournal) { j.judge = panicIn("s") })
		started, waiting := n.start("s", "shout", "a"), n.send("s", "word", "b")
		var fault *actors.FaultError
		if a := started.get(); !errors.As(a.Err, &fault) {
			t.Errorf("the start was answered %v", a.Err)
		}
		// In the same batch, or after it.
		if a := waiting.get(); !errors.As(a.Err, &fault) && !errors.Is(a.Err, actors.ErrNotFound) {
			t.Errorf("the event was answered %v", a.Err)
		}
		faults := 0
		n.journal.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error {
				if faults < 3 && eventsIn(t, a)[0].GetActivityCompleted() != nil {
					faults++
					panic("a bug in the engine")
				}
				return nil
			}
		})
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
		if faults != 3 {
			t.Errorf("%d faults", faults)
		}
	})
}

// The clock of a partition is one actor for all: a fault in what one alarm does
// must not silence the others.
func TestFaultInAnAlarmDoesNotStopTheClock(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, fickle(), patient(), timers([]time.Duration{time.Minute}))
		n.journal.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error {
				if a.Instance == "kid" {
					return errRefused
				}
				return nil
			}
		})
		n.start("p", "fickle", "").want(nil)
		n.start("t", "timers", "").want(nil)
		idle()
		// The child has not begun, so its cancellation waits for it.
		n.send("p", "word", "").want(nil)
		n.journal.set(func(j *testJournal) { j.broken = "kid" })
		time.Sleep(time.Second)
		if !n.log.contains("fault in an alarm") {
			t.Error("nothing in the log")
		}
		n.wantOutput("t", "")
	})
}

func TestGarbageInAHistoryHitsOneInstance(t *testing.T) {
	broken := errors.New("unreadable")
	for name, c := range map[string]struct {
		garbage iter.Seq2[*journalpb.Event, error]
		want    func(error) bool
		stalls  bool
	}{
		"unreadable": {
			func(yield func(*journalpb.Event, error) bool) { yield(nil, broken) },
			func(err error) bool { return errors.Is(err, broken) }, false,
		},
		"panic": {
			func(func(*journalpb.Event, error) bool) { panic("a bug in the journal") },
			func(err error) bool { var fault *actors.FaultError; return errors.As(err, &fault) }, false,
		},
		"no event": {
			func(yield func(*journalpb.Event, error) bool) { yield(nil, nil) },
			func(err error) bool { var fault *actors.FaultError; return errors.As(err, &fault) }, false,
		},
		"no body": {
			func(yield func(*journalpb.Event, error) bool) { yield(&journalpb.Event{EventId: 1}, nil) },
			func(err error) bool { var mismatch *replay.Mismatch; return errors.As(err, &mismatch) }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				j := newTestJournal()
				first := lead(t, j, actors.Config{}, collect())
				first.start("bad", "collect", "x").want(nil)
				first.close()
				j.set(func(j *testJournal) {
					j.garble = func(id string) iter.Seq2[*journalpb.Event, error] {
						if id == "bad" {
							return c.garbage
						}
						return nil
					}
				})
				second := lead(t, j, actors.Config{}, collect())
				sent := second.send("bad", "word", "a")
				second.start("good", "collect", "x").want(nil)
				second.send("good", "word", "a").want(nil)
				second.wantOutput("good", "a")
				if c.stalls {
					idle()
					sent.pending()
					if !c.want(second.partition.Stalled("bad")) {
						t.Errorf("stalled because of %v", second.partition.Stalled("bad"))
					}
					return
				}
				if a := sent.get(); !c.want(a.Err) {
					t.Errorf("answered %v", a.Err)
				}
				j.set(func(j *testJournal) { j.garble = nil })
				second.send("bad", "word", "b").want(nil)
				second.wantOutput("bad", "b")
			})
		})
	}
}

// inOrder calls two activities, in the other order if swapped.
func inOrder(swapped bool) replay.Definition {
	return program("ordered", func(ctx *replay.Context, _ string) (string, error) {
		inputs := []string{"a", "b"}
		if swapped {
			inputs = []string{"b", "a"}
		}
		first, second := upper.Start(ctx, inputs[0]), upper.Start(ctx, inputs[1])
		text, err := word.Wait(ctx)
		if err != nil {
			return "", err
		}
		results, err := replay.All(ctx, first, second)
		return fmt.Sprint(text, results), err
	})
}

func TestCodeThatDoesNotFitStallsTheInstance(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, bindUpper(), collect(), inOrder(false))
		first.start("o", "ordered", "").want(nil)
		idle()
		before := first.history("o")
		first.close()

		second := lead(t, j, actors.Config{}, bindUpper(), collect(), inOrder(true))
		sent := second.send("o", "word", "early")
		idle()
		sent.pending()
		later := second.send("o", "word", "late") // waits as well
		idle()
		later.pending()
		var mismatch *replay.Mismatch
		if err := second.partition.Stalled("o"); !errors.As(err, &mismatch) {
			t.Fatalf("stalled because of %v", err)
		}
		if mismatch.Kind != replay.ScheduledDifferently || mismatch.EventID != 2 || mismatch.Expected == "" ||
			mismatch.Found == "" || !strings.Contains(mismatch.Source, "fault_test.go:") {
			t.Errorf("mismatch: %+v", mismatch)
		}
		second.start("c", "collect", "x").want(nil)
		second.send("c", "word", "a").want(nil)
		second.wantOutput("c", "a")
		if err := second.partition.Stalled("c"); err != nil {
			t.Errorf("stalled: %v", err)
		}
		second.wantHistory("o", before...)
		second.close()
		sent.want(actors.ErrStopped)
		later.want(actors.ErrStopped)

		third := lead(t, j, actors.Config{}, bindUpper(), collect(), inOrder(false))
		third.send("o", "word", "x").want(nil)
		third.wantOutput("o", "x[A B]")
	})
}

// What is stalled is known to every leader, tried again by each, and forgotten when it
// goes on, or when nothing holds it up any more.
func TestThatAnInstanceIsStalledOutlivesItsLeader(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const many = 5
		id := func(i int) string { return fmt.Sprint("o-", i) }
		j := newTestJournal()
		held := func() (n int) {
			for known := range j.Held() {
				if known.Condition.Kind == journalpb.ConditionKind_CONDITION_KIND_STALLED && known.Condition.EventId == 2 &&
					strings.Contains(known.Condition.Source, "fault_test.go:") {
					n++
				}
			}
			return n
		}
		wantHeld := func(when string, want int) {
			t.Helper()
			if got := held(); got != want {
				t.Errorf("%s: %d are stalled, want %d", when, got, want)
			}
		}
		first := lead(t, j, actors.Config{}, bindUpper(), inOrder(false))
		for i := range many {
			first.start(id(i), "ordered", "").want(nil)
		}
		idle()
		first.close()
		wantHeld("with code that fits", 0)

		second := lead(t, j, actors.Config{}, bindUpper(), inOrder(true))
		for i := range many {
			second.send(id(i), "word", "lost")
		}
		time.Sleep(time.Minute)
		wantHeld("with other code", many)
		second.close()

		third := lead(t, j, actors.Config{}, bindUpper(), inOrder(true))
		time.Sleep(time.Minute)
		wantHeld("with the same other code again", many)
		if stats := third.system.Stats(third.partition); stats.Stalls != many || stats.Live != 0 {
			t.Errorf("%d were tried again, %d are in memory", stats.Stalls, stats.Live)
		}
		third.partition.Retry(id(0))
		time.Sleep(time.Minute)
		if stats := third.system.Stats(third.partition); stats.Stalls != many+1 {
			t.Errorf("%d were tried again after one was to be", stats.Stalls)
		}
		third.close()

		fourth := lead(t, j, actors.Config{}, bindUpper(), inOrder(false))
		time.Sleep(time.Minute)
		wantHeld("with code that fits, and nothing to do", 0)
		fourth.send(id(1), "word", "x").want(nil)
		fourth.wantOutput(id(1), "x[A B]")
	})
}
