package detour

import "context"

// A Route returns where a connection to an address is really made. It may be
// called concurrently. nil changes nothing.
type Route func(address string) string

// To returns where a connection to an address is really made.
func (r Route) To(address string) string {
	if r == nil {
		return address
	}
	return r(address)
}

type key struct{}

// With returns a context that carries a route.
func With(ctx context.Context, r Route) context.Context { return context.WithValue(ctx, key{}, r) }

// Of returns the route that a context carries, nil if it carries none.
func Of(ctx context.Context) Route {
	r, _ := ctx.Value(key{}).(Route)
	return r
}
