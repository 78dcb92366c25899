package state

import (
	"iter"
	"slices"

	"github.com/tenuto-dev/tenuto/journal/state/store"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// TimersDue yields the open timers that are due before a time, in Unix nanoseconds, the earliest
// first. Its cost is proportional to what it yields and to the instances in memory. A timer that is
// open during the whole iteration is yielded once; one that is created or closed meanwhile may be
// yielded.
func (re *reads) TimersDue(before int64) iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for a := range re.timersBefore(before) {
			var due *journalpb.Operation
			_, err := re.lookup(a.instance, func(in *instance) {
				if at, open := in.open.find(a.event); open && in.execution == a.execution && in.open[at].isTimer() && in.open[at].fireAt == a.fireAt {
					due = in.open[at].message(in.id, in.execution, in.incarnation)
				}
			})
			if err != nil || due != nil && !yield(due) {
				return
			}
		}
	}
}

// timersBefore yields timers, each once: those in memory at the beginning, and those in the store,
// one page at a time.
func (re *reads) timersBefore(before int64) iter.Seq[timerKey] {
	return func(yield func(timerKey) bool) {
		inMemory := re.memoryTimers(before)
		for a := range re.storedTimers(before) {
			for len(inMemory) > 0 && inMemory[0].compareByTime(a) < 0 {
				if !yield(inMemory[0]) {
					return
				}
				inMemory = inMemory[1:]
			}
			if len(inMemory) > 0 && inMemory[0] == a {
				inMemory = inMemory[1:]
			}
			if !yield(a) {
				return
			}
		}
		for _, a := range inMemory {
			if !yield(a) {
				return
			}
		}
	}
}

func (re *reads) memoryTimers(before int64) (inMemory []timerKey) {
	re.mu.RLock()
	for _, in := range re.busy {
		inMemory = in.appendTimers(inMemory)
	}
	re.mu.RUnlock()
	inMemory = slices.DeleteFunc(inMemory, func(a timerKey) bool { return a.fireAt >= before })
	slices.SortFunc(inMemory, timerKey.compareByTime)
	return inMemory
}

func (re *reads) storedTimers(before int64) iter.Seq[timerKey] {
	return func(yield func(timerKey) bool) {
		if re.store == nil {
			return
		}
		for from := []byte{keyTimer}; from != nil; {
			page, next, err := re.store.readTimers(from, timerKeyAt(nil, before))
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

// readTimers reads a page of timers. The page after it begins at next; nil if there is none.
func (s *recordStore) readTimers(from, to []byte) (page []timerKey, next []byte, err error) {
	err = s.view("read the timers", 0, func(r store.Reader) error {
		return scanRecords(r, from, to, func(key, _ []byte) (bool, error) {
			if len(page) == pageInstances {
				next = slices.Clone(key)
				return false, nil
			}
			var a timerKey
			err := a.parse(key)
			page = append(page, a)
			return true, err
		})
	})
	return page, next, err
}
