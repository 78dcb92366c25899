package replay

// requests are the request IDs of recorded inputs: an input that is repeated is
// known by its own.
type requests struct {
	known map[string]struct{}
	order []string // the latest, oldest first
}

// requestsCarried is how many request IDs the next execution gets, so that an
// input that is repeated meanwhile is still known.
const requestsCarried = 256

// add remembers an ID; "" is none.
func (r *requests) add(id string) {
	if id == "" || r.has(id) {
		return
	}
	if r.known == nil {
		r.known = make(map[string]struct{})
	}
	r.known[id] = struct{}{}
	if len(r.order) == 2*requestsCarried {
		r.order = append(r.order[:0], r.latest()...)
	}
	r.order = append(r.order, id)
}

func (r *requests) has(id string) bool {
	_, known := r.known[id]
	return known
}

// latest returns the IDs that the next execution gets.
func (r *requests) latest() []string {
	return r.order[max(len(r.order)-requestsCarried, 0):]
}
