package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// startedWith is started with a retry policy.
func startedWith(name string, policy *journalpb.RetryPolicy) *journalpb.Event {
	event := started(name, "in")
	event.GetOrchestrationStarted().Retry = policy
	return event
}

func TestRunRetry_SuccessorKeepsInstanceFields(t *testing.T) {
	policy := &journalpb.RetryPolicy{InitialInterval: int64(time.Minute), Backoff: 3, MaxInterval: int64(time.Hour), MaxAttempts: 4, NonRetryableCodes: []string{"other"}}
	forEachMode(t, registryOf(t, program("script", func(ctx *replay.Context, _ string) (string, error) {
		if _, err := tick.Wait(ctx); err != nil {
			return "", err
		}
		return "", replay.WithCode("test.wrong", fmt.Errorf("attempt %d is wrong", ctx.Attempt()))
	}, replay.Version("7"))), func(t *testing.T, in *instance) {
		start := withVersion(startedWith("script", policy), "7")
		first := start.GetOrchestrationStarted()
		first.Parent = &journalpb.OperationRef{Instance: "p", Execution: 2, EventId: 5}
		first.Tags = map[string]string{"tenant": "a"}
		first.Summary = "about it"
		first.RequestId, first.Status, first.Trace = "start-1", payloadOf("from before"), "trace"
		first.Deadline = begin.Add(1000 * time.Hour).UnixNano()
		mustTurn(t, in, start)
		mustTurn(t, in, external("spare", 1, "e1"), external("tick", 1, "e2"))
		for failed, exact := range []time.Duration{time.Minute, 3 * time.Minute, 9 * time.Minute} {
			checkReplays(t, in)
			ended := in.history[len(in.history)-1]
			got := in.successor.GetOrchestrationStarted()
			failure := &journalpb.Error{Code: "test.wrong", Message: fmt.Sprintf("attempt %d is wrong", failed+1)}
			want := &journalpb.OrchestrationStarted{
				Name: "script", Version: "7", Input: payloadOf("in"), Parent: first.Parent, Tags: first.Tags, RequestId: "start-1",
				Summary: "about it", Status: first.Status, Trace: "trace", Deadline: first.Deadline, Retry: policy, Attempt: uint32(failed + 1), LastFailure: failure,
				Inbox: []*journalpb.ExternalEvent{external("spare", 1, "e1").GetExternalEvent()},
			}
			ignored := protocmp.IgnoreFields(&journalpb.OrchestrationStarted{}, "start_at", "request_ids")
			if diff := gocmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			backoff := time.Duration(got.GetStartAt() - ended.Timestamp)
			if backoff < exact*8/10 || backoff > exact*12/10 {
				t.Errorf("backoff %v after attempt %d, want about %v", backoff, failed+1, exact)
			}
			if again := ended.GetOrchestrationContinuedAsNew(); again == nil || !errorEqual(again.Retried, failure) {
				t.Fatalf("ended with %s", engine.Describe(ended))
			}
			in = in.next()
			mustTurn(t, in)
			mustTurn(t, in, timerFired(3, time.Unix(0, got.StartAt)), external("tick", 1, ""))
		}
		wantLast(t, in, `OrchestrationFailed code="test.wrong" error="attempt 4 is wrong"`)
		checkReplays(t, in)
		in.evict()
	})
}

func errorEqual(a, b *journalpb.Error) bool {
	return a.GetCode() == b.GetCode() && a.GetMessage() == b.GetMessage()
}

// Code that has observed a cancellation and fails is not retried, nor is code that returns the
// cancellation.
func TestRunRetry_NotAfterCancellation(t *testing.T) {
	for name, failure := range map[string]func(error) error{
		"OrchestrationFailed":   func(error) error { return errors.New("another") },
		"OrchestrationCanceled": func(err error) error { return err },
	} {
		in := &instance{registry: script(t, func(ctx *replay.Context) (string, error) {
			_, err := tick.Wait(ctx)
			return "", failure(err)
		})}
		mustTurn(t, in, startedWith("script", new(journalpb.RetryPolicy)))
		mustTurn(t, in, cancelRequested("", ""))
		if got := in.history[len(in.history)-1].Type(); got != name {
			t.Errorf("ended with %s, want %s", got, name)
		}
		checkReplays(t, in)
		in.evict()
	}
}

// A failing clean-up is a failure like any other, also if the body continues as new.
func TestRunRetry_AfterFailedCleanUp(t *testing.T) {
	script := replay.Orchestration[string, string]("script")
	in := &instance{registry: registryOf(t, script.Bind(func(ctx *replay.Context, _ string) (string, error) {
		ctx.OnClose(func(*replay.Context, error) error { return errors.New("clean-up") })
		return "", errors.New("body")
	}))}
	defer in.evict()
	mustTurn(t, in, startedWith("script", new(journalpb.RetryPolicy)))
	wantLast(t, in, `OrchestrationContinuedAsNew input="in" retried="body\nclean-up"`)
	checkReplays(t, in)
}

// The deadline of the run cancels an attempt that has not begun.
func TestRunRetry_DeadlineWhileWaiting(t *testing.T) {
	in := &instance{registry: script(t, func(*replay.Context) (string, error) { return "", errors.New("failed") })}
	start := startedUntil("script")
	start.GetOrchestrationStarted().Retry = &journalpb.RetryPolicy{InitialInterval: int64(2 * time.Hour)}
	mustTurn(t, in, start)
	in = in.next()
	defer in.evict()
	mustTurn(t, in)
	mustTurn(t, in, timerFired(2, begin.Add(time.Hour)))
	want := "OrchestrationStarted TimerCreated TimerCreated TimerFired CancelRequested OrchestrationCanceled"
	if got := eventTypes(in.history); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	checkReplays(t, in)
}

// What a history has about a failure is used: whether it was retried is not compared. With strict a
// recorded retry is compared, but a recorded failure may replace a retry that was too large. Its
// text is compared.
func TestRunRetry_RecordedDecisionWins(t *testing.T) {
	retried := &journalpb.Event{EventId: 2, Timestamp: begin.UnixNano(), Body: &journalpb.Event_OrchestrationContinuedAsNew{
		OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{Input: payloadOf("in"), Retried: &journalpb.Error{Message: "failed"}},
	}}
	failed := &journalpb.Event{EventId: 2, Timestamp: begin.UnixNano(), Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: &journalpb.Error{Message: "failed"}},
	}}
	continued := &journalpb.Event{EventId: 2, Timestamp: begin.UnixNano(), Body: &journalpb.Event_OrchestrationContinuedAsNew{
		OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{Input: payloadOf("in")},
	}}
	fails := func(text string) func(*replay.Context, string) (string, error) {
		return func(*replay.Context, string) (string, error) { return "", errors.New(text) }
	}
	for name, c := range map[string]struct {
		end     *journalpb.Event
		policy  *journalpb.RetryPolicy
		text    string
		strict  bool
		matches bool
	}{
		"retried, retries":            {retried, new(journalpb.RetryPolicy), "failed", true, true},
		"retried, would fail":         {retried, &journalpb.RetryPolicy{MaxAttempts: 1}, "failed", false, true},
		"retried, would fail, strict": {retried, &journalpb.RetryPolicy{MaxAttempts: 1}, "failed", true, false},
		"failed, would retry":         {failed, new(journalpb.RetryPolicy), "failed", false, true},
		"failed, would retry, strict": {failed, new(journalpb.RetryPolicy), "failed", true, true},
		"failed, other text, strict":  {failed, new(journalpb.RetryPolicy), "else", true, false},
		"failed, another text":        {failed, new(journalpb.RetryPolicy), "else", false, false},
		"retried, another text":       {retried, new(journalpb.RetryPolicy), "else", false, false},
		"continued, would retry":      {continued, new(journalpb.RetryPolicy), "failed", false, false},
	} {
		registry := registryOf(t, program("script", fails(c.text))).WithStrict(c.strict)
		start := startedWith("script", c.policy)
		start.EventId, start.Timestamp = 1, begin.UnixNano()
		x := engine.NewExecution("i", 1, registry, nil)
		err := x.Replay(eventSeq([]*journalpb.Event{start, c.end}))
		if matches := err == nil; matches != c.matches {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (x.Successor() != nil) != (c.end == retried) {
			t.Errorf("%s: continues as %v", name, x.Successor())
		}
		x.Evict()
	}
}

// A child's recorded policy is used; with strict a policy that differs in meaning is a mismatch.
func TestRunRetry_PolicyOfChildOnReplay(t *testing.T) {
	history := func(policy *journalpb.RetryPolicy) []*journalpb.Event {
		return []*journalpb.Event{started("script", nil), {Body: &journalpb.Event_SubOrchestrationScheduled{
			SubOrchestrationScheduled: &journalpb.SubOrchestrationScheduled{Name: "child", Instance: "i::1.2", Input: payloadOf("x"), Retry: policy},
		}}}
	}
	explicit := &journalpb.RetryPolicy{InitialInterval: int64(time.Second), Backoff: 2, MaxInterval: int64(100 * time.Second)}
	for name, c := range map[string]struct {
		recorded *journalpb.RetryPolicy
		options  []replay.Option
		same     bool
	}{
		"none":             {nil, nil, true},
		"removed":          {explicit, nil, false},
		"added":            {nil, []replay.Option{replay.Retry(replay.RetryPolicy{})}, false},
		"explicit default": {explicit, []replay.Option{replay.Retry(replay.RetryPolicy{})}, true},
		"another":          {explicit, []replay.Option{replay.Retry(replay.RetryPolicy{MaxAttempts: 1})}, false},
	} {
		for _, strict := range []bool{false, true} {
			registry := script(t, func(ctx *replay.Context) (string, error) { return child.Call(ctx, "x", c.options...) }).WithStrict(strict)
			events := history(c.recorded)
			for i, event := range events {
				event.EventId, event.Timestamp = uint64(i+1), begin.UnixNano()
			}
			x := engine.NewExecution("i", 1, registry, nil)
			err := x.Replay(eventSeq(events))
			if (err == nil) != (c.same || !strict) {
				t.Errorf("%s, strict %t: %v", name, strict, err)
			}
			x.Evict()
		}
	}
}

func TestRunRetry_RejectsInvalidPolicies(t *testing.T) {
	for want, codes := range map[string][]string{
		"has 101 codes: at most 100 are allowed":           make([]string, 101),
		`has the code "" of 0 bytes: 1 to 128 are allowed`: {""},
		`has the code "\xff", which is not UTF-8`:          {"\xff"},
		`" of 129 bytes: 1 to 128 are allowed`:             {strings.Repeat("x", 129)},
	} {
		policy := replay.RetryPolicy{NonRetryableCodes: codes}
		check := func(err error) {
			t.Helper()
			var invalid *replay.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "option Retry" || !strings.Contains(invalid.Reason, want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
		check(engine.CheckRetry(&journalpb.RetryPolicy{NonRetryableCodes: codes}))
		_, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
			_, err := child.Call(ctx, "x", replay.Retry(policy))
			check(err)
			return "", nil
		}))
		if len(turn.Events) != 2 {
			t.Errorf("scheduled %v", turn.Events)
		}
	}
}

func TestSummary_RecordedAndKept(t *testing.T) {
	script := replay.Orchestration[string, string]("script")
	in := &instance{registry: registryOf(t, script.Bind(func(ctx *replay.Context, _ string) (string, error) {
		child.Start(ctx, "x", replay.Summary("a child"))
		if err := child.Chain(ctx, "y", replay.Summary("chained")); err != nil {
			return "", err
		}
		n, err := tick.Wait(ctx)
		if err == nil && n == 0 {
			err = errors.New("failed")
		}
		return "", cmp.Or(err, script.ContinueAsNew(ctx, "again"))
	}))}
	start := startedWith("script", new(journalpb.RetryPolicy))
	start.GetOrchestrationStarted().Summary = "ünique"
	mustTurn(t, in, start)
	for i, want := range []string{"", `SubOrchestrationScheduled name="child" instance="i::1.2" input="x" summary="a child"`,
		`OrchestrationChained name="child" instance="i::1.3" input="y" summary="chained"`} {
		if got := engine.Describe(in.history[i]); got != want && want != "" {
			t.Errorf("recorded %s, want %s", got, want)
		}
	}
	for _, n := range []int{0, 1} {
		mustTurn(t, in, external("tick", n, ""))
		if got := in.successor.GetOrchestrationStarted().GetSummary(); got != "ünique" {
			t.Errorf("after %d the next execution has the summary %q", n, got)
		}
		checkReplays(t, in)
		in = in.next()
		mustTurn(t, in)
		if n == 0 {
			mustTurn(t, in, timerFired(2, time.Unix(0, in.history[0].GetOrchestrationStarted().StartAt)))
		}
	}
	in.evict()
}

// The recorded summaries of children and chained instances are used; strict compares them.
func TestSummary_OnReplay(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for _, chained := range []bool{false, true} {
			registry := func(summary string) *engine.Registry {
				return script(t, func(ctx *replay.Context) (string, error) {
					if chained {
						return "", child.Chain(ctx, "x", replay.Summary(summary))
					}
					return child.Call(ctx, "x", replay.Summary(summary))
				}).WithStrict(strict)
			}
			_, turn := startScript(t, registry("one"))
			for _, summary := range []string{"one", "another", ""} {
				x := engine.NewExecution("i", 1, registry(summary), nil)
				err := x.Replay(eventSeq(turn.Events))
				if differs := summary != "one" && strict; (err != nil) != differs {
					t.Errorf("%q, chained %t, strict %t: %v", summary, chained, strict, err)
				}
				x.Evict()
			}
		}
	}
}

func TestSummary_RejectsInvalid(t *testing.T) {
	if err := engine.CheckSummary(strings.Repeat("ü", 100)); err != nil {
		t.Errorf("200 bytes: %v", err)
	}
	for want, text := range map[string]string{
		"has 201 bytes: at most 200 are allowed": strings.Repeat("x", 201),
		"is not UTF-8":                           "\xff",
		"has control characters":                 "two\nlines",
	} {
		check := func(err error) {
			t.Helper()
			var invalid *replay.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "option Summary" || !strings.Contains(invalid.Reason, want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
		check(engine.CheckSummary(text))
		_, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
			_, err := child.Call(ctx, "x", replay.Summary(text))
			check(err)
			check(child.Chain(ctx, "x", replay.Summary(text)))
			return "", nil
		}))
		if len(turn.Events) != 2 {
			t.Errorf("scheduled %v", turn.Events)
		}
	}
}
