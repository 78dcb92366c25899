package actors_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// sluggish runs until its context ends and keeps the causes with which it did.
type sluggish struct {
	timeline
	causes []error
}

func (s *sluggish) bind() replay.Definition {
	return work.Bind(func(ctx context.Context, _ int) (string, error) {
		s.mark(ctx)
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

func wantPassed(t *testing.T, begin time.Time, want time.Duration) {
	t.Helper()
	if passed := time.Since(begin); passed != want {
		t.Errorf("took %v, want %v", passed, want)
	}
}

var once = replay.Retry(replay.RetryPolicy{MaxAttempts: 1})

func TestAttemptThatTakesTooLongHasFailed(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var slow sluggish
		n := lead(t, newTestJournal(), actors.Config{}, slow.bind(),
			call(replay.StartToClose(time.Minute), replay.Retry(replay.RetryPolicy{MaxAttempts: 3})))
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutStartToClose)
		var failed *replay.ActivityError
		if !errors.As(err, &failed) || failed.Attempts != 3 {
			t.Errorf("failed with %#v", err)
		}
		idle()
		if got := fmt.Sprint(slow.numbers); got != "[1 2 3]" {
			t.Errorf("attempts %s", got)
		}
		for _, cause := range slow.causes {
			wantTimeout(t, cause, replay.TimeoutStartToClose)
		}
		for i := range 2 {
			if pause := slow.at[i+1].Sub(slow.at[i]) - time.Minute; pause < 0 || pause > time.Minute {
				t.Errorf("attempt %d began %v after the end of the one before", i+2, pause)
			}
		}
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityFailed of 2", "OrchestrationFailed")
	})
}

// An attempt that does not heed its context is given up all the same: what it
// returns later is dropped, whether the next one runs or the activity is done.
func TestLateResultOfAnAttemptIsDropped(t *testing.T) {
	virtually(t, func(t *testing.T) {
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

func TestPlaceOfAnAttemptIsTakenUntilItsBodyReturns(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(once, replay.StartToClose(time.Minute)),
			work.Bind(func(context.Context, int) (string, error) { time.Sleep(time.Hour); return "late", nil }))
		begin := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutStartToClose)
		wantPassed(t, begin, time.Minute)
		n.start("s", "shout", "a").want(nil)
		n.wantOutput("s", "A")
		wantPassed(t, begin, time.Hour)
	})
}

func TestDeadlineOfAnAttemptIsTheEarlierLimit(t *testing.T) {
	for name, c := range map[string]struct {
		options []replay.ActivityOption
		want    time.Duration // 0: none
	}{
		"none":              {nil, 0},
		"start-to-close":    {[]replay.ActivityOption{replay.StartToClose(time.Minute)}, time.Minute},
		"schedule-to-close": {[]replay.ActivityOption{replay.ScheduleToClose(time.Hour)}, time.Hour},
		"the first of two":  {[]replay.ActivityOption{replay.ScheduleToClose(time.Hour), replay.StartToClose(time.Minute)}, time.Minute},
		"the second of two": {[]replay.ActivityOption{replay.ScheduleToClose(time.Minute), replay.StartToClose(time.Hour)}, time.Minute},
		"not start or beat": {[]replay.ActivityOption{replay.ScheduleToStart(time.Minute), replay.HeartbeatTimeout(time.Minute)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, call(c.options...),
					work.Bind(func(ctx context.Context, _ int) (string, error) {
						info := replay.ActivityInfo(ctx)
						at, bounded := ctx.Deadline()
						if bounded != (c.want > 0) || !at.Equal(info.Deadline) || bounded && !at.Equal(info.Scheduled.Add(c.want)) {
							return "", replay.NonRetryable(fmt.Errorf("deadline %v (%t) after %v", at, bounded, info.Scheduled))
						}
						return "ok", nil
					}))
				n.start("c", "call", "").want(nil)
				n.wantOutput("c", "ok")
			})
		})
	}
}

func TestActivityAsAWholeIsLimited(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var slow sluggish
		n := lead(t, newTestJournal(), actors.Config{}, slow.bind(), call(replay.ScheduleToClose(time.Minute)))
		begin := time.Now()
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutScheduleToClose)
		wantPassed(t, begin, time.Minute)
		idle()
		wantTimeout(t, slow.causes[0], replay.TimeoutScheduleToClose)
		time.Sleep(time.Hour)
		if len(slow.at) != 1 {
			t.Errorf("%d attempts", len(slow.at))
		}
	})
}

var errFull = replay.NewError("test.full", "full")

func TestUnlimitedPolicyEndsWithTheActivitysLimit(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var attempts timeline
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.ScheduleToClose(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				attempts.mark(ctx)
				return "", errFull
			}))
		begin := time.Now()
		n.start("c", "call", "").want(nil)
		err := n.failure("c")
		wantTimeout(t, err, replay.TimeoutScheduleToClose)
		if !errors.Is(err, errFull) {
			t.Errorf("%v does not tell of the last attempt", err)
		}
		// They begin after 1, 3, 7, 15, 31 and 63 s, and a fifth more or less.
		if many, passed := len(attempts.at), time.Since(begin); many < 6 || many > 7 || passed < 20*time.Second || passed > time.Minute {
			t.Errorf("%d attempts in %v", many, passed)
		}
		if begun := attempts.at[len(attempts.at)-1]; time.Since(begun) != 0 {
			t.Errorf("it ended %v after the last attempt", time.Since(begun))
		}
	})
}

func TestActivityThatIsRunningWhenItsTimeIsUpTellsOfTheAttemptBefore(t *testing.T) {
	virtually(t, func(t *testing.T) {
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

func TestActivityThatCannotBeginInTimeIsNotTried(t *testing.T) {
	virtually(t, func(t *testing.T) {
		ran := false
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, shout(), call(replay.ScheduleToStart(time.Minute)),
			upper.Bind(func(context.Context, string) (string, error) { time.Sleep(time.Hour); return "A", nil }),
			work.Bind(func(context.Context, int) (string, error) { ran = true; return "", nil }))
		n.start("s", "shout", "a").want(nil)
		idle()
		begin := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutScheduleToStart)
		wantPassed(t, begin, time.Minute)
		n.wantOutput("s", "A")
		idle()
		if ran {
			t.Error("it ran")
		}
	})
}

// Once an attempt has begun, neither the next nor the next leader is bound by the
// limit for the beginning.
func TestLimitForTheBeginningIsForTheFirstAttempt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		code := []replay.Definition{
			call(replay.ScheduleToStart(time.Second), replay.Retry(replay.RetryPolicy{InitialInterval: time.Minute})),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if replay.ActivityInfo(ctx).Number == 1 {
					return "", errFull
				}
				if context.Cause(ctx) == nil && time.Since(replay.ActivityInfo(ctx).Scheduled) < time.Hour {
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

func TestLimitForTheBeginningIsNotForOneThatHadBegunElsewhere(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var slow sluggish
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, slow.bind(), call(replay.ScheduleToStart(time.Minute)))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		first.close()
		second := lead(t, j, actors.Config{}, call(replay.ScheduleToStart(time.Minute)),
			work.Bind(func(context.Context, int) (string, error) { return "done", nil }))
		second.wantOutput("c", "done")
		if !errors.Is(slow.causes[0], replay.ErrNodeStopping) {
			t.Errorf("the context ended because of %v", slow.causes[0])
		}
	})
}

// Each limit, when the leader changes meanwhile: those that begin with the
// schedule go on, those of an attempt begin with the new one.
func TestLimitsThroughAFailover(t *testing.T) {
	for name, c := range map[string]struct {
		options []replay.ActivityOption
		away    time.Duration // how long nobody leads, after 40 s
		kind    replay.TimeoutKind
		want    time.Duration // since the start
		runs    int
	}{
		"schedule-to-close": {
			[]replay.ActivityOption{replay.ScheduleToClose(time.Minute)}, time.Second, replay.TimeoutScheduleToClose, time.Minute, 2,
		},
		"schedule-to-close, passed meanwhile": {
			[]replay.ActivityOption{replay.ScheduleToClose(time.Minute)}, time.Hour, replay.TimeoutScheduleToClose, time.Hour + 40*time.Second, 1,
		},
		"schedule-to-start": {
			[]replay.ActivityOption{replay.ScheduleToStart(time.Minute), replay.Tag("none")}, time.Second, replay.TimeoutScheduleToStart, time.Minute, 0,
		},
		"schedule-to-start, passed meanwhile": {
			[]replay.ActivityOption{replay.ScheduleToStart(time.Minute), replay.Tag("none")}, time.Hour, replay.TimeoutScheduleToStart, time.Hour + 40*time.Second, 0,
		},
		"start-to-close": {
			[]replay.ActivityOption{replay.StartToClose(time.Minute), once}, time.Second, replay.TimeoutStartToClose, 101 * time.Second, 2,
		},
		"heartbeat": {
			[]replay.ActivityOption{replay.HeartbeatTimeout(time.Minute), once}, time.Second, replay.TimeoutHeartbeat, 101 * time.Second, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				var slow sluggish
				j := newTestJournal()
				begin := time.Now()
				first := lead(t, j, actors.Config{}, slow.bind(), call(c.options...))
				first.start("c", "call", "").want(nil)
				time.Sleep(40 * time.Second)
				first.close()
				time.Sleep(c.away)
				second := lead(t, j, actors.Config{}, slow.bind(), call(c.options...))
				wantTimeout(t, second.failure("c"), c.kind)
				wantPassed(t, begin, c.want)
				idle()
				if len(slow.at) != c.runs {
					t.Errorf("the body ran %d times", len(slow.at))
				}
			})
		})
	}
}

func TestLimitsOfAnActivityThatIsDoneAreForgotten(t *testing.T) {
	virtually(t, func(t *testing.T) {
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
		if n.log.warns() {
			t.Errorf("logged: %s", &n.log.text)
		}
	})
}

func TestActivityWaitsForANodeWithItsTag(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		var where string
		code := func(node string) []replay.Definition {
			return []replay.Definition{bindUpper(), shout(), call(replay.Tag("gpu")),
				work.Bind(func(context.Context, int) (string, error) { where = node; return "done", nil })}
		}
		first := lead(t, j, actors.Config{Tags: []string{"disk"}}, code("first")...)
		first.start("c", "call", "").want(nil)
		first.start("s", "shout", "a").want(nil)
		first.wantOutput("s", "A")
		time.Sleep(time.Hour)
		if state := first.partition.Activity(&journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}); state != actors.ActivityWaitingForTag {
			t.Errorf("the activity is %q", state)
		}
		first.close()
		second := lead(t, j, actors.Config{Tags: []string{"disk", "gpu"}}, code("second")...)
		second.wantOutput("c", "done")
		if where != "second" {
			t.Errorf("ran on the %s node", where)
		}
	})
}

func TestWaitingForCodeIsNoAttempt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, call(once))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		ref := &journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}
		if state := first.partition.Activity(ref); state != actors.ActivityWaitingForCode {
			t.Errorf("the activity is %q", state)
		}
		if many := first.log.count("no code for activity"); many != 1 {
			t.Errorf("said %d times", many)
		}
		first.close()
		second := lead(t, j, actors.Config{}, call(once), work.Bind(func(ctx context.Context, _ int) (string, error) {
			return fmt.Sprint(replay.ActivityInfo(ctx).Number), nil
		}))
		second.wantOutput("c", "1")
	})
}

func TestPanicsMayBeFinal(t *testing.T) {
	virtually(t, func(t *testing.T) {
		attempts, err := failing(t, func(int) (string, error) {
			panicky()
			return "", nil
		}, replay.Retry(replay.RetryPolicy{PanicsAreFinal: true}))
		var crash *replay.PanicError
		if !errors.As(err, &crash) || attempts != 1 {
			t.Errorf("%d attempts, %v", attempts, err)
		}
	})
}

func TestInputThatDoesNotFitEndsTheActivity(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			replay.Activity[string, string]("work").Bind(func(context.Context, string) (string, error) { return "", nil }))
		n.start("c", "call", "").want(nil)
		var unfit *replay.PayloadError
		if err := n.failure("c"); !errors.As(err, &unfit) || unfit.Name != "work" || unfit.Part != "input" {
			t.Errorf("failed with %#v", err)
		}
	})
}

func TestOutputThatCannotBeEncodedEndsTheActivity(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			replay.Activity[int, chan int]("work").Bind(func(context.Context, int) (chan int, error) { return nil, nil }))
		n.start("c", "call", "").want(nil)
		var unfit *replay.PayloadError
		if err := n.failure("c"); !errors.As(err, &unfit) || unfit.Part != "output" {
			t.Errorf("failed with %#v", err)
		}
	})
}
