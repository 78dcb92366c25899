package state

import (
	"iter"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// sets holds the sets that a new leader reads without knowing IDs. Whether an instance belongs to a
// set depends on that instance alone. updateSets updates the sets, so the cost of reading a set is
// proportional to its size.
type sets struct {
	busy          map[string]*instance // with open operations
	unbegun       map[string]*instance // running, and no code has run yet
	children      map[string]*instance // running, and started by a parent
	withCondition map[string]*instance // running, with a condition
}

func newSets() sets {
	return sets{map[string]*instance{}, map[string]*instance{}, map[string]*instance{}, map[string]*instance{}}
}

// memberships are the sets to which an instance belongs.
type memberships struct{ busy, unbegun, child, hasCondition bool }

func (in *instance) memberships() memberships {
	running := in.isRunning()
	return memberships{
		busy:         len(in.open) > 0,
		unbegun:      running && (in.last == 1 || in.last == in.copiedEvent),
		child:        running && in.parent != nil,
		hasCondition: running && in.condition != nil,
	}
}

// kinds yields the kinds of the keys of the sets.
func (m memberships) kinds() iter.Seq[byte] {
	return func(yield func(byte) bool) {
		_ = (!m.busy || yield(keyBusy)) && (!m.unbegun || yield(keyUnbegun)) && (!m.child || yield(keyChild)) &&
			(!m.hasCondition || yield(keyCondition))
	}
}

// without returns the sets that others lack.
func (m memberships) without(others memberships) memberships {
	return memberships{m.busy && !others.busy, m.unbegun && !others.unbegun, m.child && !others.child, m.hasCondition && !others.hasCondition}
}

// count returns the number of the sets.
func (m memberships) count() (n int) {
	for range m.kinds() {
		n++
	}
	return n
}

// updateSets updates the sets after the memberships of an instance have changed.
func (s *sets) updateSets(in *instance, before, after memberships) {
	if after == before {
		return
	}
	updateSet(s.busy, in, before.busy, after.busy)
	updateSet(s.unbegun, in, before.unbegun, after.unbegun)
	updateSet(s.children, in, before.child, after.child)
	updateSet(s.withCondition, in, before.hasCondition, after.hasCondition)
}

func updateSet(set map[string]*instance, in *instance, before, after bool) {
	switch {
	case after && !before:
		set[in.id] = in
	case before && !after:
		delete(set, in.id)
	}
}

// instanceSet is a set of instances, in memory and in the store.
type instanceSet struct {
	kind     byte // of its keys
	inMemory func(*contents) map[string]*instance
}

var (
	allInstances       = instanceSet{keyInstance, func(c *contents) map[string]*instance { return c.instances }}
	busyInstances      = instanceSet{keyBusy, func(c *contents) map[string]*instance { return c.busy }}
	unbegunInstances   = instanceSet{keyUnbegun, func(c *contents) map[string]*instance { return c.unbegun }}
	childInstances     = instanceSet{keyChild, func(c *contents) map[string]*instance { return c.children }}
	conditionInstances = instanceSet{keyCondition, func(c *contents) map[string]*instance { return c.withCondition }}
)

// member is an instance that is or was in a set.
type member struct {
	id      string
	stored  *instance // as read from the store; nil if it was in memory
	commits uint64    // when it was read
}

// members yields, in order of IDs, every instance that is in a set during the whole iteration,
// once, and possibly some that join or leave meanwhile. viewMember shows the current state.
//
// Instances in memory at the beginning are looked up again at their turn. The others are read from
// the store one page at a time, so that nothing is locked while the caller's code runs. If the
// store fails or is closed, the iteration ends early and sets *failed to a *StoreError.
func (re *reads) members(set instanceSet, failed *error) iter.Seq[member] {
	return func(yield func(member) bool) {
		re.mu.RLock()
		inMemory := slices.Collect(maps.Keys(set.inMemory(&re.contents)))
		re.mu.RUnlock()
		slices.Sort(inMemory) // without the lock: there may be many
		for c := range re.storedMembers(set, failed) {
			for len(inMemory) > 0 && inMemory[0] < c.id {
				if !yield(member{id: inMemory[0]}) {
					return
				}
				inMemory = inMemory[1:]
			}
			if len(inMemory) > 0 && inMemory[0] == c.id {
				inMemory = inMemory[1:]
			}
			if !yield(c) {
				return
			}
		}
		if *failed != nil {
			return
		}
		for _, id := range inMemory {
			if !yield(member{id: id}) {
				return
			}
		}
	}
}

// storedMembers yields the members in the store; see members.
func (re *reads) storedMembers(set instanceSet, failed *error) iter.Seq[member] {
	return func(yield func(member) bool) {
		if re.store == nil {
			return
		}
		for from := []byte{set.kind}; from != nil; {
			page, next, err := re.readPage(set, from)
			if err != nil {
				*failed = err
				return
			}
			for _, c := range page {
				if !yield(c) {
					return
				}
			}
			from = next
		}
	}
}

// pageInstances is how many instances are read from the store at a time.
const pageInstances = 256

// readPage reads the next page of members from the store. The page after it begins at next; nil if
// there is none.
func (re *reads) readPage(set instanceSet, from []byte) (page []member, next []byte, err error) {
	re.mu.RLock()
	commits := re.commits
	re.mu.RUnlock()
	err = re.store.view("read the index", 0, func(r store.Reader) error {
		headers, err := newHeaderReader(r)
		if err != nil {
			return err
		}
		defer headers.close()
		return scanRecords(r, from, endOfKind(set.kind), func(key, record []byte) (bool, error) {
			id := string(key[1:])
			if len(page) == pageInstances {
				next = idKey(nil, set.kind, id)
				return false, nil
			}
			in, err := headers.read(set.kind, id, record)
			page = append(page, member{id, in, commits})
			return true, err
		})
	})
	return page, next, err
}

// headerReader reads headers in order of the IDs.
type headerReader struct {
	from store.Reader
	iter store.Iterator
	key  []byte
}

func newHeaderReader(from store.Reader) (*headerReader, error) {
	iter, err := from.NewIter([]byte{keyInstance}, endOfKind(keyInstance))
	return &headerReader{from: from, iter: iter}, err
}

// read returns the header of the instance of a key of a kind; nil if there is none any more.
func (r *headerReader) read(kind byte, id string, record []byte) (*instance, error) {
	if kind == keyInstance {
		return parseStoredHeader(r.from, id, record)
	}
	r.key = idKey(r.key[:0], keyInstance, id)
	if !r.iter.SeekGE(r.key) || string(r.iter.Key()) != string(r.key) {
		return nil, r.iter.Error()
	}
	value, err := r.iter.ValueAndErr()
	if err != nil {
		return nil, err
	}
	if record, err = verifyValue(r.key, value); err != nil {
		return nil, err
	}
	return parseStoredHeader(r.from, id, record)
}

func (r *headerReader) close() { _ = r.iter.Close() } // its error was returned before

// viewMember calls f with the current state of a member, if it still exists.
func (re *reads) viewMember(c *member, f func(*instance)) (found bool, err error) {
	if c.stored == nil {
		return re.lookup(c.id, f)
	}
	re.mu.RLock()
	_, inMemory := re.instances[c.id]
	_, purged := re.purged[c.id]
	fresh := !inMemory && !purged && re.commits == c.commits
	re.mu.RUnlock()
	if !fresh {
		return re.lookup(c.id, f)
	}
	f(c.stored)
	return true, nil
}

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
					due = in.open[at].message(in.id, in.execution, in.incarnation, in.copiedEvent)
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
