package actors_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// slowActivity runs until its context ends and records the causes.
type slowActivity struct {
	attemptLog
	causes []error
}

func (s *slowActivity) bind() replay.Definition {
	return work.Bind(func(ctx context.Context, _ int) (string, error) {
		s.record(ctx)
		<-ctx.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.causes = append(s.causes, context.Cause(ctx))
		return "late", nil
	})
}

func wantTimeout(t *testing.T, err error, kind replay.TimeoutKind) {
	t.Helper()
	var timeout *replay.TimeoutError
	if !errors.As(err, &timeout) || timeout.Kind != kind || !errors.Is(err, replay.ErrTimeout) {
		t.Errorf("ended with %v, want a timeout of %s", err, kind)
	}
}

func wantElapsed(t *testing.T, start time.Time, want time.Duration) {
	t.Helper()
	if elapsed := time.Since(start); elapsed != want {
		t.Errorf("took %v, want %v", elapsed, want)
	}
}

var oneAttempt = replay.Retry(replay.RetryPolicy{MaxAttempts: 1})

func TestStartToClose_FailsAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var slow slowActivity
		n := lead(t, newTestJournal(), actors.Config{}, slow.bind(),
			call(replay.StartToClose(time.Minute), replay.Retry(replay.RetryPolicy{MaxAttempts: 3})))
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutStartToClose)
		var failed *replay.ActivityError
		if !errors.As(err, &failed) || failed.Attempts != 3 {
			t.Errorf("failed with %#v", err)
		}
		waitIdle()
		if got := fmt.Sprint(slow.numbers); got != "[1 2 3]" {
			t.Errorf("attempts %s", got)
		}
		for _, cause := range slow.causes {
			wantTimeout(t, cause, replay.TimeoutStartToClose)
		}
		for i := range 2 {
			if delay := slow.starts[i+1].Sub(slow.starts[i]) - time.Minute; delay < 0 || delay > time.Minute {
				t.Errorf("attempt %d began %v after the end of the one before", i+2, delay)
			}
		}
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityFailed of 2", "OrchestrationFailed")
	})
}

// An attempt that ignores its context times out all the same: its later result is dropped, whether
// the next attempt runs or the activity has ended.
func TestStartToClose_DropsLateResult(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.StartToClose(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				switch replay.ActivityInfo(ctx).Number {
				case 1:
					time.Sleep(90 * time.Second)
				case 2:
					time.Sleep(time.Hour)
				default:
					time.Sleep(59 * time.Second)
				}
				return fmt.Sprint(replay.ActivityInfo(ctx).Number), nil
			}))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "3")
		time.Sleep(2 * time.Hour)
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

func TestActivitySlot_HeldUntilBodyReturns(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(oneAttempt, replay.StartToClose(time.Minute)),
			work.Bind(func(context.Context, int) (string, error) { time.Sleep(time.Hour); return "late", nil }))
		start := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutStartToClose)
		wantElapsed(t, start, time.Minute)
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
		wantElapsed(t, start, time.Hour)
	})
}

// The slot is freed after the grace, once: the late return of the body frees no second one.
func TestCancelGrace_FreesSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var running, most atomic.Int32
		j := newTestJournal()
		n := lead(t, j, actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(oneAttempt, replay.StartToClose(time.Minute), replay.CancelGrace(time.Second)),
			work.Bind(func(context.Context, int) (string, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				time.Sleep(time.Hour)
				return "late", nil
			}))
		start := time.Now()
		for i := range 3 {
			n.start(fmt.Sprint("c-", i), "call", "").want(nil)
		}
		for i := range 3 {
			wantTimeout(t, n.failure(fmt.Sprint("c-", i)), replay.TimeoutStartToClose)
		}
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
		wantElapsed(t, start, 3*(time.Minute+time.Second))
		waitIdle() // the slot is freed before the warning
		if got := n.log.count("activity body abandoned"); got != 3 {
			t.Errorf("%d warnings", got)
		}
		time.Sleep(2 * time.Hour)
		if running.Load() != 0 || most.Load() != 3 {
			t.Errorf("%d run, at most %d did at once", running.Load(), most.Load())
		}
		// The slot count is right: of two bodies one waits for the other.
		n.start("d-0", "call", "").want(nil)
		n.start("d-1", "call", "").want(nil)
		waitIdle()
		if running.Load() != 1 {
			t.Errorf("%d bodies run in one slot", running.Load())
		}
		time.Sleep(3 * time.Hour) // until both have returned
	})
}

func TestCancelGrace_BodyReturnsInTime(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(oneAttempt, replay.StartToClose(time.Minute), replay.CancelGrace(time.Hour)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				return "", ctx.Err()
			}))
		start := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutStartToClose)
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
		wantElapsed(t, start, time.Minute+time.Second)
		time.Sleep(2 * time.Hour)
		if n.log.contains("abandoned") {
			t.Error("it was abandoned")
		}
	})
}

func TestAttemptDeadline_EarlierTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		options []replay.Option
		want    time.Duration // 0: none
	}{
		"none":              {nil, 0},
		"start-to-close":    {[]replay.Option{replay.StartToClose(time.Minute)}, time.Minute},
		"schedule-to-close": {[]replay.Option{replay.ScheduleToClose(time.Hour)}, time.Hour},
		"the first of two":  {[]replay.Option{replay.ScheduleToClose(time.Hour), replay.StartToClose(time.Minute)}, time.Minute},
		"the second of two": {[]replay.Option{replay.ScheduleToClose(time.Minute), replay.StartToClose(time.Hour)}, time.Minute},
		"not start or beat": {[]replay.Option{replay.ScheduleToStart(time.Minute), replay.HeartbeatTimeout(time.Minute)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, call(c.options...),
					work.Bind(func(ctx context.Context, _ int) (string, error) {
						info := replay.ActivityInfo(ctx)
						at, hasDeadline := ctx.Deadline()
						if hasDeadline != (c.want > 0) || !at.Equal(info.Deadline) || hasDeadline && !at.Equal(info.ScheduledTime.Add(c.want)) {
							return "", replay.NonRetryable(fmt.Errorf("deadline %v (%t) after %v", at, hasDeadline, info.ScheduledTime))
						}
						return "ok", nil
					}))
				n.start("c", "call", "").want(nil)
				n.wantOutput("c", "ok")
			})
		})
	}
}

func TestScheduleToClose_EndsActivity(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var slow slowActivity
		n := lead(t, newTestJournal(), actors.Config{}, slow.bind(), call(replay.ScheduleToClose(time.Minute)))
		start := time.Now()
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutScheduleToClose)
		wantElapsed(t, start, time.Minute)
		waitIdle()
		wantTimeout(t, slow.causes[0], replay.TimeoutScheduleToClose)
		time.Sleep(time.Hour)
		if len(slow.starts) != 1 {
			t.Errorf("%d attempts", len(slow.starts))
		}
	})
}

var errFull = replay.NewError("test.full", "full")

func TestScheduleToClose_EndsUnlimitedRetries(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.ScheduleToClose(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				attempts.record(ctx)
				return "", errFull
			}))
		start := time.Now()
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutScheduleToClose)
		if !errors.Is(err, errFull) {
			t.Errorf("%v does not wrap the error of the last attempt", err)
		}
		// The attempts begin after 1, 3, 7, 15, 31 and 63 s, give or take a fifth.
		if count, elapsed := len(attempts.starts), time.Since(start); count < 6 || count > 7 || elapsed < 20*time.Second || elapsed > time.Minute {
			t.Errorf("%d attempts in %v", count, elapsed)
		}
		if started := attempts.starts[len(attempts.starts)-1]; time.Since(started) != 0 {
			t.Errorf("it ended %v after the last attempt", time.Since(started))
		}
	})
}

func TestScheduleToClose_WrapsLastFailure(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.ScheduleToClose(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				info := replay.ActivityInfo(ctx)
				if info.Number == 1 {
					return "", errFull
				}
				if !errors.Is(info.LastError, errFull) {
					return "", replay.NonRetryable(fmt.Errorf("last error %v", info.LastError))
				}
				<-ctx.Done()
				return "", ctx.Err()
			}))
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutScheduleToClose)
		var failed *replay.ActivityError
		if !errors.Is(err, errFull) || !errors.As(err, &failed) || failed.Attempts != 2 {
			t.Errorf("failed with %v", err)
		}
	})
}

func TestScheduleToStart_ExpiredNeverStarts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		ran := false
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, shout(), call(replay.ScheduleToStart(time.Minute)),
			upper.Bind(func(context.Context, string) (string, error) { time.Sleep(time.Hour); return "A", nil }),
			work.Bind(func(context.Context, int) (string, error) { ran = true; return "", nil }))
		n.start("s", "shout", "a").want(nil)
		waitIdle()
		start := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutScheduleToStart)
		wantElapsed(t, start, time.Minute)
		n.wantOutput("s", "A")
		waitIdle()
		if ran {
			t.Error("it ran")
		}
	})
}

// After an attempt has begun, schedule-to-start applies neither to the next attempt nor to the
// next leader.
func TestScheduleToStart_FirstAttemptOnly(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		code := []replay.Definition{
			call(replay.ScheduleToStart(time.Second), replay.Retry(replay.RetryPolicy{InitialInterval: time.Minute})),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if replay.ActivityInfo(ctx).Number == 1 {
					return "", errFull
				}
				if context.Cause(ctx) == nil && time.Since(replay.ActivityInfo(ctx).ScheduledTime) < time.Hour {
					<-ctx.Done()
				}
				return "done", nil
			}),
		}
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, code...)
		first.start("c", "call", "").want(nil)
		time.Sleep(10 * time.Minute)
		first.close()
		time.Sleep(time.Hour)
		second := lead(t, j, actors.Config{}, code...)
		second.wantOutput("c", "done")
	})
}

func TestScheduleToStart_IgnoresStartedOnWorker(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var slow slowActivity
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, slow.bind(), call(replay.ScheduleToStart(time.Minute)))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		first.close()
		second := lead(t, j, actors.Config{}, call(replay.ScheduleToStart(time.Minute)),
			work.Bind(func(context.Context, int) (string, error) { return "done", nil }))
		second.wantOutput("c", "done")
		if !errors.Is(slow.causes[0], replay.ErrNodeStopping) {
			t.Errorf("context canceled with cause %v", slow.causes[0])
		}
	})
}

// Each timeout across a change of leader: those that begin with the schedule continue, those of an
// attempt begin with the new attempt.
func TestActivityTimeouts_AcrossFailover(t *testing.T) {
	for name, c := range map[string]struct {
		options []replay.Option
		away    time.Duration // how long there is no leader, after 40 s
		kind    replay.TimeoutKind
		want    time.Duration // since the start
		runs    int
	}{
		"schedule-to-close": {
			[]replay.Option{replay.ScheduleToClose(time.Minute)}, time.Second, replay.TimeoutScheduleToClose, time.Minute, 2,
		},
		"schedule-to-close, passed meanwhile": {
			[]replay.Option{replay.ScheduleToClose(time.Minute)}, time.Hour, replay.TimeoutScheduleToClose, time.Hour + 40*time.Second, 1,
		},
		"schedule-to-start": {
			[]replay.Option{replay.ScheduleToStart(time.Minute), replay.Tag("none")}, time.Second, replay.TimeoutScheduleToStart, time.Minute, 0,
		},
		"schedule-to-start, passed meanwhile": {
			[]replay.Option{replay.ScheduleToStart(time.Minute), replay.Tag("none")}, time.Hour, replay.TimeoutScheduleToStart, time.Hour + 40*time.Second, 0,
		},
		"start-to-close": {
			[]replay.Option{replay.StartToClose(time.Minute), oneAttempt}, time.Second, replay.TimeoutStartToClose, 101 * time.Second, 2,
		},
		"heartbeat": {
			[]replay.Option{replay.HeartbeatTimeout(time.Minute), oneAttempt}, time.Second, replay.TimeoutHeartbeat, 101 * time.Second, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				var slow slowActivity
				j := newTestJournal()
				start := time.Now()
				first := lead(t, j, actors.Config{}, slow.bind(), call(c.options...))
				first.start("c", "call", "").want(nil)
				time.Sleep(40 * time.Second)
				first.close()
				time.Sleep(c.away)
				second := lead(t, j, actors.Config{}, slow.bind(), call(c.options...))
				wantTimeout(t, second.failure("c"), c.kind)
				wantElapsed(t, start, c.want)
				waitIdle()
				if len(slow.starts) != c.runs {
					t.Errorf("the body ran %d times", len(slow.starts))
				}
			})
		})
	}
}

func TestActivityTimeouts_CanceledWhenDone(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{},
			program("calls", func(ctx *replay.Context, _ string) (string, error) {
				text, err := work.Call(ctx, 0, replay.StartToClose(time.Minute), replay.ScheduleToClose(time.Minute),
					replay.ScheduleToStart(time.Minute), replay.HeartbeatTimeout(time.Minute))
				if err != nil {
					return "", err
				}
				return text, ctx.Sleep(time.Hour)
			}),
			work.Bind(func(context.Context, int) (string, error) { return "done", nil }))
		n.start("c", "calls", "").want(nil)
		n.wantOutput("c", "done")
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2",
			"TimerCreated", "TimerFired of 4", "OrchestrationCompleted")
		if n.log.hasWarnings() {
			t.Errorf("logged: %s", &n.log.text)
		}
	})
}

func TestActivityTag_WaitsForNode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		var ranOn string
		code := func(node string) []replay.Definition {
			return []replay.Definition{bindUpper(), shout(), call(replay.Tag("gpu")),
				work.Bind(func(context.Context, int) (string, error) { ranOn = node; return "done", nil })}
		}
		first := lead(t, j, actors.Config{Tags: []string{"disk"}}, code("first")...)
		first.start("c", "call", "").want(nil)
		first.start("s", "shout", "a").want(nil)
		first.wantOutput("s", "A")
		time.Sleep(time.Hour)
		if state := first.partition.AttemptsOf(&journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}).State; state != activity.WaitingForTag {
			t.Errorf("the activity is %q", state)
		}
		first.close()
		second := lead(t, j, actors.Config{Tags: []string{"disk", "gpu"}}, code("second")...)
		second.wantOutput("c", "done")
		if ranOn != "second" {
			t.Errorf("ran on the %s node", ranOn)
		}
	})
}

func TestActivity_WaitingForCodeIsNoAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, call(oneAttempt))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		if state := first.partition.AttemptsOf(ref).State; state != activity.WaitingForCode {
			t.Errorf("the activity is %q", state)
		}
		if count := first.log.count("no code for activity"); count != 1 {
			t.Errorf("said %d times", count)
		}
		first.close()
		second := lead(t, j, actors.Config{}, call(oneAttempt), work.Bind(func(ctx context.Context, _ int) (string, error) {
			return fmt.Sprint(replay.ActivityInfo(ctx).Number), nil
		}))
		second.wantOutput("c", "1")
	})
}

func TestActivityRetry_NonRetryablePanic(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		attempts, err := runFailing(t, func(int) (string, error) {
			panicky()
			return "", nil
		}, replay.Retry(replay.RetryPolicy{PanicsAreFinal: true}))
		var crash *replay.PanicError
		if !errors.As(err, &crash) || attempts != 1 {
			t.Errorf("%d attempts, %v", attempts, err)
		}
	})
}

func TestActivity_UndecodableInputFails(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			replay.Activity[string, string]("work").Bind(func(context.Context, string) (string, error) { return "", nil }))
		n.start("c", "call", "").want(nil)
		var payloadErr *replay.PayloadError
		if err := n.failure("c"); !errors.As(err, &payloadErr) || payloadErr.Name != "work" || payloadErr.Part != "input" {
			t.Errorf("failed with %#v", err)
		}
	})
}

func TestActivity_UnencodableOutputFails(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			replay.Activity[int, chan int]("work").Bind(func(context.Context, int) (chan int, error) { return nil, nil }))
		n.start("c", "call", "").want(nil)
		var payloadErr *replay.PayloadError
		if err := n.failure("c"); !errors.As(err, &payloadErr) || payloadErr.Part != "output" {
			t.Errorf("failed with %#v", err)
		}
	})
}
