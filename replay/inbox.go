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
	waiting  map[string][]*operation
	buffered map[string][]arrival
	arrivals uint64
	// What is buffered: how many events, and the bytes of their payloads.
	events, bytes int
}

// An arrival is an event with its place in the order over all names.
type arrival struct {
	place uint64
	event *journalpb.ExternalEvent
}

// arrive returns the subscription that the event belongs to, or keeps the
// event and returns nil.
func (b *inbox) arrive(e *journalpb.ExternalEvent) *operation {
	if len(b.waiting[e.Name]) > 0 {
		return pop(b.waiting, e.Name)
	}
	if b.buffered == nil {
		b.buffered = make(map[string][]arrival)
	}
	b.arrivals++
	b.events++
	b.bytes += len(e.Data.GetData())
	b.buffered[e.Name] = append(b.buffered[e.Name], arrival{b.arrivals, e})
	return nil
}

// subscribe returns the event that the subscription gets at once, or keeps the
// subscription and returns nil.
func (b *inbox) subscribe(op *operation) *journalpb.ExternalEvent {
	if len(b.buffered[op.name]) > 0 {
		taken := pop(b.buffered, op.name).event
		b.events--
		b.bytes -= len(taken.Data.GetData())
		return taken
	}
	if b.waiting == nil {
		b.waiting = make(map[string][]*operation)
	}
	b.waiting[op.name] = append(b.waiting[op.name], op)
	return nil
}

// buffers tells whether an event of that name waits for somebody to take it.
func (b *inbox) buffers(name string) bool { return len(b.buffered[name]) > 0 }

func (b *inbox) unsubscribe(op *operation) {
	waiting := b.waiting[op.name]
	for i := range waiting {
		if waiting[i] == op {
			b.waiting[op.name] = append(waiting[:i:i], waiting[i+1:]...)
			break
		}
	}
	if len(b.waiting[op.name]) == 0 {
		delete(b.waiting, op.name)
	}
}

// unconsumed returns the buffered events in the order in which they arrived.
func (b *inbox) unconsumed() []*journalpb.ExternalEvent {
	var all []arrival
	for _, queue := range b.buffered {
		all = append(all, queue...)
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.place, b.place) })
	var events []*journalpb.ExternalEvent
	for _, a := range all {
		events = append(events, a.event)
	}
	return events
}

// pop takes the head off the queue of that name and lets an empty one go.
func pop[T any](queues map[string][]T, name string) T {
	queue := queues[name]
	if len(queue) == 1 {
		delete(queues, name)
	} else {
		queues[name] = queue[1:]
	}
	return queue[0]
}
