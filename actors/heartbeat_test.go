package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// recordedAttempt returns the journal's record of the attempts of an instance's only activity.
func (n *node) recordedAttempt(id string) *journalpb.Attempt {
	for open := range n.journal.InstanceOperations(id) {
		return open.Attempt
	}
	return nil
}

func TestHeartbeat_TimeoutFailsAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var cause error
		n := lead(t, newTestJournal(), actors.Config{}, call(oneAttempt, replay.HeartbeatTimeout(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				for i := range 10 {
					time.Sleep(59 * time.Second)
					if err := replay.Heartbeat(ctx, i); err != nil {
						return "", err
					}
				}
				<-ctx.Done()
				cause = replay.Heartbeat(ctx, "too late")
				return "late", nil
			}))
		start := time.Now()
		n.start("c", "call", "").want(nil)
		wantTimeout(t, n.failure("c"), replay.TimeoutHeartbeat)
		wantElapsed(t, start, 10*59*time.Second+time.Minute)
		waitIdle()
		wantTimeout(t, cause, replay.TimeoutHeartbeat)
	})
}

func TestHeartbeat_DetailsReachNextAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				done, some := replay.HeartbeatDetails[int](ctx)
				if _, other := replay.HeartbeatDetails[[]string](ctx); other {
					return "", replay.NonRetryable(errors.New("a number is no list"))
				}
				if number := replay.ActivityInfo(ctx).Number; some != (number > 1) {
					return "", replay.NonRetryable(fmt.Errorf("attempt %d: details: %t", number, some))
				}
				for range 10 { // at the same moment: most of them are not recorded
					done++
					if err := replay.Heartbeat(ctx, done); err != nil {
						return "", err
					}
				}
				if done < 30 {
					return "", errFull
				}
				return fmt.Sprint(done), nil
			}))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "30")
	})
}

func TestHeartbeat_DetailsReachNextLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		code := []replay.Definition{call(), work.Bind(func(ctx context.Context, _ int) (string, error) {
			if text, ok := replay.HeartbeatDetails[string](ctx); ok {
				return fmt.Sprintf("%s, attempt %d", text, replay.ActivityInfo(ctx).Number), nil
			}
			if err := replay.Heartbeat(ctx, "half"); err != nil {
				return "", err
			}
			if err := replay.Heartbeat(ctx, "most"); err != nil {
				return "", err
			}
			<-ctx.Done()
			return "", ctx.Err()
		})}
		for name, c := range map[string]struct {
			after time.Duration
			want  string
		}{"at once": {0, "half, attempt 1"}, "later": {time.Second, "most, attempt 1"}} {
			j := newTestJournal()
			first := lead(t, j, actors.Config{}, code...)
			first.start("c", "call", "").want(nil)
			waitIdle()
			time.Sleep(c.after)
			waitIdle()
			first.close()
			second := lead(t, j, actors.Config{}, code...)
			if got := second.output("c"); got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	})
}

func TestHeartbeat_RecordsAreRateLimited(t *testing.T) {
	for name, c := range map[string]struct {
		options []replay.Option
		details func(i int) int
		limit   int
	}{
		"every second":            {nil, func(i int) int { return i }, 62},
		"a third of the timeout":  {[]replay.Option{replay.HeartbeatTimeout(time.Minute)}, func(i int) int { return i }, 5},
		"only when it changes":    {nil, func(int) int { return 7 }, 1},
		"never more than need be": {nil, func(i int) int { return i / 3000 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, call(c.options...),
					work.Bind(func(ctx context.Context, _ int) (string, error) {
						for i := range 6000 {
							time.Sleep(10 * time.Millisecond)
							if err := replay.Heartbeat(ctx, c.details(i)); err != nil {
								return "", err
							}
						}
						return "done", nil
					}))
				n.start("c", "call", "").want(nil)
				n.wantOutput("c", "done")
				made := n.journal.attemptRecordCount()
				if made > c.limit || made < c.limit*2/3 {
					t.Errorf("%d records, want about %d", made, c.limit)
				}
				n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
			})
		})
	}
}

func TestHeartbeat_UnencodableStillCounts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(oneAttempt, replay.HeartbeatTimeout(time.Minute)),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				for range 5 {
					time.Sleep(50 * time.Second)
					if err := replay.Heartbeat(ctx, make(chan int)); err == nil {
						return "", errors.New("no error")
					}
				}
				return "done", nil
			}))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "done")
	})
}

// The record shows the failures and details of an activity to operators.
func TestAttemptRecord_ShowsFailuresAndDetails(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if err := replay.Heartbeat(ctx, "so far"); err != nil {
					return "", err
				}
				return "", errFull
			}))
		n.start("c", "call", "").want(nil)
		time.Sleep(5 * time.Second) // the third failed after 3 s, the fourth is due after 7
		retained := n.recordedAttempt("c")
		next := time.Until(time.Unix(0, retained.GetNextAt()))
		if retained.GetFailed() < 2 || retained.GetLastError().GetCode() != "test.full" || next <= 0 || next > 5*time.Second ||
			string(retained.GetHeartbeat().GetData()) != `"so far"` {
			t.Errorf("recorded: %v", retained)
		}
	})
}

// A rejected record is repeated, and the attempts continue meanwhile.
func TestAttemptRecord_Retried(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, call(replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				if replay.ActivityInfo(ctx).Number < 2 {
					return "", errFull
				}
				return "done", nil
			}))
		n.journal.configure(func(j *testJournal) { j.rejectAttempts = 5 })
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Minute)
		if retained := n.recordedAttempt("c"); retained.GetFailed() != 1 {
			t.Errorf("recorded: %v", retained)
		}
		n.wantOutput("c", "done")
		delays := n.journal.rejectedAt
		if len(delays) != 5 || !slices.IsSortedFunc(delays, time.Time.Compare) || delays[4].Sub(delays[0]) != 1500*time.Millisecond {
			t.Errorf("rejected at %v", delays)
		}
	})
}
