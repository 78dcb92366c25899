package actors

// idleList holds the idle instances of a partition, least recently used first. The links are in
// the instances. The partition's lock guards it.
type idleList struct {
	oldest, newest *instance
	count          int
}

func (l *idleList) add(in *instance) {
	in.idle, in.older = true, l.newest
	if l.newest != nil {
		l.newest.newer = in
	} else {
		l.oldest = in
	}
	l.newest = in
	l.count++
}

func (l *idleList) remove(in *instance) {
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
