package state

import (
	"iter"
	"slices"

	"github.com/tenuto-dev/tenuto/journal/state/store"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// TimersDue yields the open timers that are due before a time, in Unix
// nanoseconds, the earliest first. It costs what it yields, and what is in
// memory. A timer that is open from the beginning of the iteration to the end is
// yielded once; one that is set or closed meanwhile may be.
func (m *Machine) TimersDue(before int64) iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for a := range m.alarms(before) {
			var due *journalpb.Operation
			_, err := m.lookup(a.instance, func(in *instance) {
				if at, open := in.open.find(a.event); open && in.execution == a.execution && in.open[at].timer() && in.open[at].fireAt == a.fireAt {
					due = in.open[at].message(in.id, in.execution, in.incarnation)
				}
			})
			if err != nil || due != nil && !yield(due) {
				return
			}
		}
	}
}

// alarms yields the timers of late, each once: those in memory at the beginning,
// and those in the store, a page at a time.
func (m *Machine) alarms(before int64) iter.Seq[alarm] {
	return func(yield func(alarm) bool) {
		hot := m.hotAlarms(before)
		for a := range m.coldAlarms(before) {
			for len(hot) > 0 && hot[0].byTime(a) < 0 {
				if !yield(hot[0]) {
					return
				}
				hot = hot[1:]
			}
			if len(hot) > 0 && hot[0] == a {
				hot = hot[1:]
			}
			if !yield(a) {
				return
			}
		}
		for _, a := range hot {
			if !yield(a) {
				return
			}
		}
	}
}

func (m *Machine) hotAlarms(before int64) (hot []alarm) {
	m.mu.RLock()
	for _, in := range m.busy {
		hot = in.appendAlarms(hot)
	}
	m.mu.RUnlock()
	hot = slices.DeleteFunc(hot, func(a alarm) bool { return a.fireAt >= before })
	slices.SortFunc(hot, alarm.byTime)
	return hot
}

func (m *Machine) coldAlarms(before int64) iter.Seq[alarm] {
	return func(yield func(alarm) bool) {
		if m.store == nil {
			return
		}
		for from := []byte{keyTimer}; from != nil; {
			page, next, err := m.store.alarms(from, dueKey(nil, before))
			if err != nil {
				return // the store has failed
			}
			for _, a := range page {
				if !yield(a) {
					return
				}
			}
			from = next
		}
	}
}

// alarms reads a page of timers. The next page is from there on; nil if there is
// none.
func (s *records) alarms(from, to []byte) (page []alarm, next []byte, err error) {
	err = s.view("read the timers", 0, func(r store.Reader) error {
		return scan(r, from, to, func(key, _ []byte) (bool, error) {
			if len(page) == pageInstances {
				next = slices.Clone(key)
				return false, nil
			}
			var a alarm
			err := a.parse(key)
			page = append(page, a)
			return true, err
		})
	})
	return page, next, err
}
