package replay

import "sync/atomic"

// A scheduler runs the coroutines of one execution, one at a time, in the
// order in which they became ready.
type scheduler struct {
	current *coroutine   // the one that is running now
	ready   []*coroutine // first in, first out
	all     []*coroutine // in order of creation; ended ones leave at the next sweep
	ended   int          // how many of all have ended
	halted  bool         // one coroutine waits for an answer, the others for it

	abandoned *atomic.Bool   // nothing is resumed any more
	running   atomic.Uintptr // the id of the goroutine that was resumed last; 0 if it has ended
}

// spawn adds a coroutine that begins in the next stretch of this step.
func (s *scheduler) spawn(in *scope, body func()) *coroutine {
	c := &coroutine{body: body, scope: in, running: &s.running}
	s.all = append(s.all, c)
	s.ready = append(s.ready, c)
	return c
}

// run resumes ready coroutines until none is left, or until one crashes, and returns
// that one.
func (s *scheduler) run() (crashed *coroutine) {
	for len(s.ready) > 0 && !s.halted && !s.abandoned.Load() {
		c := s.ready[0]
		s.ready = behind(s.ready)
		s.resume(c)
		if c.done {
			s.ended++
			s.sweep()
		}
		if c.crash != nil {
			return c
		}
	}
	return nil
}

// keptMax bounds the places of an empty queue that are kept for what comes next.
const keptMax = 64

// behind takes the head off a queue. An empty one keeps its place.
func behind[T any](queue []*T) []*T {
	queue[0] = nil
	switch {
	case len(queue) > 1:
		return queue[1:]
	case cap(queue) > keptMax:
		return nil
	}
	return queue[:0]
}

// halt parks the running coroutine and keeps all others from running. It is the
// first to go on.
func (s *scheduler) halt() {
	c := s.current
	s.halted = true
	s.ready = append([]*coroutine{c}, s.ready...)
	c.park()
}

func (s *scheduler) resume(c *coroutine) {
	s.current = c
	c.resume()
	s.current = nil
}

// sweep forgets ended coroutines once they are the majority.
func (s *scheduler) sweep() {
	if s.ended*2 < len(s.all) {
		return
	}
	live := s.all[:0]
	for _, c := range s.all {
		if !c.done {
			live = append(live, c)
		}
	}
	clear(s.all[len(live):])
	s.all, s.ended = live, 0
}

// drop unwinds every coroutine, the youngest first, as a stack would.
func (s *scheduler) drop() {
	s.ready = nil
	for i := len(s.all) - 1; i >= 0; i-- {
		c := s.all[i]
		if c.started && !c.done {
			s.current = c
			c.unwind()
			s.current = nil
		}
	}
	s.all, s.ended = nil, 0
}

// rearrange makes every coroutine that has begun ready, but the running one, in the
// order in which they were started; none may wait. It takes off those that have not
// begun, and returns them.
func (s *scheduler) rearrange() (unstarted []*coroutine) {
	s.ready = nil
	for _, c := range s.all {
		switch {
		case c.done || c == s.current:
		case c.started:
			s.ready = append(s.ready, c)
		default:
			c.done = true
			s.ended++
			unstarted = append(unstarted, c)
		}
	}
	s.sweep()
	return unstarted
}

// idle reports whether no coroutine is ready.
func (s *scheduler) idle() bool { return len(s.ready) == 0 }

// where returns the call stack at which the oldest parked coroutine waits.
func (s *scheduler) where() []uintptr {
	for _, c := range s.all {
		if c.started && !c.done {
			c.report()
			return c.stack
		}
	}
	return nil
}
