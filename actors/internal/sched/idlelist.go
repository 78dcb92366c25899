package sched

// IdleLinks are the links of an idle list in one of its elements.
type IdleLinks[T any] struct {
	idle         bool // it is in the list; older and newer are its neighbors
	older, newer T
}

// Idle reports whether the element is in the list.
func (l *IdleLinks[T]) Idle() bool { return l.idle }

// An Idler can be in an idle list. Its zero value means no element.
type Idler[T any] interface {
	comparable
	IdleLinks() *IdleLinks[T]
}

// An IdleList holds idle elements, least recently used first. The links are in the elements. The
// caller's lock guards it.
type IdleList[T Idler[T]] struct {
	oldest, newest T
	count          int
}

// Add adds an element that has become idle.
func (l *IdleList[T]) Add(element T) {
	var none T
	links := element.IdleLinks()
	links.idle, links.older = true, l.newest
	if l.newest != none {
		l.newest.IdleLinks().newer = element
	} else {
		l.oldest = element
	}
	l.newest = element
	l.count++
}

// Remove removes an element if it is in the list.
func (l *IdleList[T]) Remove(element T) {
	var none T
	links := element.IdleLinks()
	if !links.idle {
		return
	}
	if links.older != none {
		links.older.IdleLinks().newer = links.newer
	} else {
		l.oldest = links.newer
	}
	if links.newer != none {
		links.newer.IdleLinks().older = links.older
	} else {
		l.newest = links.older
	}
	*links = IdleLinks[T]{}
	l.count--
}

// Oldest returns the element that has been idle longest. The list must not be empty.
func (l *IdleList[T]) Oldest() T { return l.oldest }

// Len returns the number of elements.
func (l *IdleList[T]) Len() int { return l.count }
