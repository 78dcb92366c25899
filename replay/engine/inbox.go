package engine

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An inbox matches external events with subscriptions: the k-th subscription to a name, not
// counting canceled ones, gets the k-th event of that name, whichever of the two comes first.
type inbox struct {
	// For each name at most one of the two is not empty.
	waiting  table[string, []*operation]
	buffered table[string, []inboxEvent]
	lastSeq  uint64
	// Number of buffered events, and bytes of their payloads and headers.
	events, bytes int
}

// An inboxEvent is an external event with its position among the buffered events of all names.
type inboxEvent struct {
	seq     uint64
	event   *journalpb.ExternalEvent
	eventID uint64 // 0 if it was recorded in an earlier execution
}

// eventBytes returns the bytes that an external event counts for while it is buffered.
func eventBytes(event *journalpb.ExternalEvent) int {
	return len(event.Data.GetData()) + headerBytes(event.Headers)
}

// deliver returns the subscription that the event belongs to, or buffers the event and returns nil.
func (in *inbox) deliver(a inboxEvent) *operation {
	if op, ok := popQueue(&in.waiting, a.event.Name); ok {
		return op
	}
	in.lastSeq++
	in.events++
	in.bytes += eventBytes(a.event)
	a.seq = in.lastSeq
	queue, _ := in.buffered.get(a.event.Name)
	in.buffered.set(a.event.Name, append(queue, a))
	return nil
}

// subscribe returns the buffered event for the subscription, or keeps the subscription.
func (in *inbox) subscribe(op *operation) (accepted inboxEvent, ok bool) {
	if accepted, ok := in.take(op.name); ok {
		return accepted, true
	}
	queue, _ := in.waiting.get(op.name)
	in.waiting.set(op.name, append(queue, op))
	return inboxEvent{}, false
}

// take removes and returns the oldest buffered event of that name.
func (in *inbox) take(name string) (oldest inboxEvent, ok bool) {
	if oldest, ok = popQueue(&in.buffered, name); ok {
		in.events--
		in.bytes -= eventBytes(oldest.event)
	}
	return oldest, ok
}

// hasSubscription reports whether a subscription waits for an event of that name.
func (in *inbox) hasSubscription(name string) bool {
	_, ok := in.waiting.get(name)
	return ok
}

func (in *inbox) unsubscribe(op *operation) {
	waiting, _ := in.waiting.get(op.name)
	i := slices.Index(waiting, op)
	switch {
	case i < 0:
	case len(waiting) == 1:
		in.waiting.delete(op.name)
	default:
		in.waiting.set(op.name, append(waiting[:i:i], waiting[i+1:]...))
	}
}

// unconsumedEvents returns the buffered events in order of arrival.
func (in *inbox) unconsumedEvents() []*journalpb.ExternalEvent {
	var all []inboxEvent
	for _, queue := range in.buffered.all() {
		all = append(all, queue...)
	}
	slices.SortFunc(all, func(a, b inboxEvent) int { return cmp.Compare(a.seq, b.seq) })
	var events []*journalpb.ExternalEvent
	for _, a := range all {
		events = append(events, a.event)
	}
	return events
}

// popQueue removes and returns the head of the queue of that name, and deletes an empty queue.
func popQueue[T any](queues *table[string, []T], name string) (head T, ok bool) {
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

// deferredInputs holds completions, external events and cancel requests that were recorded while
// the instance is suspended and are not applied yet, in order.
type deferredInputs struct {
	suspended bool // the code does not run, and inputs are deferred
	events    []*journalpb.Event
}

func (d *deferredInputs) add(event *journalpb.Event) { d.events = append(d.events, event) }

// take removes and returns the oldest.
func (d *deferredInputs) take() *journalpb.Event {
	event := d.events[0]
	d.events = dequeue(d.events)
	return event
}

// externalEvents returns the external events among the inputs.
func (d *deferredInputs) externalEvents() (events []*journalpb.ExternalEvent) {
	for _, event := range d.events {
		if arrived := event.GetExternalEvent(); arrived != nil {
			events = append(events, arrived)
		}
	}
	return events
}

// hasExternalEvent reports whether there is an external event of that name among the inputs.
func (d *deferredInputs) hasExternalEvent(name string) bool {
	for _, event := range d.events {
		if event.GetExternalEvent().GetName() == name {
			return true
		}
	}
	return false
}

// eventTypes holds the types of events that the code has subscribed to, by name.
type eventTypes struct{ table[string, dataTypes] }

// dataTypes are the types of data of one name. Without any, every type is accepted.
type dataTypes struct {
	first reflect.Type // stored without an allocation, as the only one of most names
	more  []reflect.Type
}

// The bounds of eventTypes. Names beyond are not known; a name with more types counts as unknown.
const (
	eventNamesMax = 1000
	dataTypesMax  = 8
)

// add adds the type of a subscription.
func (t *eventTypes) add(name string, data reflect.Type) {
	types, known := t.get(name)
	switch {
	case types.first == data:
		return
	case !known && t.len() == eventNamesMax, known && types.first == nil, slices.Contains(types.more, data):
		return
	case !known:
		types.first = data
	case len(types.more)+1 == dataTypesMax:
		types = dataTypes{}
	default:
		types.more = append(types.more, data)
	}
	t.set(name, types)
}

// refusal returns why an event is not recorded: its data does not decode as a type that the code
// declares for its name, or, if it declares none, has subscribed with. An event of the start that
// began the run is recorded with it, or was checked before; the request ID names it. It returns nil
// if no type is known.
func (x *Execution) refusal(event *journalpb.ExternalEvent) error {
	if event == nil || x.program.code == nil || event.RequestId != "" && event.RequestId == x.id.requestID {
		return nil
	}
	var room [dataTypesMax]reflect.Type
	types := appendReceived(room[:0], x.program.code, event.Name)
	if len(types) == 0 { // else the subscriptions do not count, as while the code is not in memory
		subscribed, known := x.program.subscribed.get(event.Name)
		if !known || subscribed.first == nil {
			return nil
		}
		types = append(append(types, subscribed.first), subscribed.more...)
	}
	return x.program.registry.payloads.refusal(event, types)
}

// appendReceived appends the types of data that code declares for an event.
func appendReceived(types []reflect.Type, code *host.Orchestration, event string) []reflect.Type {
	for i := range code.Receives {
		if code.Receives[i].Name == event {
			types = append(types, code.Receives[i].Data)
		}
	}
	return types
}
