package telemetry

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

// NewIDs generates the IDs of a new trace and its first span.
func NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	for !id.IsValid() {
		for i := range id {
			id[i] = byte(rand.Uint32())
		}
	}
	return id, NewSpanID(ctx)
}

// NewSpanID generates a span ID: the one in ctx if there is one, otherwise a random one.
func NewSpanID(ctx context.Context) trace.SpanID {
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

// Tracing makes the spans of executions and attempts. It keeps no state for running work: the start
// is recorded with its parent span, and everything else follows from the history.
type Tracing struct {
	node        string
	tracer      trace.Tracer
	usesSpanIDs bool // the provider generates IDs by NewIDs and NewSpanID
	readEvent   func(instance string, execution, eventID uint64) (*journalpb.Event, error)
}

// NewTracing returns nil if the provider records no spans. It starts probe spans to find out
// whether the provider records spans and generates IDs by NewSpanID. Probe spans never end, so they
// are not exported. readEvent reads an event of this node's replica.
func NewTracing(node string, provider trace.TracerProvider, readEvent func(instance string, execution, eventID uint64) (*journalpb.Event, error)) *Tracing {
	t := &Tracing{node: node, tracer: provider.Tracer(scope), readEvent: readEvent}
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

// Tracer returns the tracer for the actors, a nil interface if tracing is off.
func (t *Tracing) Tracer() actors.Tracer {
	if t == nil {
		return nil
	}
	return t
}

// TraceContext implements actors.Tracer: it returns the context of the parent span for attempts and
// children of an execution.
func (t *Tracing) TraceContext(instance string, execution uint64) string {
	first, err := t.readEvent(instance, execution, 1)
	if err != nil {
		return "" // purged meanwhile
	}
	recorded := first.GetOrchestrationStarted().GetTrace()
	parent := parseTrace(recorded)
	if !parent.IsValid() || !t.usesSpanIDs {
		return recorded
	}
	return FormatTrace(parent.WithSpanID(executionSpan(instance, execution, recorded)))
}

// executionSpan returns the ID of an execution's span, the same on every node.
func executionSpan(instance string, execution uint64, recorded string) (id trace.SpanID) {
	hash := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%s", instance, execution, recorded))
	copy(id[:], hash[:])
	id[0] |= 1 // an ID of zero is invalid
	return id
}

// Attempt implements actors.Tracer.
func (t *Tracing) Attempt(ctx context.Context, a *replay.Attempt, traceparent string) (context.Context, func(actors.AttemptOutcome)) {
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
func (t *Tracing) recordEnd(instance string, execution uint64, terminal *journalpb.Event) {
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
	if outcome == actors.StateFailed {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(time.Unix(0, terminal.Timestamp)))
}

// StartCall makes the span of a call that starts an instance. It returns the context within the
// span and the span's traceparent. ended must be called with the outcome of the call.
func (t *Tracing) StartCall(ctx context.Context, orchestration, instance string) (traced context.Context, traceparent string, ended func(error)) {
	return startCall(ctx, t.tracer, orchestration, instance)
}

// StartRemoteCall is StartCall for a client without a node: it uses the global provider.
func StartRemoteCall(ctx context.Context, orchestration, instance string) (traced context.Context, traceparent string, ended func(error)) {
	return startCall(ctx, otel.Tracer(scope), orchestration, instance)
}

func startCall(ctx context.Context, tracer trace.Tracer, orchestration, instance string) (traced context.Context, traceparent string, ended func(error)) {
	ctx, span := tracer.Start(ctx, "start "+orchestration, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		orchestrationKey.String(orchestration), instanceKey.String(instance),
	))
	return ctx, FormatTrace(span.SpanContext()), func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// TraceMax is the length of a traceparent.
const TraceMax = 55

// FormatTrace returns a span context as a W3C traceparent, "" if it is invalid.
func FormatTrace(span trace.SpanContext) string {
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
