package cluster

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// newSpanRecorder returns a provider and the spans that it has recorded.
func newSpanRecorder(t *testing.T) (spans func() tracetest.SpanStubs, provider trace.TracerProvider) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	return exporter.GetSpans, sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithIDGenerator(SpanIDs{}))
}

// spansNamed returns the spans with that name.
func spansNamed(spans tracetest.SpanStubs, name string) (found tracetest.SpanStubs) {
	for _, span := range spans {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

func attributeOf(span tracetest.SpanStub, key attribute.Key) attribute.Value {
	for _, pair := range span.Attributes {
		if pair.Key == key {
			return pair.Value
		}
	}
	return attribute.Value{}
}

func onlySpan(t *testing.T, spans tracetest.SpanStubs, name string) tracetest.SpanStub {
	t.Helper()
	found := spansNamed(spans, name)
	if len(found) != 1 {
		t.Fatalf("%d spans %q, want 1 of %v", len(found), name, spanNames(spans))
	}
	return found[0]
}

func spanNames(spans tracetest.SpanStubs) (all []string) {
	for _, span := range spans {
		all = append(all, span.Name)
	}
	return all
}

var (
	innerOrchestration = replay.Orchestration[int, int]("inner")
	outerOrchestration = replay.Orchestration[int, int]("outer")
)

// nestedDefinitions are an orchestration with a child that calls double.
func nestedDefinitions(body func(context.Context, int) (int, error)) []replay.Definition {
	return []replay.Definition{
		double.Bind(body),
		innerOrchestration.Bind(func(ctx *replay.Context, n int) (int, error) { return double.Call(ctx, n) }),
		outerOrchestration.Bind(func(ctx *replay.Context, n int) (int, error) { return innerOrchestration.Call(ctx, n) }),
	}
}

func TestTrace_SpansNestIntoActivity(t *testing.T) {
	spans, provider := newSpanRecorder(t)
	tracer := provider.Tracer("application")
	node := startNode(t, Config{InMemory: true, TracerProvider: provider, Definitions: nestedDefinitions(
		func(ctx context.Context, n int) (int, error) {
			_, span := tracer.Start(ctx, "query")
			defer span.End()
			return 2 * n, nil
		})})
	ctx, request := tracer.Start(testContext(t), "request")
	if _, err := Call(ctx, node.Client(), outerOrchestration, "order-17", 1); err != nil {
		t.Fatal(err)
	}
	request.End()
	eventually(t, "all spans have ended", func() bool { return len(spans()) == 6 })
	all, parent := spans(), request.SpanContext()
	for _, name := range []string{"start outer", "orchestration outer", "orchestration inner", "activity double", "query"} {
		span := onlySpan(t, all, name)
		if span.Parent.SpanID() != parent.SpanID() || span.SpanContext.TraceID() != parent.TraceID() {
			t.Errorf("%s is not a child of the span before it, but of %v", name, span.Parent.SpanID())
		}
		parent = span.SpanContext
	}
	run := onlySpan(t, all, "orchestration outer")
	if attributeOf(run, "tenuto.instance").AsString() != "order-17" || attributeOf(run, "tenuto.outcome").AsString() != "completed" {
		t.Errorf("attributes of the run: %v", run.Attributes)
	}
	// The run has cluster times, which differ from those of the node's clock.
	if attempt := onlySpan(t, all, "activity double"); attempt.StartTime.Before(run.StartTime.Add(-time.Minute)) ||
		run.EndTime.Add(time.Minute).Before(attempt.EndTime) {
		t.Errorf("the attempt is not within its run: %v to %v, %v to %v", attempt.StartTime, attempt.EndTime, run.StartTime, run.EndTime)
	}
}

// A body that ignores its cancellation for longer than its grace ends its span as abandoned.
func TestTrace_AbandonedBodyEndsSpan(t *testing.T) {
	spans, provider := newSpanRecorder(t)
	tracer, release := provider.Tracer("application"), make(chan struct{})
	node := startNode(t, Config{InMemory: true, TracerProvider: provider, Definitions: []replay.Definition{
		double.Bind(func(context.Context, int) (int, error) { <-release; return 0, nil }),
		outerOrchestration.Bind(func(ctx *replay.Context, n int) (int, error) {
			return double.Call(ctx, n, replay.StartToClose(20*time.Millisecond), replay.CancelGrace(20*time.Millisecond),
				replay.Retry(replay.RetryPolicy{MaxAttempts: 1}))
		}),
	}})
	defer close(release)
	ctx, request := tracer.Start(testContext(t), "request")
	defer request.End()
	if _, err := Call(ctx, node.Client(), outerOrchestration, "order-17", 1); err == nil {
		t.Fatal("the activity has not timed out")
	}
	eventually(t, "the span has ended", func() bool {
		return slices.ContainsFunc(spans(), func(s tracetest.SpanStub) bool {
			return s.Name == "activity double" && attributeOf(s, "tenuto.outcome").AsString() == "abandoned"
		})
	})
}

func TestTrace_NodeLossDoesNotRepeatSpans(t *testing.T) {
	spans, provider := newSpanRecorder(t)
	config := Config{Dir: t.TempDir(), TracerProvider: provider, ResidentMax: 1, Definitions: append(definitions(),
		outerOrchestration.Bind(func(ctx *replay.Context, n int) (int, error) {
			n, err := double.Call(ctx, n)
			if err != nil {
				return 0, err
			}
			if _, err := word.Wait(ctx); err != nil {
				return 0, err
			}
			return double.Call(ctx, n)
		}))}
	ctx := testContext(t)
	node := startNode(t, config)
	if _, err := StartRun(ctx, node.Client(), outerOrchestration, "a", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the first attempt is recorded", func() bool {
		history, err := node.Client().History(ctx, "a")
		return err == nil && len(history.Events) == 4 && len(spansNamed(spans(), "activity double")) == 1
	})
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, config)
	if err := Send(ctx, node.Client(), "a", word, "go"); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Client().Wait(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run has ended", func() bool { return len(spansNamed(spans(), "orchestration outer")) == 1 })
	all := spans()
	run, attempts := onlySpan(t, all, "orchestration outer"), spansNamed(all, "activity double")
	if len(attempts) != 2 {
		t.Fatalf("got %v", spanNames(all))
	}
	for _, attempt := range attempts {
		if attempt.Parent.SpanID() != run.SpanContext.SpanID() {
			t.Errorf("an attempt is no child of its run")
		}
	}
}

func TestTrace_AttemptOnOtherNodeIsInTrace(t *testing.T) {
	spans, provider := newSpanRecorder(t)
	peers := loopbackPeers(t, 2)
	// With one slot on each node, two activities that wait for each other run on both nodes.
	var begun atomic.Int64
	met := make(chan struct{})
	meet := func(ctx context.Context, n int) (int, error) {
		if begun.Add(1) == 2 { // an attempt may begin again when the leader changes
			close(met)
		}
		select {
		case <-met:
			return n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	var nodes []*Node
	for i := range peers {
		config := peerConfig(t, peers, i, nestedDefinitions(meet)...)
		config.TracerProvider, config.ActivitiesMax = provider, 1
		nodes = append(nodes, startNode(t, config))
	}
	for _, node := range nodes {
		eventually(t, "every node is ready", func() bool { return node.Health().Ready() == nil })
	}
	ctx := testContext(t)
	for _, id := range []string{"a", "b"} {
		if _, err := StartRun(ctx, nodes[0].Client(), outerOrchestration, id, 1); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both have ended", func() bool { return len(spansNamed(spans(), "orchestration outer")) == 2 })
	runs := make(map[trace.SpanID]bool)
	for _, run := range spansNamed(spans(), "orchestration inner") {
		runs[run.SpanContext.SpanID()] = true
	}
	where := make(map[string]bool)
	for _, attempt := range spansNamed(spans(), "activity double") {
		if !runs[attempt.Parent.SpanID()] {
			t.Error("an attempt is no child of its run")
		}
		where[attributeOf(attempt, "tenuto.node").AsString()] = true
	}
	if len(where) != 2 {
		t.Errorf("attempts were on %v, want both nodes", where)
	}
}

func TestTrace_OtherIDGeneratorKeepsParents(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	node := startNode(t, Config{InMemory: true, TracerProvider: provider, Definitions: nestedDefinitions(doubleBody)})
	if _, err := Call(testContext(t), node.Client(), outerOrchestration, "a", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all spans have ended", func() bool { return len(exporter.GetSpans()) == 4 })
	start := onlySpan(t, exporter.GetSpans(), "start outer")
	for _, name := range []string{"orchestration outer", "orchestration inner", "activity double"} {
		if span := onlySpan(t, exporter.GetSpans(), name); span.Parent.SpanID() != start.SpanContext.SpanID() {
			t.Errorf("%s is not a child of the start", name)
		}
	}
}

func TestTrace_NoProviderPropagatesCallerSpan(t *testing.T) {
	_, provider := newSpanRecorder(t)
	node := startNode(t, Config{InMemory: true, Definitions: nestedDefinitions(doubleBody)})
	if node.tracing != nil {
		t.Fatal("tracing is on")
	}
	ctx, request := provider.Tracer("application").Start(testContext(t), "request")
	defer request.End()
	for id, ctx := range map[string]context.Context{"traced": ctx, "untraced": testContext(t)} {
		if _, err := Call(ctx, node.Client(), outerOrchestration, id, 1); err != nil {
			t.Fatal(err)
		}
		history, err := node.Client().History(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if id == "traced" {
			want = telemetry.FormatTrace(request.SpanContext())
		}
		if got := eventpb.Message(history.Events[0]).GetOrchestrationStarted().Trace; got != want {
			t.Errorf("%s: recorded %q, want %q", id, got, want)
		}
	}
}
