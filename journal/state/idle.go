package state

// idleBytes is about what an instance takes in memory beside what its header
// takes on disk.
const idleBytes = 800

// idleList holds the instances that are in memory only to save a read, in the
// order in which they were changed last.
type idleList struct {
	oldest, newest *instance
	count          int
	bytes          int
}

func (l *idleList) add(in *instance) {
	l.remove(in)
	in.idles, in.older, in.newer = true, l.newest, nil
	if l.newest != nil {
		l.newest.newer = in
	} else {
		l.oldest = in
	}
	l.newest = in
	l.count++
	l.bytes += in.weight
}

func (l *idleList) remove(in *instance) {
	if !in.idles {
		return
	}
	if in.older != nil {
		in.older.newer = in.newer
	} else {
		l.oldest = in.newer
	}
	if in.newer != nil {
		in.newer.older = in.older
	} else {
		l.newest = in.older
	}
	in.idles, in.older, in.newer = false, nil, nil
	l.count--
	l.bytes -= in.weight
}

// evictMore evicts those that have been idle for longest, if there are too many.
func (m *Machine) evictMore() {
	for m.rest.bytes > m.options.MemoryBytes {
		m.evict(m.rest.oldest)
	}
}

// evict drops an instance that the store has as it is from memory.
func (m *Machine) evict(in *instance) {
	m.rest.remove(in)
	m.move(in, in.memberships(), memberships{})
	delete(m.instances, in.id)
}
