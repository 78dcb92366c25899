package actors

// A turnstile bounds how many turns are on their way at once: from their messages
// until their appends are decided. The journal's queue is bounded, and what it
// refuses costs a replay and a pause; so whoever finds too many on their way
// waits here, before his turn, in the order of arrival. Guarded by the partition's
// lock.
type turnstile struct {
	turnsMax int
	turns    int // on their way
	waiting  []*instance
}

// A passage is where an instance is with regard to the turnstile.
type passage uint8

const (
	outside passage = iota
	waiting
	called // its turn may begin; it has been woken for that
	inside // its turn is on its way
)

// enter begins a turn of an instance, or has it wait: then it is woken.
func (s *turnstile) enter(in *instance) bool {
	switch {
	case in.passage == called:
	case in.passage == waiting:
		return false
	case s.turns >= s.turnsMax:
		in.passage = waiting
		s.waiting = append(s.waiting, in)
		return false
	default:
		s.turns++
	}
	in.passage = inside
	return true
}

// exit ends the turn of an instance, or its waiting for one, and returns the
// instance that is next, if any; it is to be woken.
func (s *turnstile) exit(in *instance) (next *instance) {
	was := in.passage
	in.passage = outside
	if was != inside && was != called {
		return nil // in waiting it is passed over
	}
	for len(s.waiting) > 0 {
		next, s.waiting[0] = s.waiting[0], nil
		s.waiting = s.waiting[1:]
		if next.passage == waiting {
			next.passage = called
			return next
		}
	}
	s.waiting = nil
	s.turns--
	return nil
}

// exit ends the turn of an instance at the turnstile. p.mu is held.
func (p *Partition) exit(in *instance) {
	if next := p.turnstile.exit(in); next != nil {
		p.tell(next, wakeUp{})
	}
}

// crowded is how many times TurnsMax instances may have something to do, without
// being stalled, before timers are kept back.
const crowded = 2

// busyInstances returns how many instances have something to do and can do it.
// p.mu is held.
func (p *Partition) busyInstances() int {
	return len(p.instances) - p.idle.count - p.stalls - p.code.blocked
}

// keepsTimers tells whether timers that are due are to be kept back; then the
// clock ticks when they need not be any more.
func (p *Partition) keepsTimers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeping = p.busyInstances() >= crowded*p.turnstile.turnsMax
	return p.keeping
}

// calm lets timers ring again that were kept back, when half of the crowd has gone.
// p.mu is held.
func (p *Partition) calm() {
	if p.keeping && p.busyInstances() <= crowded*p.turnstile.turnsMax/2 {
		p.keeping = false
		p.clock.tell(tick{})
	}
}
