package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Attributes of spans only.
const (
	instanceKey  = attribute.Key("tenuto.instance")
	executionKey = attribute.Key("tenuto.execution")
	eventIDKey   = attribute.Key("tenuto.event_id")
	attemptKey   = attribute.Key("tenuto.attempt")
	versionKey   = attribute.Key("tenuto.version")
)

// SpanIDs generates span IDs for OpenTelemetry's SDK. Unlike the SDK's own generator, it derives
// the IDs of execution spans from what was recorded. So an attempt on any node knows its parent
// span before that span ends. Every node of the cluster needs it:
//
//	sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(cluster.SpanIDs{}), …)
//
// The span of an execution has the cluster time of its first and last event. The span of an attempt
// has the wall-clock time of the machine that runs it.
//
// With another generator, the spans of attempts are siblings of their execution's span: children of
// the span that started the instance.
type SpanIDs struct{}

// NewIDs implements the SDK's IDGenerator.
func (g SpanIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	for !id.IsValid() {
		for i := range id {
			id[i] = byte(rand.Uint32())
		}
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements the SDK's IDGenerator.
func (SpanIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	id, _ := ctx.Value(spanIDKey{}).(trace.SpanID)
	for !id.IsValid() {
		for i := range id {
			id[i] = byte(rand.Uint32())
		}
	}
	return id
}

// spanIDKey is the context key of the ID for the next span.
type spanIDKey struct{}

// tracing makes the spans of executions and attempts. It keeps no state for running work: the start
// is recorded with its parent span, and everything else follows from the history.
type tracing struct {
	node        string
	tracer      trace.Tracer
	usesSpanIDs bool // the provider generates IDs by SpanIDs
	readEvent   func(instance string, execution, eventID uint64) (*journalpb.Event, error)
}

// newTracing returns nil if the provider records no spans. It starts probe spans to find out
// whether the provider records spans and uses SpanIDs. Probe spans never end, so they are not
// exported.
func newTracing(n *Node, provider trace.TracerProvider) *tracing {
	t := &tracing{node: n.config.NodeID, tracer: provider.Tracer(scope)}
	t.readEvent = func(instance string, execution, eventID uint64) (*journalpb.Event, error) {
		return n.partitionOf(instance).journal.Event(instance, execution, eventID)
	}
	want, recording := trace.SpanID{7: 1}, false
	// A sampler that decides by trace ID accepts the lowest or the highest IDs: probe both.
	for _, last := range []byte{1, 0xff} {
		id := trace.TraceID{0: 1}
		for i := 8; i < len(id); i++ {
			id[i] = last &^ 1
		}
		id[15] = last
		ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: id, SpanID: trace.SpanID{7: 2}, TraceFlags: trace.FlagsSampled, Remote: true,
		}))
		_, span := t.tracer.Start(context.WithValue(ctx, spanIDKey{}, want), "probe")
		recording = recording || span.IsRecording()
		t.usesSpanIDs = span.SpanContext().SpanID() == want
	}
	if !recording {
		return nil
	}
	return t
}

// tracerOrNil returns the tracer for the actors, a nil interface if tracing is off.
func (t *tracing) tracerOrNil() actors.Tracer {
	if t == nil {
		return nil
	}
	return t
}

// TraceContext implements actors.Tracer: it returns the context of the parent span for attempts and
// children of an execution.
func (t *tracing) TraceContext(instance string, execution uint64) string {
	first, err := t.readEvent(instance, execution, 1)
	if err != nil {
		return "" // purged meanwhile
	}
	recorded := first.GetOrchestrationStarted().GetTrace()
	parent := parseTrace(recorded)
	if !parent.IsValid() || !t.usesSpanIDs {
		return recorded
	}
	return formatTrace(parent.WithSpanID(executionSpan(instance, execution, recorded)))
}

// executionSpan returns the ID of an execution's span, the same on every node.
func executionSpan(instance string, execution uint64, recorded string) (id trace.SpanID) {
	hash := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s", instance, execution, recorded))
	copy(id[:], hash[:])
	id[0] |= 1 // an ID of zero is invalid
	return id
}

// Attempt implements actors.Tracer.
func (t *tracing) Attempt(ctx context.Context, a *replay.Attempt, traceparent string) (context.Context, func(actors.AttemptOutcome)) {
	parent := parseTrace(traceparent)
	if !parent.IsValid() {
		return ctx, func(actors.AttemptOutcome) {}
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent), "activity "+a.Name, trace.WithAttributes(
		nodeKey.String(t.node), activityKey.String(a.Name), instanceKey.String(a.Instance),
		executionKey.Int64(int64(a.Execution)), eventIDKey.Int64(int64(a.EventID)), attemptKey.Int(a.Number),
	))
	return ctx, func(outcome actors.AttemptOutcome) {
		span.SetAttributes(outcomeKey.String(string(attemptOutcomes[outcome])))
		if outcome == actors.AttemptFailed {
			span.SetStatus(codes.Error, "") // error texts must not reach traces
		}
		span.End()
	}
}

// recordEnd makes the span of an execution whose end is committed. The node that has committed the
// end calls it, once.
func (t *tracing) recordEnd(instance string, execution uint64, terminal *journalpb.Event) {
	first, err := t.readEvent(instance, execution, 1)
	started := first.GetOrchestrationStarted()
	parent := parseTrace(started.GetTrace())
	if err != nil || !parent.IsValid() {
		return
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	ctx = context.WithValue(ctx, spanIDKey{}, executionSpan(instance, execution, started.Trace))
	outcome := outcomeOf(terminal)
	_, span := t.tracer.Start(ctx, "orchestration "+started.Name, trace.WithTimestamp(time.Unix(0, first.Timestamp)), trace.WithAttributes(
		nodeKey.String(t.node), orchestrationKey.String(started.Name), versionKey.String(started.Version),
		instanceKey.String(instance), executionKey.Int64(int64(execution)), outcomeKey.String(string(outcome)),
	))
	if outcome == Failed {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(time.Unix(0, terminal.Timestamp)))
}

// traceStart makes the span of a call that starts an instance and stores it in the request. Without
// a provider the request carries the span of ctx, if there is one.
func (c *Client) traceStart(ctx context.Context, id string, start *clusterpb.StartRequest) (traced context.Context, ended func(error)) {
	tracer := otel.Tracer(scope)
	if node, ok := c.transport.(*Node); ok {
		if node.tracing == nil {
			start.Trace = formatTrace(trace.SpanContextFromContext(ctx))
			return ctx, func(error) {}
		}
		tracer = node.tracing.tracer
	}
	ctx, span := tracer.Start(ctx, "start "+start.Name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		orchestrationKey.String(start.Name), instanceKey.String(id),
	))
	start.Trace = formatTrace(span.SpanContext())
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// traceMax is the length of a traceparent.
const traceMax = 55

// formatTrace returns a span context as a W3C traceparent, "" if it is invalid.
func formatTrace(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags()&trace.FlagsSampled)
}

// parseTrace returns the span context of a traceparent, an invalid one if it cannot be parsed.
func parseTrace(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
