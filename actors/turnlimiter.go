package actors

// A turnLimiter bounds the turns in flight, from taking their messages until their appends are
// decided. The journal's queue is bounded, and a refused append costs a replay and a delay.
// Instances therefore wait here before their turns, in the order of arrival. The partition's lock
// guards it.
type turnLimiter struct {
	inFlightMax int
	inFlight    int // turns
	waiting     []*instance
}

// A turnState is the state of an instance at the turn limiter.
type turnState uint8

const (
	turnNone turnState = iota
	turnWaiting
	turnGranted  // its turn may begin, and it has been woken
	turnInFlight // its turn is in flight
)

// acquire begins a turn of an instance and returns true, or queues the instance, which is woken
// later.
func (s *turnLimiter) acquire(in *instance) bool {
	switch {
	case in.turnState == turnGranted:
	case in.turnState == turnWaiting:
		return false
	case s.inFlight >= s.inFlightMax:
		in.turnState = turnWaiting
		s.waiting = append(s.waiting, in)
		return false
	default:
		s.inFlight++
	}
	in.turnState = turnInFlight
	return true
}

// release ends the turn of an instance, or its wait for one. It returns the next instance, if any,
// which the caller must wake.
func (s *turnLimiter) release(in *instance) (next *instance) {
	previous := in.turnState
	in.turnState = turnNone
	if previous != turnInFlight && previous != turnGranted {
		return nil // if it is in waiting, it is skipped later
	}
	for len(s.waiting) > 0 {
		next, s.waiting[0] = s.waiting[0], nil
		s.waiting = s.waiting[1:]
		if next.turnState == turnWaiting {
			next.turnState = turnGranted
			return next
		}
	}
	s.waiting = nil
	s.inFlight--
	return nil
}

// releaseTurn ends the turn of an instance, and wakes the next one that waits. p.mu is held.
func (p *Partition) releaseTurn(in *instance) {
	if next := p.turnLimiter.release(in); next != nil {
		p.send(next, wakeUp{})
	}
}

// Due timers are deferred while deferTimersFactor*TurnsMax instances are busy and not stalled.
const deferTimersFactor = 2

// busyInstances returns how many instances have something to do and can do it. p.mu is held.
func (p *Partition) busyInstances() int {
	return len(p.instances) - p.idle.count - p.stalledCount - p.runningCode.blocked
}

// shouldDeferTimers reports whether due timers must be deferred. If so, resumeTimers sends a tick
// later.
func (p *Partition) shouldDeferTimers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timersDeferred = p.busyInstances() >= deferTimersFactor*p.turnLimiter.inFlightMax
	return p.timersDeferred
}

// resumeTimers lets deferred timers fire when at most half as many instances are busy. p.mu is
// held.
func (p *Partition) resumeTimers() {
	if p.timersDeferred && p.busyInstances() <= deferTimersFactor*p.turnLimiter.inFlightMax/2 {
		p.timersDeferred = false
		p.timers.send(tick{})
	}
}
