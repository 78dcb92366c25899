package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func TestActivityOptions_Recorded(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (int, error) {
		return replay.Activity[int, int]("add").Call(ctx, 1,
			replay.ScheduleToStart(time.Second), replay.StartToClose(time.Minute), replay.ScheduleToClose(time.Hour),
			replay.HeartbeatTimeout(2*time.Second), replay.HeartbeatTimeout(3*time.Second), replay.Tag("gpu"),
			replay.Retry(replay.RetryPolicy{MaxAttempts: 2, PanicsAreFinal: true}))
	})
	_, turn := startScript(t, registry)
	got := engine.Describe(turn.Events[len(turn.Events)-1])
	want := `ActivityScheduled name="add" input=1 retry={initial=0s backoff=0 longest=0s attempts=2 never=[] panics=final}` +
		` schedule_to_start=1s start_to_close=1m0s schedule_to_close=1h0m0s heartbeat=3s tag="gpu"`
	if got != want {
		t.Errorf("recorded\n\t%s\nwant\n\t%s", got, want)
	}
}

func TestActivityOptions_RejectsInvalid(t *testing.T) {
	for name, option := range map[string]replay.Option{
		"ScheduleToStart":  replay.ScheduleToStart(-1),
		"StartToClose":     replay.StartToClose(-time.Hour),
		"ScheduleToClose":  replay.ScheduleToClose(math.MinInt64),
		"HeartbeatTimeout": replay.HeartbeatTimeout(-time.Second),
		"CancelGrace":      replay.CancelGrace(-time.Second),
		"Tag":              replay.Tag(strings.Repeat("x", 129)),
		"Retry":            replay.Retry(replay.RetryPolicy{NonRetryableCodes: []string{"\xff"}}),
	} {
		for _, tag := range []string{"", "\xff"} {
			if tag != "" && name != "Tag" {
				continue
			}
			if tag != "" {
				option = replay.Tag(tag)
			}
			_, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
				_, err := replay.Activity[int, int]("add").Call(ctx, 1, option)
				var rejected *replay.InvalidError
				if !errors.As(err, &rejected) {
					return "", err
				}
				return strings.TrimPrefix(rejected.Field, "option "), nil
			}))
			if len(turn.Events) != 2 || string(turn.Events[1].GetOrchestrationCompleted().GetOutput().GetData()) != fmt.Sprintf("%q", name) {
				t.Errorf("%s: %v", name, turn.Events)
			}
		}
	}
}

func TestTimeoutError_SurvivesJournal(t *testing.T) {
	cause := replay.NewError("test.cause", "cause")
	for _, kind := range []replay.TimeoutKind{
		replay.TimeoutScheduleToStart, replay.TimeoutStartToClose, replay.TimeoutScheduleToClose, replay.TimeoutHeartbeat,
	} {
		for _, inner := range []error{nil, cause} {
			before := fmt.Errorf("wrapped: %w", &replay.ActivityError{Name: "a", Attempts: 2, Err: &replay.TimeoutError{Kind: kind, Err: inner}})
			for _, err := range []error{before, roundTrip(t, before), roundTrip(t, roundTrip(t, before))} {
				var timeout *replay.TimeoutError
				if !errors.As(err, &timeout) || timeout.Kind != kind || !errors.Is(err, replay.ErrTimeout) ||
					errors.Is(err, replay.ErrCanceled) || errors.Is(err, cause) != (inner != nil) || err.Error() != before.Error() {
					t.Errorf("%s with %v: %v", kind, inner, err)
				}
			}
		}
	}
	// The sentinel keeps its identity.
	var timeout *replay.TimeoutError
	if errors.As(roundTrip(t, replay.ErrTimeout), &timeout) {
		t.Error("ErrTimeout was decoded as a TimeoutError")
	}
}

// NonRetryable must survive on errors of this package's types.
func TestNonRetryable_SystemErrorsSurviveJournal(t *testing.T) {
	for _, err := range []error{
		&replay.TimeoutError{Kind: replay.TimeoutHeartbeat}, &replay.CanceledError{Reason: "r"}, &replay.PanicError{Message: "m"},
		&replay.ActivityError{Name: "a"}, &replay.ChildError{Name: "c"},
	} {
		annotated := roundTrip(t, roundTrip(t, replay.NonRetryable(err)))
		if _, again := engine.RetryAfter(nil, 1, annotated, 0); again {
			t.Errorf("%T is retried", err)
		}
		if _, again := engine.RetryAfter(nil, 1, roundTrip(t, err), 0); !again {
			t.Errorf("%T is not retried without NonRetryable", err)
		}
		if annotated.Error() != err.Error() {
			t.Errorf("error text %q changed to %q", err, annotated)
		}
	}
}

func TestRetryAfter_ExtremePolicies(t *testing.T) {
	failure := errors.New("x")
	again := func(policy replay.RetryPolicy, attempt int) (time.Duration, bool) {
		return engine.RetryAfter(engine.RecordedOptions(replay.Retry(policy)), attempt, failure, 1)
	}
	if _, more := again(replay.RetryPolicy{MaxAttempts: math.MaxInt}, 1000); !more {
		t.Error("MaxAttempts of MaxInt overflows")
	}
	if delay, _ := again(replay.RetryPolicy{Backoff: math.NaN()}, 3); delay != 4800*time.Millisecond {
		t.Errorf("backoff of NaN: %v", delay)
	}
	if delay, _ := again(replay.RetryPolicy{Backoff: math.Inf(1), MaxInterval: math.MaxInt64}, 3); delay < 70*365*24*time.Hour {
		t.Errorf("backoff of infinity: %v", delay)
	}
	nonRetryable := engine.RecordedOptions(replay.Retry(replay.RetryPolicy{PanicsAreFinal: true}))
	if _, more := engine.RetryAfter(nonRetryable, 1, roundTrip(t, &replay.PanicError{Message: "m"}), 0); more {
		t.Error("a panic is retried despite PanicsAreFinal")
	}
	if _, more := engine.RetryAfter(nonRetryable, 1, failure, 0); !more {
		t.Error("an error is not retried because of PanicsAreFinal")
	}
}

// Package replay does not import the schema, so it has its own text of a key.
func TestIdempotencyKey_IsKeyOfOperation(t *testing.T) {
	for _, incarnation := range []uint64{0, 1, journalpb.NewIncarnation(3, 17), 1<<64 - 1} {
		ref := &journalpb.OperationRef{Instance: "a/b", Incarnation: incarnation, Execution: 7, EventId: 1 << 50}
		a := replay.Attempt{Instance: ref.Instance, Incarnation: incarnation, Execution: ref.Execution, EventID: ref.EventId}
		if a.IdempotencyKey() != ref.Key() {
			t.Errorf("%s, want %s", a.IdempotencyKey(), ref.Key())
		}
	}
}

func TestToken_RoundTrip(t *testing.T) {
	for _, a := range []replay.Attempt{
		{Instance: "a", Execution: 1, EventID: 2, Number: 1},
		{Instance: "a/b/7::1.2", Execution: 1 << 40, EventID: 1 << 50, Number: 1 << 20},
		{Instance: strings.Repeat("x", 128), Execution: 1, EventID: 1, Number: 1},
		{Instance: "a", Incarnation: journalpb.NewIncarnation(3, 17), Execution: 1, EventID: 2, Number: 1},
		{Instance: strings.Repeat("x", 128), Incarnation: 1<<64 - 1, Execution: 1 << 40, EventID: 1 << 50, Number: 1 << 20},
	} {
		got, err := engine.ParseToken(a.Token())
		if err != nil || got.IdempotencyKey() != a.IdempotencyKey() || got.Incarnation != a.Incarnation || got.Number != a.Number {
			t.Errorf("%s: %+v, %v", a.Token(), got, err)
		}
		if len(a.Token()) > 300 {
			t.Errorf("%d bytes", len(a.Token()))
		}
	}
	for _, text := range []string{"", "t1.", "t2.MS8yLzEvYQ", "MS8yLzEvYQ", "t1.MS8yLzEvYQ=", "t1.MS8yLzEv", "t1.MC8yLzEvYQ", "t1.LTEvMi8xL2E", "t1.eHh4", "t2.MC8xLzIvMS9h", "t2.MS8xLzIvMS8", "t1.MS8yLzEv_w"} {
		var wrong *replay.TokenError
		if got, err := engine.ParseToken(text); !errors.As(err, &wrong) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestHeartbeat_OutsideActivityIsNoOp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	if err := replay.Heartbeat(ctx, 1); err != nil {
		t.Error(err)
	}
	if details, ok := replay.HeartbeatDetails[int](ctx); ok || details != 0 {
		t.Errorf("details %d", details)
	}
	cancel(replay.ErrActivityCanceled)
	if err := replay.Heartbeat(ctx, 1); !errors.Is(err, replay.ErrActivityCanceled) {
		t.Error(err)
	}
}

func TestRetryPolicy_CodesBounded(t *testing.T) {
	for name, c := range map[string]struct {
		codes    []string
		accepted bool
	}{
		"as many and as long as may be": {slices.Repeat([]string{strings.Repeat("x", 128)}, 100), true},
		"one more":                      {slices.Repeat([]string{"x"}, 101), false},
		"one longer":                    {[]string{strings.Repeat("x", 129)}, false},
		"an empty one":                  {[]string{""}, false},
	} {
		_, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
			future := act.Start(ctx, "x", replay.Retry(replay.RetryPolicy{NonRetryableCodes: c.codes}))
			clear(c.codes) // the recorded policy must not change
			if !future.Done() {
				_, err := goOn.Wait(ctx)
				return "", err
			}
			_, err := future.Await(ctx)
			return "", err
		}))
		recorded := turn.Events[1].GetActivityScheduled().GetOptions().GetRetry().GetNonRetryableCodes()
		if accepted := len(recorded) > 0; accepted != c.accepted || accepted && recorded[0] == "" {
			t.Errorf("%s: %v", name, turn.Events[1])
		}
	}
}

// Two inputs that differ only beyond what is shown must not look equal.
func TestMismatch_EqualDescriptionsSayTheyDiffer(t *testing.T) {
	long := strings.Repeat("x", 500)
	callWith := func(input string) *engine.Registry {
		return script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, input) })
	}
	in := &instance{registry: callWith(long + "a")}
	mustTurn(t, in, started("script", nil))
	in.evict()
	x := engine.NewExecution("i", 1, callWith(long+"b"), nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(in.history)); err == nil || !strings.Contains(err.Error(), "differ in a part that is not shown") {
		t.Errorf("%v", err)
	}
}

// An option that sets a default explicitly is not a change of the code.
func TestActivityOptions_ExplicitDefaultMatches(t *testing.T) {
	written := replay.RetryPolicy{InitialInterval: time.Second, Backoff: 2, MaxInterval: 100 * time.Second}
	variants := [][]replay.Option{
		nil, {replay.StartToClose(0)}, {replay.Tag("")}, {replay.Retry(replay.RetryPolicy{})}, {replay.Retry(written)},
		{replay.Retry(replay.RetryPolicy{Backoff: 2}), replay.HeartbeatTimeout(0)},
	}
	callWith := func(options []replay.Option) *engine.Registry {
		return script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x", options...) })
	}
	for i, before := range variants {
		for j, after := range append(variants, []replay.Option{replay.Tag("gpu")}) {
			in := &instance{registry: callWith(before)}
			mustTurn(t, in, started("script", nil))
			in.evict()
			x := engine.NewExecution("i", 1, callWith(after), nil)
			if err := x.Replay(eventSeq(in.history)); (err == nil) != (j < len(variants)) {
				t.Errorf("options %d do not match options %d: %v", i, j, err)
			}
			x.Evict()
		}
	}
}

// authorOptions are the options of package replay and one of a host, by name.
func authorOptions() map[string]replay.Option {
	return map[string]replay.Option{
		"Retry":            replay.Retry(replay.RetryPolicy{MaxAttempts: 2}),
		"ScheduleToStart":  replay.ScheduleToStart(time.Second),
		"StartToClose":     replay.StartToClose(time.Second),
		"ScheduleToClose":  replay.ScheduleToClose(time.Second),
		"HeartbeatTimeout": replay.HeartbeatTimeout(time.Second),
		"CancelGrace":      replay.CancelGrace(time.Second),
		"Tag":              replay.Tag("gpu"),
		"Version":          replay.Version("2"),
		"Pinned":           replay.Pinned(),
		"Receives":         replay.Receives(tick),
		"ChildID":          replay.ChildID("chosen"),
		"OnParentClose":    replay.OnParentClose(replay.AbandonChild),
		"Summary":          replay.Summary("s"),
		"ForHosts":         engine.NewOption("ForHosts", func(*hostOptions) {}),
		"1":                {}, // not made by a function
	}
}

// hostOptions are the options of a call of a host.
type hostOptions struct{ applied int }

// wantOptionError checks that a call with one option fails if the option does not apply to it.
func wantOptionError(t *testing.T, call, option string, applies bool, err error) {
	t.Helper()
	reason := "does not apply to " + call
	if option == "1" {
		reason = "is empty: call a function that returns an option"
	}
	var invalid *replay.InvalidError
	switch rejected := errors.As(err, &invalid); {
	case rejected == applies:
		t.Errorf("%s with %s: %v; want that it applies: %t", call, option, err, applies)
	case rejected && (invalid.Field != "option "+option || invalid.Reason != reason):
		t.Errorf("%s with %s: %+v; want the reason %q", call, option, invalid, reason)
	}
}

func TestOptions_RejectedByCallsOfOtherKinds(t *testing.T) {
	for call, c := range map[string]struct {
		applicable []string
		make       func(ctx *replay.Context, option replay.Option) error
	}{
		"an activity": {
			[]string{"Retry", "ScheduleToStart", "StartToClose", "ScheduleToClose", "HeartbeatTimeout", "CancelGrace", "Tag"},
			func(ctx *replay.Context, option replay.Option) error {
				future := act.Start(ctx, "x", replay.Tag("first"), option)
				if !future.Done() {
					return nil
				}
				_, err := future.Await(ctx)
				return err
			},
		},
		"a child": {
			[]string{"Version", "ChildID", "OnParentClose", "Retry", "Summary"},
			func(ctx *replay.Context, option replay.Option) error {
				future := child.Start(ctx, "x", option)
				if !future.Done() {
					return nil
				}
				_, err := future.Await(ctx)
				return err
			},
		},
		"a chained instance": {
			[]string{"Version", "ChildID", "Summary"},
			func(ctx *replay.Context, option replay.Option) error { return child.Chain(ctx, "x", option) },
		},
		"a continue-as-new": {
			[]string{"Version"},
			func(ctx *replay.Context, option replay.Option) error {
				return replay.Orchestration[string, string]("script").ContinueAsNew(ctx, "x", option)
			},
		},
	} {
		for name, option := range authorOptions() {
			if name == "1" && call == "an activity" {
				continue // it is the second option there
			}
			applies := slices.Contains(c.applicable, name)
			_, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
				wantOptionError(t, call, name, applies, c.make(ctx, option))
				return "", nil
			}))
			if scheduled := len(turn.Events) > 2; scheduled && !applies {
				t.Errorf("%s with %s recorded %v", call, name, turn.Events)
			}
		}
	}
}

func TestBind_RejectsOptionsOfOtherCalls(t *testing.T) {
	body := func(*replay.Context, string) (string, error) { return "", nil }
	for name, option := range authorOptions() {
		_, err := engine.NewRegistry(child.Bind(body, option))
		wantOptionError(t, "Bind", name, name == "Version" || name == "Pinned" || name == "Receives", err)
	}
}

// A version of a child, a chained instance or the next execution is recorded.
func TestVersion_RecordedByEachCall(t *testing.T) {
	_, open := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		child.Start(ctx, "x", replay.Version("1"), replay.Version("2"), replay.OnParentClose(replay.AbandonChild))
		if err := child.Chain(ctx, "x", replay.Version("3"), replay.ChildID("chosen")); err != nil {
			return "", err
		}
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	_, ended := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		return "", replay.Orchestration[string, string]("script").ContinueAsNew(ctx, "x", replay.Version("4"))
	}))
	var got []string
	for _, event := range append(open.Events, ended.Events...) {
		switch {
		case event.GetSubOrchestrationScheduled() != nil:
			got = append(got, fmt.Sprint(event.GetSubOrchestrationScheduled().Version, event.GetSubOrchestrationScheduled().ClosePolicy))
		case event.GetOrchestrationChained() != nil:
			got = append(got, event.GetOrchestrationChained().Version+event.GetOrchestrationChained().Instance)
		case event.GetOrchestrationContinuedAsNew() != nil:
			got = append(got, event.GetOrchestrationContinuedAsNew().Version)
		}
	}
	if want := []string{"2" + fmt.Sprint(journalpb.ClosePolicy_CLOSE_POLICY_ABANDON), "3chosen", "4"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestApplyOptions_ForHosts(t *testing.T) {
	add := func(n int) replay.Option {
		return engine.NewOption("Add", func(o *hostOptions) { o.applied += n })
	}
	var options hostOptions
	if err := engine.ApplyOptions([]replay.Option{add(1), add(2)}, &options, "a test"); err != nil || options.applied != 3 {
		t.Errorf("applied %d, %v", options.applied, err)
	}
	for name, option := range authorOptions() {
		wantOptionError(t, "a test", name, name == "ForHosts", engine.ApplyOptions([]replay.Option{option}, new(hostOptions), "a test"))
	}
	err := engine.ApplyOptions([]replay.Option{add(1), replay.Tag("x")}, &options, "a test")
	if err == nil || err.Error() != "tenuto: option Tag does not apply to a test" {
		t.Error(err)
	}
}

// A call that is given no function names itself, does nothing and records nothing, live and on
// replay.
func TestCalls_NilFunctionNamesCall(t *testing.T) {
	want := []string{
		"tenuto: function of Go is nil", "tenuto: function of Map is nil", `tenuto: function of SideEffect "s" is nil`, "tenuto: condition is nil", "tenuto: condition is nil",
		`tenuto: OnClose with a function that is nil, in instance "i"`, `tenuto: Compensate with a function that is nil, in instance "i"`,
		`tenuto: query "q" has a nil handler`, `tenuto: update "u" has a nil handler`,
	}
	noted(t, "true", func(ctx *replay.Context, result func(...any)) error {
		var texts []string
		note := func(seen any) { texts = append(texts, fmt.Sprint(seen)) }
		isInvalid := func(err error) {
			if !errors.As(err, new(*replay.InvalidError)) {
				t.Errorf("%v is no InvalidError", err)
			}
			note(err)
		}
		panics := func(call func()) {
			defer func() { note(recover()) }()
			call()
		}
		_, err := replay.Go[int](ctx, nil).Await(ctx)
		isInvalid(err)
		_, err = replay.Map[int, int](ctx, 1, []int{1}, nil)
		isInvalid(err)
		_, err = replay.SideEffect[int](ctx, "s", nil)
		isInvalid(err)
		isInvalid(replay.Await(ctx, nil))
		isInvalid(replay.AwaitFor(ctx, time.Hour, nil))
		panics(func() { ctx.OnClose(nil) })
		panics(func() { replay.NewSaga(ctx).Compensate(ctx, nil) })
		note(replay.Query[int, int]("q").Handle(ctx, nil))
		note(replay.Update[int, int]("u").Handle(ctx, nil, nil))
		if !slices.Equal(texts, want) {
			t.Errorf("%q, want %q", texts, want)
		}
		result(slices.Equal(texts, want))
		return nil
	}, func(t *testing.T, in *instance) {
		if len(in.history) != 2 {
			t.Errorf("%d events, want the start and the end", len(in.history))
		}
	})
}
