package detour

import "context"

// A Route returns the address to dial instead of an address. It may be called concurrently. A nil
// Route changes nothing.
type Route func(address string) string

// To returns the address to dial instead of an address.
func (r Route) To(address string) string {
	if r == nil {
		return address
	}
	return r(address)
}

type key struct{}

// With returns a context that carries a route.
func With(ctx context.Context, r Route) context.Context { return context.WithValue(ctx, key{}, r) }

// Of returns the route of a context, nil if there is none.
func Of(ctx context.Context) Route {
	r, _ := ctx.Value(key{}).(Route)
	return r
}
