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
func call(options ...replay.Option) replay.Definition {
	return program("call", func(ctx *replay.Context, _ string) (string, error) { return work.Call(ctx, 0, options...) })
}

// attemptLog records when attempts began.
type attemptLog struct {
	mu      sync.Mutex
	starts  []time.Time
	numbers []int
}

func (l *attemptLog) record(ctx context.Context) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts = append(l.starts, time.Now())
	l.numbers = append(l.numbers, replay.ActivityInfo(ctx).Number)
	return len(l.starts)
}

func (l *attemptLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.starts)
}

func TestActivityRetry_ExponentialBackoff(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if attempts.record(ctx) < 4 {
					return "", errors.New("not yet")
				}
				return replay.ActivityInfo(ctx).IdempotencyKey(), nil
			}))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "c/1/2")
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			delay := attempts.starts[i+1].Sub(attempts.starts[i])
			if delay < want*8/10 || delay > want*12/10 {
				t.Errorf("backoff %d took %v", i+1, delay)
			}
		}
		if got := fmt.Sprint(attempts.numbers); got != "[1 2 3 4]" {
			t.Errorf("attempt numbers: %s", got)
		}
		if count := n.events("c")[2].GetActivityCompleted().Attempts; count != 4 {
			t.Errorf("%d attempts recorded", count)
		}
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

// runFailing runs call with that body. It returns the error with which it failed, and the number
// of attempts.
func runFailing(t *testing.T, body func(int) (string, error), options ...replay.Option) (attempts int, failure error) {
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

func TestActivityRetry_PolicyStopsRetries(t *testing.T) {
	twice := replay.Retry(replay.RetryPolicy{MaxAttempts: 2})
	codes := replay.Retry(replay.RetryPolicy{NonRetryableCodes: []string{"gone"}})
	for name, c := range map[string]struct {
		body    func(attempt int) (string, error)
		option  replay.Option
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
			inVirtualTime(t, func(t *testing.T) {
				attempts, err := runFailing(t, c.body, c.option)
				if attempts != c.want || err.Error() != c.message {
					t.Errorf("%d attempts, %v", attempts, err)
				}
			})
		})
	}
}

func panicky() { panic("ouch") }

func TestActivity_PanicFailsAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		attempts, err := runFailing(t, func(int) (string, error) {
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

// An error may be a nil pointer in a non-nil interface. Then its Error method panics.
func TestActivity_PanickingErrorFailsAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		attempts, err := runFailing(t, func(int) (string, error) {
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

func TestActivity_GoexitKeepsSlot(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
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
		waitIdle() // before the second attempt
		n.wantOutput("s", "A")
		n.wantOutput("c", "done")
	})
}

func TestActivity_GoexitStartsNextTask(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, bindUpper(), shout(),
			call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})),
			work.Bind(func(context.Context, int) (string, error) {
				<-release
				runtime.Goexit()
				return "", nil
			}))
		n.start("c", "call", "").want(nil)
		waitIdle()
		n.start("s", "shout", "a").want(nil) // waits for the only slot
		waitIdle()
		close(release)
		n.wantOutput("s", "A")
		var crash *replay.PanicError
		if err := n.failure("c"); !errors.As(err, &crash) || !strings.Contains(crash.Message, "Goexit") {
			t.Errorf("failed with %v", err)
		}
	})
}

// cancelOnWord cancels its activity if a word comes first.
func cancelOnWord() replay.Definition {
	return program("race", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, work.Start(ctx, 0), word.Subscribe(ctx))
		if err != nil {
			return "", err
		}
		_, err = word.Wait(ctx) // long enough to see what comes later
		return fmt.Sprint(winner), err
	})
}

func TestActivityCancel_CancelsContextDropsResult(t *testing.T) {
	for name, result := range map[string]error{"result": nil, "error": errors.New("late")} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				ended := make(chan error, 1)
				n := lead(t, newTestJournal(), actors.Config{}, cancelOnWord(),
					work.Bind(func(ctx context.Context, _ int) (string, error) {
						<-ctx.Done()
						ended <- context.Cause(ctx)
						return "late", result
					}))
				n.start("r", "race", "").want(nil)
				waitIdle()
				n.send("r", "word", "").want(nil)
				if cause := <-ended; !strings.Contains(fmt.Sprint(cause), "activity was canceled") {
					t.Errorf("context canceled with cause %v", cause)
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

func TestActivityCancel_StopsRetries(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		n := lead(t, newTestJournal(), actors.Config{}, cancelOnWord(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				attempts.record(ctx)
				return "", errors.New("no")
			}))
		n.start("r", "race", "").want(nil)
		time.Sleep(2 * time.Second)
		n.send("r", "word", "").want(nil)
		waitIdle()
		made := len(attempts.starts)
		time.Sleep(time.Hour)
		if made < 2 || len(attempts.starts) != made {
			t.Errorf("%d attempts, then %d", made, len(attempts.starts))
		}
	})
}

func TestActivityCancel_QueuedNeverStarts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		release := make(chan struct{})
		started := 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, cancelOnWord(), shout(),
			upper.Bind(func(context.Context, string) (string, error) { <-release; return "A", nil }),
			work.Bind(func(context.Context, int) (string, error) { started++; return "", nil }))
		n.start("s", "shout", "a").want(nil)
		waitIdle()
		n.start("r", "race", "").want(nil)
		waitIdle()
		n.send("r", "word", "").want(nil)
		waitIdle()
		close(release)
		n.wantOutput("s", "A")
		waitIdle()
		if started != 0 {
			t.Error("it started")
		}
	})
}

func TestActivity_ConcurrencyLimit(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const limit = 3
		var mu sync.Mutex
		running, peak := 0, 0
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: limit},
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
		start := time.Now()
		n.start("f", "fan", "").want(nil)
		n.wantOutput("f", "abcdefghijklmnopqrst")
		if peak != limit {
			t.Errorf("%d activities ran at once", peak)
		}
		if elapsed := time.Since(start); elapsed != 7*time.Minute {
			t.Errorf("20 activities of a minute took %v", elapsed)
		}
	})
}

func TestActivity_WithoutCodeWaitsForNode(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})))
		first.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		first.wantHistory("c", "OrchestrationStarted", "ActivityScheduled")
		if !first.log.contains("no code for activity") {
			t.Error("nothing was logged")
		}
		first.close()
		second := lead(t, j, actors.Config{}, call(replay.Retry(replay.RetryPolicy{MaxAttempts: 1})),
			work.Bind(func(context.Context, int) (string, error) { return "done", nil }))
		second.wantOutput("c", "done")
	})
}

func TestActivityResult_RetriedUntilRecorded(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		runs := 0
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(context.Context, int) (string, error) { runs++; return "done", nil }))
		rejections := 0
		n.journal.configure(func(j *testJournal) {
			j.check = rejectFirstOf(t, 5, "ActivityCompleted", &rejections)
		})
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "done")
		if runs != 1 || rejections != 5 {
			t.Errorf("%d runs, %d rejections", runs, rejections)
		}
	})
}
