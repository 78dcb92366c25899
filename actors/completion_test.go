package actors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A pendingActivity hands out its tokens; other goroutines complete it.
type pendingActivity struct {
	attemptLog
	tokens []string
}

func (p *pendingActivity) bind() replay.Definition {
	return work.Bind(func(ctx context.Context, _ int) (string, error) {
		p.record(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tokens = append(p.tokens, replay.ActivityInfo(ctx).Token())
		return "", fmt.Errorf("asked: %w", replay.ErrResultPending)
	})
}

func (p *pendingActivity) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tokens)
}

func (p *pendingActivity) last() string {
	all := p.all()
	return all[len(all)-1]
}

// complete ends an attempt from outside, with a text or an error.
func (n *node) complete(token, text string, failure error) error {
	n.t.Helper()
	attempt, err := engine.ParseToken(token)
	if err != nil {
		n.t.Fatal(err)
	}
	c := activity.Completion{
		Ref:     &journalpb.OperationRef{Instance: attempt.Instance, Execution: attempt.Execution, EventId: attempt.EventID},
		Attempt: attempt.Number,
		Error:   engine.EncodeError(failure),
	}
	if failure == nil {
		c.Result = payload(n.t, text)
	}
	outcome := make(chan error, 2)
	n.partition.CompleteActivity(c, func(err error) { outcome <- err })
	select {
	case err := <-outcome:
		return err
	case <-time.After(time.Hour):
		n.t.Fatal("no answer for an hour")
		return nil
	}
}

func (n *node) wantCompletion(want error, token, text string, failure error) {
	n.t.Helper()
	if err := n.complete(token, text, failure); !isError(err, want) {
		n.t.Errorf("completion by %q or %v: %v, want %v", text, failure, err, want)
	}
}

func TestCompleteActivity_Succeeds(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		n := lead(t, newTestJournal(), actors.Config{ActivitiesMax: 1}, o.bind(), call(), bindUpper(), shout())
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Hour)
		n.start("s", "shout", "a").want(nil) // no slot is used
		n.wantOutput("s", "A")
		if state := n.partition.AttemptsOf(&journalpb.OperationRef{Instance: "c", Execution: 1, EventId: 2}).State; state != activity.Pending {
			t.Errorf("the activity is %q", state)
		}
		n.wantCompletion(nil, o.last(), "granted", nil)
		n.wantOutput("c", "granted")
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "ActivityCompleted of 2", "OrchestrationCompleted")
		n.wantCompletion(nil, o.last(), "granted", nil) // again
		n.wantCompletion(activity.ErrClosed, o.last(), "rejected", nil)
		n.wantCompletion(activity.ErrClosed, o.last(), "", errFull)
		if len(o.all()) != 1 {
			t.Errorf("%d attempts", len(o.all()))
		}
	})
}

func TestCompleteActivity_UnknownTokens(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		n := lead(t, newTestJournal(), actors.Config{}, o.bind(), call())
		n.start("c", "call", "").want(nil)
		waitIdle()
		for _, a := range []replay.Attempt{
			{Instance: "c", Execution: 1, EventID: 2, Number: 2},
			{Instance: "c", Execution: 1, EventID: 1, Number: 1},
			{Instance: "c", Execution: 2, EventID: 2, Number: 1},
			{Instance: "unknown", Execution: 1, EventID: 2, Number: 1},
		} {
			n.wantCompletion(activity.ErrClosed, a.Token(), "x", nil)
			n.wantCompletion(activity.ErrClosed, a.Token(), "", errFull)
		}
		n.wantCompletion(nil, o.last(), "x", nil)
	})
}

// A failure from outside is a failed attempt: the next attempt has its own token.
func TestCompleteActivity_FailureRetries(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		n := lead(t, newTestJournal(), actors.Config{}, o.bind(), call())
		n.start("c", "call", "").want(nil)
		waitIdle()
		n.wantCompletion(nil, o.last(), "", errFull)
		n.wantCompletion(nil, o.last(), "", errFull) // again, during the backoff
		if retained := n.recordedAttempt("c"); retained.GetFailed() != 1 || retained.GetPending() {
			t.Errorf("kept: %v", retained)
		}
		time.Sleep(time.Minute)
		n.wantCompletion(nil, o.all()[0], "", errFull) // and later
		n.wantCompletion(activity.ErrClosed, o.all()[0], "late", nil)
		if len(o.all()) != 2 {
			t.Fatalf("%d attempts", len(o.all()))
		}
		n.wantCompletion(nil, o.all()[1], "", replay.NonRetryable(errFull))
		n.wantCompletion(nil, o.all()[1], "", replay.NonRetryable(errFull))
		if err := n.failure("c"); !errors.Is(err, errFull) {
			t.Errorf("failed with %v", err)
		}
		n.wantCompletion(nil, o.all()[1], "", replay.NonRetryable(errFull))
		n.wantCompletion(activity.ErrClosed, o.all()[1], "", errors.New("other"))
	})
}

// The completion may come before the body has returned.
func TestCompleteActivity_BeforeBodyReturns(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		tokens := make(chan string, 1)
		ended := make(chan error, 1)
		n := lead(t, newTestJournal(), actors.Config{}, call(),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				tokens <- replay.ActivityInfo(ctx).Token()
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return "", replay.ErrResultPending
			}))
		n.start("c", "call", "").want(nil)
		n.wantCompletion(nil, <-tokens, "granted", nil)
		if cause := <-ended; !errors.Is(cause, replay.ErrActivityCanceled) {
			t.Errorf("context canceled with cause %v", cause)
		}
		n.wantOutput("c", "granted")
		if retained := n.journal.attemptRecordCount(); retained != 0 {
			t.Errorf("%d records", retained)
		}
	})
}

func TestPendingActivity_NotRestartedByNextLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		code := []replay.Definition{o.bind(), call(replay.Retry(replay.RetryPolicy{InitialInterval: time.Second, Backoff: 1}))}
		j := newTestJournal()
		for range 3 {
			n := lead(t, j, actors.Config{}, code...)
			started := n.startMessage("call", "")
			started.RequestId = "same"
			n.deliver("c", message(started)).want(nil)
			time.Sleep(time.Hour)
			n.close()
		}
		if len(o.all()) != 1 {
			t.Fatalf("%d attempts", len(o.all()))
		}
		n := lead(t, j, actors.Config{}, code...)
		n.wantCompletion(nil, o.last(), "", errFull)
		n.close()
		n = lead(t, j, actors.Config{}, code...)
		n.wantCompletion(nil, o.all()[0], "", errFull)
		time.Sleep(time.Minute)
		if len(o.all()) != 2 {
			t.Fatalf("%d attempts", len(o.all()))
		}
		n.close()
		n = lead(t, j, actors.Config{}, code...)
		n.wantCompletion(nil, o.last(), "granted", nil)
		n.wantOutput("c", "granted")
		n.close()
		n = lead(t, j, actors.Config{}, code...)
		n.wantCompletion(nil, o.last(), "granted", nil)
		n.wantCompletion(activity.ErrClosed, o.last(), "rejected", nil)
	})
}

// The timeouts of a pending attempt continue, with and without a failover.
func TestPendingActivity_Timeouts(t *testing.T) {
	for name, c := range map[string]struct {
		option replay.Option
		kind   replay.TimeoutKind
	}{
		"start-to-close":    {replay.StartToClose(time.Hour), replay.TimeoutStartToClose},
		"schedule-to-close": {replay.ScheduleToClose(time.Hour), replay.TimeoutScheduleToClose},
	} {
		for _, failover := range []bool{false, true} {
			t.Run(fmt.Sprint(name, failover), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) {
					var o pendingActivity
					code := []replay.Definition{o.bind(), call(oneAttempt, c.option, replay.HeartbeatTimeout(time.Minute))}
					j := newTestJournal()
					n := lead(t, j, actors.Config{}, code...)
					start := time.Now()
					n.start("c", "call", "").want(nil)
					time.Sleep(40 * time.Minute)
					if failover {
						n.close()
						n = lead(t, j, actors.Config{}, code...)
					}
					wantTimeout(t, n.failure("c"), c.kind)
					wantElapsed(t, start, time.Hour)
					n.wantCompletion(activity.ErrClosed, o.last(), "late", nil)
				})
			})
		}
	}
}

func TestPendingActivity_CancelCloses(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		n := lead(t, newTestJournal(), actors.Config{}, o.bind(), cancelOnWord())
		n.start("r", "race", "").want(nil)
		waitIdle()
		n.send("r", "word", "").want(nil)
		waitIdle()
		n.wantCompletion(activity.ErrClosed, o.last(), "late", nil)
	})
}

// A completion in flight when the node loses leadership gets an answer.
func TestCompleteActivity_AnsweredOnClose(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, o.bind(), call())
		n.start("c", "call", "").want(nil)
		waitIdle()
		j.configure(func(j *testJournal) { j.check = func(*journalpb.Append) error { return errRejected } })
		var calls sync.WaitGroup
		for range 2 { // the second meets the first
			calls.Go(func() { n.wantCompletion(actors.ErrStopped, o.last(), "granted", nil) })
		}
		time.Sleep(time.Minute)
		n.close()
		calls.Wait()
		n.wantCompletion(actors.ErrStopped, o.last(), "granted", nil)
		j.clearCrash()
		n = lead(t, j, actors.Config{}, o.bind(), call())
		n.wantCompletion(nil, o.last(), "granted", nil)
		n.wantOutput("c", "granted")
	})
}

// A pending attempt is recorded even if the journal rejects the record at first.
func TestPendingActivity_RecordRetried(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		j := newTestJournal()
		j.rejectAttempts = 7
		n := lead(t, j, actors.Config{}, o.bind(), call())
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Minute)
		n.close()
		n = lead(t, j, actors.Config{}, o.bind(), call())
		time.Sleep(time.Minute)
		if len(o.all()) != 1 {
			t.Errorf("%d attempts", len(o.all()))
		}
		n.wantCompletion(nil, o.last(), "granted", nil)
	})
}

// The journal has committed the end but reported an error. The caller still gets an answer.
func TestCompleteActivity_UnknownAppendOutcome(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var o pendingActivity
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, o.bind(), call())
		n.start("c", "call", "").want(nil)
		waitIdle()
		j.configure(func(j *testJournal) { j.afterApply = func(*journalpb.Append) error { return errRejected } })
		n.wantCompletion(nil, o.last(), "granted", nil)
		n.wantOutput("c", "granted")
	})
}
