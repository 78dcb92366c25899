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

// rejectFirstOf rejects the first appends that have an event of that type.
func rejectFirstOf(t testing.TB, count int, kind string, rejections *int) func(*journalpb.Append) error {
	return func(a *journalpb.Append) error {
		for _, event := range eventsIn(t, a) {
			if event.Type() == kind && *rejections < count {
				*rejections++
				return errRejected
			}
		}
		return nil
	}
}

func TestAppendRejected_LeavesNoTrace(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		runs := 0
		n := lead(t, newTestJournal(), actors.Config{}, collect(), shout(),
			upper.Bind(func(context.Context, string) (string, error) { runs++; return "A", nil }))
		rejections := 0
		n.journal.configure(func(j *testJournal) { j.check = rejectFirstOf(t, 1, "ActivityScheduled", &rejections) })
		n.start("s", "shout", "a").want(errRejected)
		waitIdle()
		if _, ok := n.journal.Instance("s"); ok || runs != 0 {
			t.Error("a rejected turn has left something")
		}
		n.send("s", "word", "a").want(actors.ErrNotFound)
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
	})
}

func TestAppendRejected_InstanceContinues(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.start("c", "collect", "xxx").want(nil)
		rejections := 0
		n.journal.configure(func(j *testJournal) { j.check = rejectFirstOf(t, 1, "ExternalEvent", &rejections) })
		n.send("c", "word", "lost").want(errRejected)
		n.send("c", "word", "a").want(nil)
		n.send("c", "word", "b").want(nil)
		n.send("c", "word", "c").want(nil)
		n.wantOutput("c", "a b c")
	})
}

// An execution that continues as new before taking any message postpones them all. If the append
// is rejected, only the senders may try again.
func TestAppendRejected_PostponedMessagesDoNotWake(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var handle = replay.Orchestration[int, string]("eager")
		n := lead(t, newTestJournal(), actors.Config{}, handle.Bind(func(ctx *replay.Context, number int) (string, error) {
			if number < 3 {
				return "", handle.ContinueAsNew(ctx, number+1)
			}
			return word.Wait(ctx)
		}))
		rejections := 0
		n.journal.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
				if first := a.Segments[0]; first.Execution != 2 || rejections == 100 {
					return nil
				}
				rejections++
				return errRejected
			}
		})
		n.start("e", "eager", 1).want(nil)
		time.Sleep(time.Second)
		sent := n.send("e", "word", "a")
		waitIdle()
		if before := rejections; before == 0 || before > 10 {
			t.Errorf("%d appends were rejected in a second", before)
		}
		sent.want(errRejected)
		n.journal.clearCrash()
		n.send("e", "word", "b").want(nil)
		n.wantOutput("e", "b")
	})
}

// Every kind of internal message is rejected some times, and everything still completes.
func TestInternalMessages_RetriedUntilTaken(t *testing.T) {
	for _, kind := range []string{"ActivityCompleted", "TimerFired", "OrchestrationStarted", "SubOrchestrationCompleted", "OrchestrationCompleted"} {
		t.Run(kind, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), everything())
				n.start("e", "everything", "a").want(nil)
				waitIdle()
				n.send("e", "word", "b").want(nil)
				rejections := 0
				n.journal.configure(func(j *testJournal) { j.check = rejectFirstOf(t, 5, kind, &rejections) })
				n.wantOutput("e", "AbB")
				if kind != "ActivityCompleted" && rejections != 5 {
					t.Errorf("%d rejections", rejections)
				}
			})
		})
	}
}

func TestPanic_OrchestrationFailsInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
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

func TestFault_StopsOnlyOneInstance(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		for _, id := range []string{"bad", "good"} {
			n.start(id, "collect", "xx").want(nil)
			n.send(id, "word", "a").want(nil)
		}
		n.journal.configure(func(j *testJournal) { j.check = panicIn("bad") })
		for range 3 {
			var fault *actors.FaultError
			a := n.send("bad", "word", "lost").get()
			if !errors.As(a.Err, &fault) || fault.Instance != "bad" || !strings.Contains(fault.Stack, "panicIn") {
				t.Fatalf("answered %v", a.Err)
			}
		}
		if !n.log.contains("a bug in the engine") {
			t.Error("nothing was logged")
		}
		n.send("good", "word", "b").want(nil)
		n.wantOutput("good", "a b")
		n.journal.configure(func(j *testJournal) { j.check = nil })
		n.send("bad", "word", "b").want(nil)
		n.wantOutput("bad", "a b")
	})
}

// A fault answers all waiting messages, and internal ones are repeated.
func TestFault_AnswersAllPendingMessages(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, bindUpper(), shout(), collect())
		n.journal.configure(func(j *testJournal) { j.check = panicIn("s") })
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
		n.journal.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
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

// One actor fires all timers of a partition: a fault in one timer must not stop the others.
func TestFault_InTimerDoesNotStopTimers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, cancelingParent(), waitingChild(), timers([]time.Duration{time.Minute}))
		n.journal.configure(func(j *testJournal) {
			j.check = func(a *journalpb.Append) error {
				if a.Instance == "kid" {
					return errRejected
				}
				return nil
			}
		})
		n.start("p", "fickle", "").want(nil)
		n.start("t", "timers", "").want(nil)
		waitIdle()
		// The child has not begun, so its cancellation waits.
		n.send("p", "word", "").want(nil)
		n.journal.configure(func(j *testJournal) { j.panicOn = "kid" })
		time.Sleep(time.Second)
		if !n.log.contains("fault in timer") {
			t.Error("nothing was logged")
		}
		if logged, counted := n.log.count("fault in"), n.system.Stats().Faults; uint64(logged) != counted {
			t.Errorf("%d faults are logged, %d are counted", logged, counted)
		}
		n.wantOutput("t", "")
	})
}

func TestCorruptHistory_StopsOnlyOneInstance(t *testing.T) {
	errUnreadable := errors.New("unreadable")
	for name, c := range map[string]struct {
		garbage iter.Seq2[*journalpb.Event, error]
		want    func(error) bool
		stalls  bool
	}{
		"unreadable": {
			func(yield func(*journalpb.Event, error) bool) { yield(nil, errUnreadable) },
			func(err error) bool { return errors.Is(err, errUnreadable) }, false,
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
			inVirtualTime(t, func(t *testing.T) {
				j := newTestJournal()
				first := lead(t, j, actors.Config{}, collect())
				first.start("bad", "collect", "x").want(nil)
				first.close()
				j.configure(func(j *testJournal) {
					j.corruptEvents = func(id string) iter.Seq2[*journalpb.Event, error] {
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
					waitIdle()
					sent.wantPending()
					if !c.want(second.partition.StallReason("bad")) {
						t.Errorf("stalled by %v", second.partition.StallReason("bad"))
					}
					return
				}
				if a := sent.get(); !c.want(a.Err) {
					t.Errorf("answered %v", a.Err)
				}
				j.configure(func(j *testJournal) { j.corruptEvents = nil })
				second.send("bad", "word", "b").want(nil)
				second.wantOutput("bad", "b")
			})
		})
	}
}

// twoActivities calls two activities, in reverse order if reversed.
func twoActivities(reversed bool) replay.Definition {
	return program("ordered", func(ctx *replay.Context, _ string) (string, error) {
		inputs := []string{"a", "b"}
		if reversed {
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

func TestStall_MismatchedCode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, bindUpper(), collect(), twoActivities(false))
		first.start("o", "ordered", "").want(nil)
		waitIdle()
		before := first.history("o")
		first.close()

		second := lead(t, j, actors.Config{}, bindUpper(), collect(), twoActivities(true))
		sent := second.send("o", "word", "early")
		waitIdle()
		sent.wantPending()
		later := second.send("o", "word", "late") // waits as well
		waitIdle()
		later.wantPending()
		var mismatch *replay.Mismatch
		if err := second.partition.StallReason("o"); !errors.As(err, &mismatch) {
			t.Fatalf("stalled by %v", err)
		}
		if mismatch.Kind != replay.ScheduledDifferently || mismatch.EventID != 2 || mismatch.Expected == "" ||
			mismatch.Found == "" || !strings.Contains(mismatch.Source, "fault_test.go:") {
			t.Errorf("mismatch: %+v", mismatch)
		}
		second.start("c", "collect", "x").want(nil)
		second.send("c", "word", "a").want(nil)
		second.wantOutput("c", "a")
		if err := second.partition.StallReason("c"); err != nil {
			t.Errorf("stalled: %v", err)
		}
		second.wantHistory("o", before...)
		second.close()
		sent.want(actors.ErrStopped)
		later.want(actors.ErrStopped)

		third := lead(t, j, actors.Config{}, bindUpper(), collect(), twoActivities(false))
		third.send("o", "word", "x").want(nil)
		third.wantOutput("o", "x[A B]")
	})
}

// Every leader knows of a stalled instance and retries it. Its condition is removed when it
// continues, or when nothing blocks it.
func TestStall_SurvivesFailover(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const count = 5
		id := func(i int) string { return fmt.Sprint("o-", i) }
		j := newTestJournal()
		pending := func() (n int) {
			for meta := range j.WithCondition() {
				if meta.Condition.Kind == journalpb.ConditionKind_CONDITION_KIND_STALLED && meta.Condition.EventId == 2 &&
					strings.Contains(meta.Condition.Source, "fault_test.go:") {
					n++
				}
			}
			return n
		}
		wantStalled := func(when string, want int) {
			t.Helper()
			if got := pending(); got != want {
				t.Errorf("%s: %d are stalled, want %d", when, got, want)
			}
		}
		first := lead(t, j, actors.Config{}, bindUpper(), twoActivities(false))
		for i := range count {
			first.start(id(i), "ordered", "").want(nil)
		}
		waitIdle()
		first.close()
		wantStalled("with code that fits", 0)

		second := lead(t, j, actors.Config{}, bindUpper(), twoActivities(true))
		for i := range count {
			second.send(id(i), "word", "lost")
		}
		time.Sleep(time.Minute)
		wantStalled("with other code", count)
		second.close()

		third := lead(t, j, actors.Config{}, bindUpper(), twoActivities(true))
		time.Sleep(time.Minute)
		wantStalled("with the same other code again", count)
		if stats := third.system.Stats(third.partition); stats.Stalls != count || stats.Live != 0 {
			t.Errorf("%d were tried again, %d are in memory", stats.Stalls, stats.Live)
		}
		third.partition.Retry(id(0))
		time.Sleep(time.Minute)
		if stats := third.system.Stats(third.partition); stats.Stalls != count+1 {
			t.Errorf("%d were tried again after one was to be", stats.Stalls)
		}
		third.close()

		fourth := lead(t, j, actors.Config{}, bindUpper(), twoActivities(false))
		time.Sleep(time.Minute)
		wantStalled("with code that fits, and nothing to do", 0)
		fourth.send(id(1), "word", "x").want(nil)
		fourth.wantOutput(id(1), "x[A B]")
	})
}

// A panicking watcher is an observer and a tracer whose first call of one kind panics.
type panickingWatcher struct {
	at    string
	calls int // the system has one attempt at a time
}

func (w *panickingWatcher) reach(at string) {
	if at == w.at {
		if w.calls++; w.calls == 1 {
			panic("broken " + at)
		}
	}
}

func (w *panickingWatcher) Committed(string, uint64, []*journalpb.Event) {}
func (w *panickingWatcher) TimerFired(time.Duration)                     {}
func (w *panickingWatcher) Attempted(*replay.Attempt, time.Duration, time.Duration, actors.AttemptOutcome) {
	w.reach("observer")
}
func (w *panickingWatcher) TraceContext(string, uint64) string { return "" }
func (w *panickingWatcher) Attempt(ctx context.Context, _ *replay.Attempt, _ string) (context.Context, func(actors.AttemptOutcome)) {
	w.reach("tracer")
	return ctx, func(actors.AttemptOutcome) { w.reach("end of span") }
}

// A panic of the tracer or the observer of attempts loses no attempt.
func TestFault_InWatcherOfAttempts(t *testing.T) {
	for at, wantRuns := range map[string]int{"tracer": 1, "end of span": 1, "observer": 1} {
		t.Run(at, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				w := &panickingWatcher{at: at}
				runs := 0
				n := lead(t, newTestJournal(), actors.Config{Observer: w, Tracer: w, ActivitiesMax: 1}, shout(),
					upper.Bind(func(context.Context, string) (string, error) { runs++; return "A", nil }))
				n.start("s", "shout", "a").want(nil)
				n.wantOutput("s", "A")
				waitIdle() // the fault is counted after the result is sent
				if faults := n.system.Stats().Faults; faults != 1 || runs != wantRuns {
					t.Errorf("%d faults, %d runs", faults, runs)
				}
				n.start("t", "shout", "a").want(nil)
				n.wantOutput("t", "A")
			})
		})
	}
}

// A fragileError is encoded only with what its original has.
type fragileError struct {
	Limit  int
	secret *int
}

func (e *fragileError) Error() string { return "over quota" }

func (e *fragileError) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"Limit":%d}`, *e.secret), nil
}

func init() { replay.RegisterErrorType[*fragileError]("test.fragile") }

// Encoding the decoded error of an activity panics. The attempt fails, and the node goes on.
func TestFault_InErrorOfActivity(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		limit := 3
		runs := 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, shout(),
			upper.Bind(func(context.Context, string) (string, error) {
				if runs++; runs == 1 {
					return "", &fragileError{secret: &limit}
				}
				return "A", nil
			}))
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
	})
}
