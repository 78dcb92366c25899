package state

import (
	"iter"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// sets are the instances that somebody asks for without knowing their IDs. Each
// is decided by the instance alone and kept up to date by move, so that asking
// costs what is in the set.
type sets struct {
	busy     map[string]*instance // with open operations
	unbegun  map[string]*instance // running, of which no code has run yet
	children map[string]*instance // running, and started by a parent
	held     map[string]*instance // running, with a condition
}

func newSets() sets {
	return sets{map[string]*instance{}, map[string]*instance{}, map[string]*instance{}, map[string]*instance{}}
}

// memberships says to which sets an instance belongs.
type memberships struct{ busy, unbegun, child, held bool }

func (in *instance) memberships() memberships {
	running := in.running()
	return memberships{
		busy:    len(in.open) > 0,
		unbegun: running && in.last == 1,
		child:   running && in.parent != nil,
		held:    running && in.condition != nil,
	}
}

// move takes an instance out of sets that it was in and into those in which it
// is to be.
func (s *sets) move(in *instance, was, is memberships) {
	if is == was {
		return
	}
	change(s.busy, in, was.busy, is.busy)
	change(s.unbegun, in, was.unbegun, is.unbegun)
	change(s.children, in, was.child, is.child)
	change(s.held, in, was.held, is.held)
}

func change(set map[string]*instance, in *instance, was, is bool) {
	switch {
	case is && !was:
		set[in.id] = in
	case was && !is:
		delete(set, in.id)
	}
}

// set is a set of instances, in memory and in the store.
type set struct {
	kind byte // of its keys
	hot  func(*contents) map[string]*instance
}

var (
	everyInstance    = set{keyInstance, func(c *contents) map[string]*instance { return c.instances }}
	busyInstances    = set{keyBusy, func(c *contents) map[string]*instance { return c.busy }}
	unbegunInstances = set{keyUnbegun, func(c *contents) map[string]*instance { return c.unbegun }}
	childInstances   = set{keyChild, func(c *contents) map[string]*instance { return c.children }}
	heldInstances    = set{keyHeld, func(c *contents) map[string]*instance { return c.held }}
)

// member is an instance that is or was in a set.
type member struct {
	id      string
	cold    *instance // as the store has it; nil if it was in memory
	commits uint64    // when it was read
}

// members yields who was in a set of late: everybody who is in it from the
// beginning to the end, once, in order of the IDs, and some of the others. See
// tells who is in it still.
//
// Whoever was in memory at the beginning is looked up again at its turn. The
// others are read from the store a page at a time, so that nothing is held while
// somebody else's code runs.
func (m *Machine) members(of set) iter.Seq[member] {
	return func(yield func(member) bool) {
		m.mu.RLock()
		hot := slices.Collect(maps.Keys(of.hot(&m.contents)))
		m.mu.RUnlock()
		slices.Sort(hot) // without the lock: there may be many
		for c := range m.coldMembers(of) {
			for len(hot) > 0 && hot[0] < c.id {
				if !yield(member{id: hot[0]}) {
					return
				}
				hot = hot[1:]
			}
			if len(hot) > 0 && hot[0] == c.id {
				hot = hot[1:]
			}
			if !yield(c) {
				return
			}
		}
		for _, id := range hot {
			if !yield(member{id: id}) {
				return
			}
		}
	}
}

// coldMembers yields those that the store has.
func (m *Machine) coldMembers(of set) iter.Seq[member] {
	return func(yield func(member) bool) {
		if m.store == nil {
			return
		}
		for from := []byte{of.kind}; from != nil; {
			page, next, err := m.page(of, from)
			if err != nil {
				return // the store has failed
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

// page reads the next members of a set from the store. The next page is from
// there on; nil if there is none.
func (m *Machine) page(of set, from []byte) (page []member, next []byte, err error) {
	m.mu.RLock()
	commits := m.commits
	m.mu.RUnlock()
	err = m.store.view("read the index", 0, func(r store.Reader) error {
		headers, err := newHeaderReader(r)
		if err != nil {
			return err
		}
		defer headers.close()
		return scan(r, from, afterAll(of.kind), func(key, record []byte) (bool, error) {
			id := string(key[1:])
			if len(page) == pageInstances {
				next = idKey(nil, of.kind, id)
				return false, nil
			}
			in, err := headers.read(of.kind, id, record)
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
	iter, err := from.NewIter([]byte{keyInstance}, afterAll(keyInstance))
	return &headerReader{from: from, iter: iter}, err
}

// read returns the header of an instance that has a key of a kind with a record;
// nil if there is none any more.
func (r *headerReader) read(kind byte, id string, record []byte) (*instance, error) {
	if kind == keyInstance {
		return parse(r.from, id, record)
	}
	r.key = idKey(r.key[:0], keyInstance, id)
	if !r.iter.SeekGE(r.key) || string(r.iter.Key()) != string(r.key) {
		return nil, r.iter.Error()
	}
	value, err := r.iter.ValueAndErr()
	if err != nil {
		return nil, err
	}
	if record, err = checked(r.key, value); err != nil {
		return nil, err
	}
	return parse(r.from, id, record)
}

func (r *headerReader) close() { _ = r.iter.Close() } // whatever it says was said before

// see shows a member as it is now, if it still exists.
func (m *Machine) see(c *member, f func(*instance)) (found bool, err error) {
	if c.cold == nil {
		return m.lookup(c.id, f)
	}
	m.mu.RLock()
	_, hot := m.instances[c.id]
	_, gone := m.gone[c.id]
	fresh := !hot && !gone && m.commits == c.commits
	m.mu.RUnlock()
	if !fresh {
		return m.lookup(c.id, f)
	}
	f(c.cold)
	return true, nil
}
