package engine

import "sync/atomic"

// A schedulerState is which coroutines a scheduler resumes.
type schedulerState uint8

const (
	resuming schedulerState = iota
	halted                  // none, until Replay has read the rest of the history
	evicting                // only to end them, and durable calls do nothing
)

// A scheduler runs the coroutines of one execution, one at a time, in the order in which they
// became ready. It resolves the promises that they wait for.
type scheduler struct {
	current *coroutine   // the running coroutine
	ready   []*coroutine // FIFO
	all     []*coroutine // in order of creation; sweep removes ended ones
	ended   int32        // number of ended coroutines in all
	state   schedulerState

	resolvedCount uint64 // number of promises resolved

	abandoned *atomic.Bool   // once set, no coroutine is resumed
	runningID atomic.Uintptr // ID of the goroutine resumed last; 0 if it has ended
}

// spawn adds a coroutine, which starts later in this step.
func (s *scheduler) spawn(in *scope, body func()) *coroutine {
	c := &coroutine{body: body, scope: in, runningID: &s.runningID}
	s.all = append(s.all, c)
	s.ready = append(s.ready, c)
	return c
}

// run resumes ready coroutines until none is ready, or until one crashes, which it returns.
func (s *scheduler) run() (crashed *coroutine) {
	for len(s.ready) > 0 && s.state != halted && !s.abandoned.Load() {
		c := s.ready[0]
		s.ready = dequeue(s.ready)
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

// emptyQueueCapMax bounds the capacity of an empty queue that is kept for reuse.
const emptyQueueCapMax = 64

// dequeue removes the head of a queue. It keeps the memory of a small empty queue.
func dequeue[T any](queue []*T) []*T {
	queue[0] = nil
	switch {
	case len(queue) > 1:
		return queue[1:]
	case cap(queue) > emptyQueueCapMax:
		return nil
	}
	return queue[:0]
}

// halt parks the running coroutine and keeps all others from running. The halted coroutine is the
// first to continue.
func (s *scheduler) halt() {
	c := s.current
	s.state = halted
	s.ready = append([]*coroutine{c}, s.ready...)
	c.park()
}

// evicting reports whether the coroutines are being ended, or have been, by unwindAll.
func (s *scheduler) evicting() bool { return s.state == evicting }

// resolve resolves a promise and makes its waiters ready.
func (s *scheduler) resolve(p *promise) {
	s.resolvedCount++
	p.resolvedSeq = s.resolvedCount
	for _, call := range p.onResolved {
		call()
	}
	p.onResolved = nil
	waiters := p.waiters
	p.waiters = nil
	for _, c := range waiters {
		if c.waiting != nil {
			s.wakeUp(c, c.waiting.scope.err())
		}
	}
}

// resolveErr resolves a promise with an error or nil.
func (s *scheduler) resolveErr(p *promise, err error) {
	p.err = err
	s.resolve(p)
}

// wakeWaiting wakes every coroutine that waits in a scope.
func (s *scheduler) wakeWaiting(in *scope, err error) {
	for _, c := range s.all {
		if c.waiting != nil && c.waiting.scope.within(in) {
			s.wakeUp(c, err)
		}
	}
}

// wakeUp makes a waiting coroutine ready and removes it from all promises that it waited for.
func (s *scheduler) wakeUp(c *coroutine, err error) {
	w := c.waiting
	c.waiting = nil
	w.err = err
	for _, p := range w.promises {
		p.removeWaiter(c)
	}
	s.ready = append(s.ready, c)
}

func (s *scheduler) resume(c *coroutine) {
	s.current = c
	c.resume()
	s.current = nil
}

// sweep removes ended coroutines when they are at least half of all.
func (s *scheduler) sweep() {
	if int(s.ended)*2 < len(s.all) {
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

// unwindAll unwinds every coroutine, in reverse order of creation.
func (s *scheduler) unwindAll() {
	s.state = evicting
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

// readyStarted makes every started coroutine except the running one ready, in the order of
// creation; none may be waiting. It removes and returns those that have not started.
func (s *scheduler) readyStarted() (unstarted []*coroutine) {
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

// oldestStack returns the call stack of the oldest parked coroutine.
func (s *scheduler) oldestStack() []uintptr {
	for _, c := range s.all {
		if c.started && !c.done {
			c.reportStack()
			return c.stack
		}
	}
	return nil
}
