package state

// idleBytes is about how many bytes of memory an instance takes in addition to the size of its
// header on disk.
const idleBytes = 800

// idleList is a cache of clean instances, whose latest state is in the store. They are ordered by
// their last change.
type idleList struct {
	oldest, newest *instance
	count          int
	bytes          int
}

func (l *idleList) add(in *instance) {
	l.remove(in)
	in.isIdle, in.older, in.newer = true, l.newest, nil
	if l.newest != nil {
		l.newest.newer = in
	} else {
		l.oldest = in
	}
	l.newest = in
	l.count++
	l.bytes += in.memBytes
}

func (l *idleList) remove(in *instance) {
	if !in.isIdle {
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
	in.isIdle, in.older, in.newer = false, nil, nil
	l.count--
	l.bytes -= in.memBytes
}

// evictExcess evicts the longest idle instances until the idle list is within MemoryBytes.
func (fl *flusher) evictExcess() {
	for fl.idle.bytes > fl.options.MemoryBytes {
		fl.evict(fl.idle.oldest)
	}
}

// evict removes a clean instance from memory.
func (fl *flusher) evict(in *instance) {
	fl.idle.remove(in)
	fl.updateSets(in, in.memberships(), memberships{})
	delete(fl.instances, in.id)
}
