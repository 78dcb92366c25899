package replay

import (
	"cmp"
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An inbox matches external events with subscriptions: the k-th subscription
// to a name that was not given up gets the k-th event of that name, whichever
// came first.
type inbox struct {
	// Of one name at most one of the two is not empty.
	waiting  table[string, []*operation]
	buffered table[string, []arrival]
	arrivals uint64
	// What is buffered: how many events, and the bytes of their payloads.
	events, bytes int
}

// An arrival is an event with its place in the order over all names.
type arrival struct {
	place   uint64
	event   *journalpb.ExternalEvent
	eventID uint64 // 0 if it was recorded in an earlier execution
}

// arrive returns the subscription that the event belongs to, or keeps the
// event and returns nil.
func (b *inbox) arrive(a arrival) *operation {
	if op, ok := pop(&b.waiting, a.event.Name); ok {
		return op
	}
	b.arrivals++
	b.events++
	b.bytes += len(a.event.Data.GetData())
	a.place = b.arrivals
	queue, _ := b.buffered.get(a.event.Name)
	b.buffered.set(a.event.Name, append(queue, a))
	return nil
}

// subscribe returns the event that the subscription gets at once, or keeps the
// subscription.
func (b *inbox) subscribe(op *operation) (taken arrival, ok bool) {
	if taken, ok := b.take(op.name); ok {
		return taken, true
	}
	queue, _ := b.waiting.get(op.name)
	b.waiting.set(op.name, append(queue, op))
	return arrival{}, false
}

// take returns the oldest event of that name that is kept, if there is one.
func (b *inbox) take(name string) (oldest arrival, ok bool) {
	if oldest, ok = pop(&b.buffered, name); ok {
		b.events--
		b.bytes -= len(oldest.event.Data.GetData())
	}
	return oldest, ok
}

// awaits tells whether a subscription waits for an event of that name.
func (b *inbox) awaits(name string) bool {
	_, ok := b.waiting.get(name)
	return ok
}

func (b *inbox) unsubscribe(op *operation) {
	waiting, _ := b.waiting.get(op.name)
	i := slices.Index(waiting, op)
	switch {
	case i < 0:
	case len(waiting) == 1:
		b.waiting.delete(op.name)
	default:
		b.waiting.set(op.name, append(waiting[:i:i], waiting[i+1:]...))
	}
}

// unconsumed returns the buffered events in the order in which they arrived.
func (b *inbox) unconsumed() []*journalpb.ExternalEvent {
	var all []arrival
	for _, queue := range b.buffered.all() {
		all = append(all, queue...)
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.place, b.place) })
	var events []*journalpb.ExternalEvent
	for _, a := range all {
		events = append(events, a.event)
	}
	return events
}

// pop takes the head off the queue of that name, if there is one, and lets an
// empty one go.
func pop[T any](queues *table[string, []T], name string) (head T, ok bool) {
	queue, ok := queues.get(name)
	switch {
	case !ok:
		return head, false
	case len(queue) == 1:
		queues.delete(name)
	default:
		queues.set(name, queue[1:])
	}
	return queue[0], true
}
