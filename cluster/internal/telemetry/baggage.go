package telemetry

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/baggage"

	"github.com/tenuto-dev/tenuto/replay"
)

// WithHeaders returns a context that carries the named headers. Those that ctx does not carry are
// taken from its baggage.
func WithHeaders(ctx context.Context, names []string) context.Context {
	if len(names) == 0 {
		return ctx
	}
	members := baggage.FromContext(ctx)
	for _, name := range names {
		header, member := replay.Header(name), members.Member(name)
		if _, ok := header.From(ctx); !ok && member.Key() != "" {
			ctx = header.With(ctx, member.Value())
		}
	}
	return ctx
}

// withBaggage returns a context whose baggage has those of the named headers that ctx carries.
// Headers within their bounds are valid members.
func withBaggage(ctx context.Context, names []string) context.Context {
	members := baggage.FromContext(ctx)
	for _, name := range names {
		value, ok := replay.Header(name).From(ctx)
		if !ok {
			continue
		}
		if member, err := baggage.NewMemberRaw(name, value); err == nil {
			if more, err := members.SetMember(member); err == nil {
				members = more
			}
		}
	}
	return baggage.ContextWithBaggage(ctx, members)
}

// WithBaggage returns interceptors of attempts that set the named headers in the baggage before the
// first of the given ones is called.
func WithBaggage(names []string, interceptors []replay.ActivityInterceptor) []replay.ActivityInterceptor {
	if len(names) == 0 {
		return interceptors
	}
	first := func(ctx context.Context, next func(context.Context) error) error { return next(ctx) }
	if len(interceptors) > 0 {
		first, interceptors = interceptors[0], interceptors[1:]
	}
	return slices.Concat([]replay.ActivityInterceptor{func(ctx context.Context, next func(context.Context) error) error {
		return first(withBaggage(ctx, names), next)
	}}, interceptors)
}
