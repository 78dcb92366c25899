package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

var work = replay.Activity[int, string]("work")

// call calls the activity once, with the given options.
func call(options ...replay.ActivityOption) replay.Definition {
	return program("call", func(ctx *replay.Context, _ string) (string, error) { return work.Call(ctx, 0, options...) })
}

// A timeline is when attempts began.
type timeline struct {
	mu      sync.Mutex
	at      []time.Time
	numbers []int
}

func (l *timeline) mark(ctx context.Context) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Now())
	l.numbers = append(l.numbers, replay.ActivityInfo(ctx).Number)
	return len(l.at)
}

func (l *timeline) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.at)
}

func TestFailedAttemptsAreRepeatedAfterGrowingPauses(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var attempts timeline
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if attempts.mark(ctx) < 4 {
					return "", errors.New("not yet")
				}
				return replay.ActivityInfo(ctx).IdempotencyKey(), nil
			}))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "c/1/2")
		for i, exact := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			pause := attempts.at[i+1].Sub(attempts.at[i])
			if pause < exact*8/10 || pause > exact*12/10 {
				t.Errorf("pause %d took %v", i+1, pause)
			}
		}
		if got := fmt.Sprint(attempts.numbers); got != "[1 2 3 4]" {
			t.Errorf("numbers of the attempts: %s", got)
		}
		if many := n.events("c")[2].GetActivityCompleted().Attempts; many != 4 {
			t.Errorf("%d attempts recorded", many)
		}
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

// failing runs call with that body and returns the error with which it failed,
// and how many attempts were made.
func failing(t *testing.T, body func(int) (string, error), options ...replay.ActivityOption) (attempts int, failure error) {
	t.Helper()
	n := lead(t, newTestJournal(), actors.Config{}, call(options...),
		work.Bind(func(context.Context, int) (string, error) {
			attempts++
			return body(attempts)
		}))
	n.start("c", "call", "").want(nil)
	failure = n.failure("c")
	if recorded := n.events("c")[2].GetActivityFailed().Attempts; int(recorded) != attempts {
		t.Errorf("%d attempts recorded, %d made", recorded, attempts)
	}
	return attempts, failure
}

func TestPolicyEndsTheAttempts(t *testing.T) {
	twice := replay.Retry(replay.RetryPolicy{MaxAttempts: 2})
	codes := replay.Retry(replay.RetryPolicy{NonRetryableCodes: []string{"gone"}})
	for name, c := range map[string]struct {
		body    func(attempt int) (string, error)
		option  replay.ActivityOption
		want    int
		message string
	}{
		"number of attempts": {
			func(int) (string, error) { return "", errors.New("no") }, twice, 2, `activity "work": no`,
		},
		"error that forbids it": {
			func(int) (string, error) { return "", fmt.Errorf("wrapped: %w", replay.NonRetryable(errors.New("no"))) },
			replay.Retry(replay.RetryPolicy{}), 1, `activity "work": wrapped: no`,
		},
		"code that forbids it": {
			func(n int) (string, error) {
				if n < 3 {
					return "", errors.New("busy")
				}
				return "", replay.WithCode("gone", errors.New("gone"))
			}, codes, 3, `activity "work": gone`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				attempts, err := failing(t, c.body, c.option)
				if attempts != c.want || err.Error() != c.message {
					t.Errorf("%d attempts, %v", attempts, err)
				}
			})
		})
	}
}

func panicky() { panic("ouch") }

func TestPanicInAnActivityIsAFailedAttempt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		attempts, err := failing(t, func(int) (string, error) {
			panicky()
			return "", nil
		}, replay.Retry(replay.RetryPolicy{MaxAttempts: 3}))
		var crash *replay.PanicError
		if !errors.As(err, &crash) || crash.Message != "panic: ouch" || !strings.Contains(crash.Stack, "panicky") {
			t.Errorf("failed with %#v", err)
		}
		if attempts != 3 {
			t.Errorf("%d attempts", attempts)
		}
	})
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// An error that is a nil pointer of its type is a classic: it is not nil, and
// asking for its message panics.
func TestErrorThatPanicsIsAFailedAttempt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		attempts, err := failing(t, func(int) (string, error) {
			var none *nilError
			return "", none
		}, replay.Retry(replay.RetryPolicy{MaxAttempts: 2}))
		var crash *replay.PanicError
		if !errors.As(err, &crash) || !strings.Contains(crash.Message, "nilError") || !strings.Contains(crash.Stack, "nilError") {
			t.Errorf("failed with %#v", err)
		}
		if attempts != 2 {
			t.Errorf("%d attempts", attempts)
		}
	})
}

func TestGoexitInAnActivityDoesNotLoseTheWorker(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var mu sync.Mutex
		attempts := 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, call(), bindUpper(), shout(),
			work.Bind(func(context.Context, int) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if attempts++; attempts < 4 {
					runtime.Goexit()
				}
				return "done", nil
			}))
		n.start("c", "call", "").want(nil)
		n.start("s", "shout", "a").want(nil)
		idle() // before the second attempt
		n.wantOutput("s", "A")
		n.wantOutput("c", "done")
	})
}

func TestNextTaskGoesOnAfterGoexit(t *testing.T) {
	virtually(t, func(t *testing.T) {
		leave := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})),
			work.Bind(func(context.Context, int) (string, error) {
				<-leave
				runtime.Goexit()
				return "", nil
			}))
		n.start("c", "call", "").want(nil)
		idle()
		n.start("s", "shout", "a").want(nil) // waits for the only worker
		idle()
		close(leave)
		n.wantOutput("s", "A")
		var crash *replay.PanicError
		if err := n.failure("c"); !errors.As(err, &crash) || !strings.Contains(crash.Message, "Goexit") {
			t.Errorf("failed with %v", err)
		}
	})
}

// raceWithWord gives its activity up when a word comes first.
func raceWithWord() replay.Definition {
	return program("race", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, work.Start(ctx, 0), word.Subscribe(ctx))
		if err != nil {
			return "", err
		}
		_, err = word.Wait(ctx) // long enough to see what comes later
		return fmt.Sprint(winner), err
	})
}

func TestActivityGivenUpIsToldAndItsResultDropped(t *testing.T) {
	for name, result := range map[string]error{"result": nil, "error": errors.New("late")} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				ended := make(chan error, 1)
				n := lead(t, newTestJournal(), actors.Config{}, raceWithWord(),
					work.Bind(func(ctx context.Context, _ int) (string, error) {
						<-ctx.Done()
						ended <- context.Cause(ctx)
						return "late", result
					}))
				n.start("r", "race", "").want(nil)
				idle()
				n.send("r", "word", "").want(nil)
				if cause := <-ended; !strings.Contains(fmt.Sprint(cause), "given up") {
					t.Errorf("the context ended because of %v", cause)
				}
				time.Sleep(time.Hour)
				n.send("r", "word", "").want(nil)
				n.wantOutput("r", "1")
				n.wantHistory("r", "OrchestrationStarted", "ActivityScheduled", "ExternalSubscribed", "ExternalEvent",
					"CancelRequested of 2", "ExternalSubscribed", "ExternalEvent", "OrchestrationCompleted")
			})
		})
	}
}

func TestActivityGivenUpIsNotTriedAgain(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var attempts timeline
		n := lead(t, newTestJournal(), actors.Config{}, raceWithWord(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				attempts.mark(ctx)
				return "", errors.New("no")
			}))
		n.start("r", "race", "").want(nil)
		time.Sleep(2 * time.Second)
		n.send("r", "word", "").want(nil)
		idle()
		made := len(attempts.at)
		time.Sleep(time.Hour)
		if made < 2 || len(attempts.at) != made {
			t.Errorf("%d attempts, then %d", made, len(attempts.at))
		}
	})
}

func TestActivityGivenUpWhileItWaitsNeverStarts(t *testing.T) {
	virtually(t, func(t *testing.T) {
		leave := make(chan struct{})
		started := 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, raceWithWord(), shout(),
			upper.Bind(func(context.Context, string) (string, error) { <-leave; return "A", nil }),
			work.Bind(func(context.Context, int) (string, error) { started++; return "", nil }))
		n.start("s", "shout", "a").want(nil)
		idle()
		n.start("r", "race", "").want(nil)
		idle()
		n.send("r", "word", "").want(nil)
		idle()
		close(leave)
		n.wantOutput("s", "A")
		idle()
		if started != 0 {
			t.Error("it started")
		}
	})
}

func TestActivitiesAreBounded(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const most = 3
		var mu sync.Mutex
		running, peak := 0, 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: most},
			program("fan", func(ctx *replay.Context, _ string) (string, error) {
				var futures []*replay.Future[string]
				for i := range 20 {
					futures = append(futures, work.Start(ctx, i))
				}
				results, err := replay.All(ctx, futures...)
				return strings.Join(results, ""), err
			}),
			work.Bind(func(_ context.Context, i int) (string, error) {
				mu.Lock()
				running++
				peak = max(peak, running)
				mu.Unlock()
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				running--
				return string(rune('a' + i)), nil
			}))
		begin := time.Now()
		n.start("f", "fan", "").want(nil)
		n.wantOutput("f", "abcdefghijklmnopqrst")
		if peak != most {
			t.Errorf("%d ran at once", peak)
		}
		if passed := time.Since(begin); passed != 7*time.Minute {
			t.Errorf("20 activities of a minute took %v", passed)
		}
	})
}

func TestActivityWithoutCodeWaitsForANodeThatHasIt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		first.wantHistory("c", "OrchestrationStarted", "ActivityScheduled")
		if !first.log.contains("no code for activity") {
			t.Error("nothing in the log")
		}
		first.close()
		second := lead(t, j, actors.Config{}, call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})),
			work.Bind(func(context.Context, int) (string, error) { return "done", nil }))
		second.wantOutput("c", "done")
	})
}

func TestResultIsKeptUntilItIsRecorded(t *testing.T) {
	virtually(t, func(t *testing.T) {
		runs := 0
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(context.Context, int) (string, error) { runs++; return "done", nil }))
		refusals := 0
		n.journal.set(func(j *testJournal) {
			j.judge = refuseFirst(t, 5, "ActivityCompleted", &refusals)
		})
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "done")
		if runs != 1 || refusals != 5 {
			t.Errorf("%d runs, %d refusals", runs, refusals)
		}
	})
}
