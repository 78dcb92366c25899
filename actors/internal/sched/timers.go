package sched

import (
	"container/heap"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// A Timer is a function to call at a time.
type Timer[K comparable] struct {
	Due        clustertime.Time
	Key        K      // the zero key cannot be canceled
	Fire       func() // must not block
	Deferrable bool   // Next can skip it

	sequence uint64 // timers that are due together fire in the order of scheduling
	index    int    // in the heap
}

// before reports whether t fires before b. A nil b counts as later than any timer.
func (t *Timer[K]) before(b *Timer[K]) bool {
	if b == nil || t.Due != b.Due {
		return b == nil || t.Due.Before(b.Due)
	}
	return t.sequence < b.sequence
}

// Timers holds timers in the order in which they are due. It is not safe for concurrent use.
type Timers[K comparable] struct {
	deferrable   timerHeap[K]
	others       timerHeap[K]
	lastSequence uint64 // how many timers were ever added
	byKey        map[K]*Timer[K]
}

// NewTimers returns an empty set of timers.
func NewTimers[K comparable]() *Timers[K] { return &Timers[K]{byKey: make(map[K]*Timer[K])} }

// Add adds a timer. It replaces a timer with the same key.
func (s *Timers[K]) Add(timer *Timer[K]) {
	var none K
	if timer.Key != none {
		s.Cancel(timer.Key)
		s.byKey[timer.Key] = timer
	}
	s.lastSequence++
	timer.sequence = s.lastSequence
	heap.Push(s.heapOf(timer), timer)
}

// Cancel removes the timer with a key, if there is one.
func (s *Timers[K]) Cancel(key K) {
	if timer := s.byKey[key]; timer != nil {
		s.Remove(timer)
	}
}

// Remove removes a timer.
func (s *Timers[K]) Remove(timer *Timer[K]) {
	heap.Remove(s.heapOf(timer), timer.index)
	delete(s.byKey, timer.Key)
}

// Next returns the timer to fire first, nil if there is none. It skips deferrable timers if
// deferred is set.
func (s *Timers[K]) Next(deferred bool) *Timer[K] {
	var next *Timer[K]
	if len(s.others) > 0 {
		next = s.others[0]
	}
	if !deferred && len(s.deferrable) > 0 && s.deferrable[0].before(next) {
		next = s.deferrable[0]
	}
	return next
}

func (s *Timers[K]) heapOf(timer *Timer[K]) *timerHeap[K] {
	if timer.Deferrable {
		return &s.deferrable
	}
	return &s.others
}

type timerHeap[K comparable] []*Timer[K]

func (h timerHeap[K]) Len() int { return len(h) }

func (h timerHeap[K]) Less(i, j int) bool { return h[i].before(h[j]) }

func (h timerHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap[K]) Push(x any) {
	timer := x.(*Timer[K])
	timer.index = len(*h)
	*h = append(*h, timer)
}

func (h *timerHeap[K]) Pop() any {
	last := len(*h) - 1
	timer := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return timer
}
