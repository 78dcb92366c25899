package actors

// idlers are the idle instances of a partition, the least recently used first. The
// links are in the instances. Guarded by the partition's lock.
type idlers struct {
	oldest, newest *instance
	count          int
}

// add puts an instance behind all others.
func (l *idlers) add(in *instance) {
	in.idle, in.older = true, l.newest
	if l.newest != nil {
		l.newest.newer = in
	} else {
		l.oldest = in
	}
	l.newest = in
	l.count++
}

// remove takes an instance out, if it is there.
func (l *idlers) remove(in *instance) {
	if !in.idle {
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
	in.idle, in.older, in.newer = false, nil, nil
	l.count--
}
