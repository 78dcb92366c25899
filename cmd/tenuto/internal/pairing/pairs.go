package pairing

import (
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay/history"
)

// Pairs relates scheduling events and completions, and subscriptions and the events that they got.
// Events are added in their order. Adding an event again changes nothing.
type Pairs struct {
	execution uint64
	last      uint64 // event of the execution
	other     map[key]uint64
	recorded  map[key]time.Time
	// By name of events in the present execution: subscriptions without an event, and events
	// without a subscription. unknown: the execution began with events that its history does not
	// show.
	open, buffered map[string][]uint64
	subscribed     map[uint64]string
	unknown        bool
}

// key names an event of an instance.
type key struct{ execution, event uint64 }

// New returns Pairs without events.
func New() *Pairs {
	return &Pairs{other: make(map[key]uint64), recorded: make(map[key]time.Time)}
}

// Of returns the EventID of the other event of a pair, and when that was recorded; 0 if there is
// none yet.
func (p *Pairs) Of(e history.Event) (other uint64, recorded time.Time) {
	other = p.other[key{e.Execution, e.EventID}]
	return other, p.recorded[key{e.Execution, other}]
}

// updatePrefix begins the names of updates, for which no code subscribes.
const updatePrefix = "tenuto.update/"

// Add adds the next event.
func (p *Pairs) Add(e history.Event) {
	if e.Execution != p.execution {
		p.execution, p.last = e.Execution, 0
		p.open, p.buffered, p.subscribed = make(map[string][]uint64), make(map[string][]uint64), make(map[uint64]string)
		p.unknown = false
	}
	if e.EventID <= p.last {
		return
	}
	if p.last == 0 && (e.EventID > 1 || carriesEvents(e)) {
		p.unknown = true
	}
	p.last = e.EventID
	p.recorded[key{e.Execution, e.EventID}] = e.Time
	if e.SourceEventID > 0 {
		p.join(e.SourceEventID, e.EventID)
	}
	if !p.unknown {
		p.addExternal(e)
	}
}

// carriesEvents reports whether an execution begins with events of the one before it.
func carriesEvents(e history.Event) bool { return strings.Contains(e.String(), " inbox=") }

// addExternal gives events to subscriptions in the order of both, as the code does.
func (p *Pairs) addExternal(e history.Event) {
	switch {
	case e.Type == history.ExternalSubscribed:
		p.subscribed[e.EventID] = e.Name
		if waiting := p.buffered[e.Name]; len(waiting) > 0 {
			p.join(e.EventID, waiting[0])
			p.buffered[e.Name] = waiting[1:]
			return
		}
		p.open[e.Name] = append(p.open[e.Name], e.EventID)
	case e.Type == history.ExternalEvent && e.SourceEventID == 0 && !strings.HasPrefix(e.Name, updatePrefix):
		if waiting := p.open[e.Name]; len(waiting) > 0 {
			p.join(waiting[0], e.EventID)
			p.open[e.Name] = waiting[1:]
			return
		}
		p.buffered[e.Name] = append(p.buffered[e.Name], e.EventID)
	case e.Type == history.CancelRequested:
		p.cancel(e)
	}
}

// cancel removes a canceled subscription. An event that it would have got after a resumption goes
// to the next one.
func (p *Pairs) cancel(e history.Event) {
	name, ok := p.subscribed[e.SourceEventID]
	if !ok {
		return
	}
	if i := slices.Index(p.open[name], e.SourceEventID); i >= 0 {
		p.open[name] = slices.Delete(p.open[name], i, i+1)
		return
	}
	for event, subscription := range p.other {
		if event.execution == e.Execution && subscription == e.SourceEventID && event.event != e.EventID {
			delete(p.other, event)
			p.buffered[name] = append([]uint64{event.event}, p.buffered[name]...)
		}
	}
}

// join pairs two events of the present execution.
func (p *Pairs) join(scheduling, closing uint64) {
	p.other[key{p.execution, scheduling}] = closing
	p.other[key{p.execution, closing}] = scheduling
}
