package replaytest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var (
	tenant   = replay.Header("tenant")
	user     = replay.Header("user")
	billing  = replay.Activity[string, string]("billing")
	shipment = replay.Orchestration[int, string]("shipment")
	audit    = replay.Orchestration[string, string]("audit")
	noted    = replay.Event[string]("noted")
	rename   = replay.Update[string, string]("rename")
)

// headersOf describes the two headers, as orchestration code or a future sees them.
func headersOf(value func(replay.HeaderKey) (string, bool)) string {
	var all []string
	for _, key := range []replay.HeaderKey{tenant, user} {
		if text, ok := value(key); ok {
			all = append(all, key.Name()+"="+text)
		}
	}
	return strings.Join(all, ",")
}

func ofRun(ctx *replay.Context) string {
	return headersOf(func(key replay.HeaderKey) (string, bool) { return key.Value(ctx) })
}

// billingBody returns the headers in the context of its second attempt.
func billingBody(ctx context.Context, of string) (string, error) {
	if replay.ActivityInfo(ctx).Number == 1 {
		return "", errors.New("once")
	}
	return of + ":" + headersOf(func(key replay.HeaderKey) (string, bool) { return key.From(ctx) }), nil
}

// shipmentBody descends depth generations, continues as new once in each, and returns what each has
// seen.
func shipmentBody(ctx *replay.Context, depth int) (string, error) {
	if ctx.Execution() == 1 {
		return "", shipment.ContinueAsNew(ctx, depth)
	}
	billed, err := billing.Call(ctx, ctx.Name())
	if err != nil {
		return "", err
	}
	seen := ofRun(ctx) + " " + billed
	if depth == 0 {
		return seen, noted.SendTo(ctx, "audit", "from "+ctx.InstanceID())
	}
	if err := audit.Chain(ctx, "chained", replay.ChildID("chained")); err != nil {
		return "", err
	}
	child, err := shipment.Call(ctx, depth-1, replay.ChildID(fmt.Sprintf("child-%d", depth)))
	return seen + "; " + child, err
}

// auditBody waits for an event, or returns at once.
func auditBody(ctx *replay.Context, in string) (string, error) {
	if in != "" {
		return in + " " + ofRun(ctx), nil
	}
	renamed := ""
	err := rename.Handle(ctx, nil, func(ctx *replay.Context, name string) (string, error) {
		billed, err := billing.Call(replay.WithoutCancel(ctx), "update")
		renamed = name
		return ofRun(ctx) + " " + billed, err
	})
	if err != nil {
		return "", err
	}
	event := noted.Subscribe(ctx)
	if _, ok := event.Header(tenant); ok {
		return "", errors.New("a header of an event that has not arrived")
	}
	text, err := event.Await(ctx)
	return fmt.Sprintf("%s, renamed to %q, event %q of %s", ofRun(ctx), renamed, text, headersOf(event.Header)), err
}

func newShipment(t *testing.T) *replaytest.Env {
	return replaytest.New(t, shipment.Bind(shipmentBody), audit.Bind(auditBody), billing.Bind(billingBody))
}

func TestHeaders_ReachCalls(t *testing.T) {
	env := newShipment(t)
	acme := user.With(tenant.With(t.Context(), "acme"), "ann")
	audited, err := replaytest.StartRun(env, audit, "audit", "", replaytest.Headers(tenant.With(t.Context(), "auditor")))
	if err != nil {
		t.Fatal(err)
	}
	seen, err := replaytest.Call(env, shipment, "s", 2, replaytest.Headers(acme))
	of := "tenant=acme,user=ann"
	want := strings.Repeat("; "+of+" shipment:"+of, 3)[2:]
	if err != nil || seen != want {
		t.Errorf("%q, %v; want %q", seen, err, want)
	}
	if got, err := audited.Wait(); err != nil || got != `tenant=auditor, renamed to "", event "from child-1" of `+of {
		t.Errorf("receiver of an event: %q, %v", got, err)
	}
	chained := env.History("chained").Events
	if last := chained[len(chained)-1]; !strings.Contains(last.String(), "chained "+of) {
		t.Errorf("chained start: %v", last)
	}
	if first := env.History("s").Events[0].String(); !strings.Contains(first, `headers={tenant="acme" user="ann"}`) {
		t.Errorf("first event: %s", first)
	}
}

func TestHeaders_OfEventsAndUpdates(t *testing.T) {
	env := newShipment(t)
	run, err := replaytest.StartRun(env, audit, "a", "", replaytest.Headers(user.With(tenant.With(t.Context(), "acme"), "ann")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ctx  context.Context
		want string
	}{
		{t.Context(), "tenant=acme,user=ann"},
		{user.With(t.Context(), "bob"), "tenant=acme,user=bob"},
	} {
		got, err := replaytest.CallUpdate(env, "a", rename, "x", replaytest.Headers(c.ctx))
		if want := c.want + " update:" + c.want; err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if err := replaytest.Send(env, "a", noted, "x", replaytest.Headers(user.With(t.Context(), "eve"))); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(); err != nil || got != `tenant=acme,user=ann, renamed to "x", event "x" of user=eve` {
		t.Errorf("%q, %v", got, err)
	}
	started, err := replaytest.SendOrStart(env, audit, "b", "", noted, "y", replaytest.Headers(tenant.With(t.Context(), "acme")))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := started.Wait(); err != nil || got != `tenant=acme, renamed to "", event "y" of tenant=acme` {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHeaders_Bounds(t *testing.T) {
	env := newShipment(t)
	many := func(n int, prefix, value string) context.Context {
		ctx := t.Context()
		for i := range n {
			ctx = replay.Header(fmt.Sprintf("%s%d", prefix, i)).With(ctx, value)
		}
		return ctx
	}
	for field, c := range map[string]struct {
		ctx    context.Context
		reason string
	}{
		"name of a header":  {replay.Header("Tenant").With(t.Context(), "x"), `is "Tenant": 1 to 128 of a-z 0-9 . _ - are allowed`},
		"name of a header ": {replay.Header("").With(t.Context(), "x"), `is "": 1 to 128 of a-z 0-9 . _ - are allowed`},
		`header "tenant"`:   {tenant.With(t.Context(), strings.Repeat("x", 1025)), "has 1025 bytes: at most 1024 are allowed"},
		`header "tenant" `:  {tenant.With(t.Context(), "\xff"), "is not UTF-8"},
		"headers":           {many(33, "h", "x"), "are 33: at most 32 are allowed"},
		"headers ":          {many(9, "h", strings.Repeat("x", 1000)), "have 9018 bytes together: at most 8192 are allowed"},
	} {
		_, start := replaytest.StartRun(env, audit, "x", "", replaytest.Headers(c.ctx))
		send := replaytest.Send(env, "x", noted, "", replaytest.Headers(c.ctx))
		_, update := replaytest.CallUpdate(env, "x", rename, "", replaytest.Headers(c.ctx))
		for _, err := range []error{start, send, update} {
			var invalid *replay.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != strings.TrimSpace(field) || invalid.Reason != c.reason {
				t.Errorf("%v; want %s %s", err, field, c.reason)
			}
		}
	}
	if _, err := env.Get("x"); !errors.Is(err, replaytest.ErrNotFound) {
		t.Errorf("a rejected start had an effect: %v", err)
	}
	if _, err := replaytest.StartRun(env, audit, "x", "", replaytest.Headers(many(32, "h", ""))); err != nil {
		t.Fatal(err)
	}
	var failure *replay.Error
	if _, err := replaytest.CallUpdate(env, "x", rename, "", replaytest.Headers(many(1, "u", ""))); !errors.As(err, &failure) || !strings.Contains(err.Error(), "headers are 33") {
		t.Errorf("an update with more headers than calls may carry: %v", err)
	}
	if _, err := replaytest.CallUpdate(env, "x", rename, "", replaytest.Headers(many(32, "h", "new"))); err != nil {
		t.Errorf("an update that replaces headers: %v", err)
	}
}

// A callLog is a slog.Handler that keeps the messages with their tenant.
type callLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *callLog) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func TestInterceptors_LogWithTenant(t *testing.T) {
	env := newShipment(t)
	var live, attempts callLog
	replays := 0
	env.OrchestrationInterceptors = []replay.OrchestrationInterceptor{func(ctx *replay.Context, next func(*replay.Context) error) error {
		of, _ := tenant.Value(ctx)
		if ctx.Replaying() {
			replays++
		}
		log := func(what string, err error) {
			if ctx.Log().Enabled(context.Background(), slog.LevelInfo) { // silent on replay
				live.add("%s %s/%d of %s: %v", what, ctx.Name(), ctx.Execution(), of, err)
			}
		}
		log("begin", nil)
		err := next(ctx)
		log("end", err)
		return err
	}}
	env.ActivityInterceptors = []replay.ActivityInterceptor{func(ctx context.Context, next func(context.Context) error) error {
		of, _ := tenant.From(ctx)
		attempt := replay.ActivityInfo(ctx)
		err := next(user.With(ctx, "from interceptor"))
		attempts.add("%s %d of %s: %v", attempt.Name, attempt.Number, of, err)
		return err
	}}
	if _, err := replaytest.StartRun(env, audit, "audit", ""); err != nil {
		t.Fatal(err)
	}
	live.lines = nil
	seen, err := replaytest.Call(env, shipment, "s", 0, replaytest.Headers(tenant.With(t.Context(), "acme")))
	if err != nil || seen != "tenant=acme shipment:tenant=acme,user=from interceptor" {
		t.Errorf("%q, %v", seen, err)
	}
	const continued = "tenuto: continue as new, which the orchestration must return"
	want := []string{
		"begin shipment/1 of acme: <nil>", "end shipment/1 of acme: " + continued,
		"begin shipment/2 of acme: <nil>", "end shipment/2 of acme: <nil>", "end audit/1 of : <nil>",
	}
	slices.Sort(live.lines)
	slices.Sort(want)
	if !slices.Equal(live.lines, want) {
		t.Errorf("orchestrations logged %q, want %q", live.lines, want)
	}
	if want := []string{"billing 1 of acme: once", "billing 2 of acme: <nil>"}; !slices.Equal(attempts.lines, want) {
		t.Errorf("attempts logged %q, want %q", attempts.lines, want)
	}
	if replays == 0 {
		t.Error("no interceptor ran on replay")
	}
}

// Interceptors are code of the orchestration: their durable calls are recorded in order, and what
// they return is what the body has returned.
func TestInterceptors_NestAndReplaceOutcomes(t *testing.T) {
	denied := replay.NewError("test.denied", "denied")
	env := replaytest.New(t, audit.Bind(func(ctx *replay.Context, in string) (string, error) {
		if in == "fail" {
			return "", errors.New("failed")
		}
		if in == "panic" {
			panic("of the body")
		}
		return in, ctx.Sleep(time.Minute)
	}))
	pass := func(ctx *replay.Context, next func(*replay.Context) error) error {
		if err := ctx.Sleep(time.Second); err != nil {
			return err
		}
		inner, cancel := replay.WithTimeout(ctx, time.Hour)
		defer cancel()
		return next(inner)
	}
	decide := func(ctx *replay.Context, next func(*replay.Context) error) (result error) {
		switch ctx.InstanceID() {
		case "denied":
			return denied
		case "silent":
			return nil
		case "swallowed":
			_ = next(ctx)
			return nil
		case "replaced":
			return errors.Join(denied, next(ctx))
		case "twice":
			return errors.Join(next(ctx), next(ctx))
		case "coroutine":
			_, err := replay.Go(ctx, func(ctx *replay.Context) (int, error) { return 0, next(ctx) }).Await(ctx)
			return err
		case "recovered":
			defer func() { _ = recover() }()
		case "panics":
			panic("of the interceptor")
		}
		return next(ctx)
	}
	env.OrchestrationInterceptors = []replay.OrchestrationInterceptor{pass, decide}
	for id, c := range map[string]struct{ in, text string }{
		"completed": {"ok", ""},
		"failed":    {"fail", "failed"},
		"denied":    {"ok", "denied"},
		"silent":    {"ok", "tenuto: interceptor 2 returned nil without a call of next"},
		"swallowed": {"fail", "tenuto: interceptor 2 returned nil after next failed: failed"},
		"replaced":  {"fail", "denied\nfailed"},
		"twice":     {"ok", "tenuto: interceptor 2 has called next twice, or after it returned"},
		"coroutine": {"ok", "tenuto: interceptor 2 has called next on another goroutine"},
		"recovered": {"panic", "tenuto: interceptor 2 returned nil after a panic in next"},
		"panics":    {"ok", "panic: of the interceptor"},
		"crashed":   {"panic", "panic: of the body"},
	} {
		got, err := replaytest.Call(env, audit, id, c.in)
		var ended *replaytest.RunError
		switch {
		case c.text == "" && (err != nil || got != c.in):
			t.Errorf("%s: %q, %v", id, got, err)
		case c.text != "" && (!errors.As(err, &ended) || ended.Err.Error() != c.text):
			t.Errorf("%s: %v; want %q", id, err, c.text)
		}
		if wantDenied := id == "denied" || id == "replaced"; errors.Is(err, denied) != wantDenied {
			t.Errorf("%s: %v; is denied: %t", id, err, !wantDenied)
		}
	}
}

func TestInterceptors_OfAttempts(t *testing.T) {
	denied := replay.NewError("test.denied", "denied")
	bodies := 0
	env := replaytest.New(t, audit.Bind(func(ctx *replay.Context, in string) (string, error) {
		return billing.Call(ctx, in, replay.Retry(replay.RetryPolicy{MaxAttempts: 1}))
	}))
	replaytest.Stub(env, billing, func(_ context.Context, in string) (string, error) {
		bodies++
		if in == "pending" {
			return "", replay.ErrResultPending
		}
		return in, nil
	})
	var token string
	env.ActivityInterceptors = []replay.ActivityInterceptor{func(ctx context.Context, next func(context.Context) error) error {
		attempt := replay.ActivityInfo(ctx)
		switch attempt.Instance {
		case "denied":
			return replay.NonRetryable(denied)
		case "silent":
			return nil
		case "panics":
			panic("of the interceptor")
		case "goroutine":
			done := make(chan error)
			go func() { done <- next(ctx) }()
			return <-done
		case "pending":
			token = attempt.Token()
			return fmt.Errorf("wrapped: %w", next(ctx))
		}
		return next(ctx)
	}}
	for id, text := range map[string]string{
		"denied":    "denied",
		"silent":    "tenuto: interceptor 1 returned nil without a call of next",
		"panics":    "panic: of the interceptor",
		"goroutine": "tenuto: interceptor 1 has called next on another goroutine",
	} {
		var failed *replay.ActivityError
		if _, err := replaytest.Call(env, audit, id, "x"); !errors.As(err, &failed) || failed.Err.Error() != text {
			t.Errorf("%s: %v; want %q", id, err, text)
		}
	}
	if bodies != 0 {
		t.Errorf("%d bodies ran", bodies)
	}
	run, err := replaytest.StartRun(env, audit, "pending", "pending")
	if err != nil {
		t.Fatal(err)
	}
	if err := replaytest.CompleteActivity(env, token, "from outside"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(); err != nil || got != "from outside" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := replaytest.Call(env, audit, "completed", "x"); err != nil || got != "x" {
		t.Errorf("%q, %v", got, err)
	}
}
