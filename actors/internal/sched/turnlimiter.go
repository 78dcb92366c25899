package sched

// A TurnLimiter bounds the turns in flight, from taking their messages until their appends are
// decided. The journal's queue is bounded, and a rejected append costs a replay and a delay.
// Instances therefore wait here before their turns, in the order of arrival. The caller's lock
// guards it.
type TurnLimiter[T TurnTaker] struct {
	inFlightMax int
	inFlight    int // turns
	waiting     []T
}

// A TurnTaker takes turns. TurnState returns its state at the limiter, which only the limiter
// changes.
type TurnTaker interface{ TurnState() *TurnState }

// A TurnState is the state of an instance at the turn limiter.
type TurnState uint8

const (
	turnNone TurnState = iota
	turnWaiting
	turnGranted  // its turn may begin, and it has been woken
	turnInFlight // its turn is in flight
)

// InFlight reports whether a turn is in flight.
func (s TurnState) InFlight() bool { return s == turnInFlight }

// NewTurnLimiter returns a limiter for that many turns.
func NewTurnLimiter[T TurnTaker](inFlightMax int) TurnLimiter[T] {
	return TurnLimiter[T]{inFlightMax: inFlightMax}
}

// Max returns how many turns may be in flight.
func (t *TurnLimiter[T]) Max() int { return t.inFlightMax }

// InFlight returns how many turns are in flight or granted.
func (t *TurnLimiter[T]) InFlight() int { return t.inFlight }

// Waiting returns how many instances wait for a turn.
func (t *TurnLimiter[T]) Waiting() int { return len(t.waiting) }

// Acquire begins a turn of an instance and returns true. If too many turns are in flight, it queues
// the instance and returns false; Release returns the instance later.
func (t *TurnLimiter[T]) Acquire(in T) bool {
	state := in.TurnState()
	switch {
	case *state == turnGranted:
	case *state == turnWaiting:
		return false
	case t.inFlight >= t.inFlightMax:
		*state = turnWaiting
		t.waiting = append(t.waiting, in)
		return false
	default:
		t.inFlight++
	}
	*state = turnInFlight
	return true
}

// Release ends the turn of an instance, or its wait for one. It returns the next instance, if any,
// which the caller must wake.
func (t *TurnLimiter[T]) Release(in T) (next T, woken bool) {
	var none T
	previous := *in.TurnState()
	*in.TurnState() = turnNone
	if previous != turnInFlight && previous != turnGranted {
		return none, false // if it is in waiting, it is skipped later
	}
	for len(t.waiting) > 0 {
		next, t.waiting[0] = t.waiting[0], none
		t.waiting = t.waiting[1:]
		if *next.TurnState() == turnWaiting {
			*next.TurnState() = turnGranted
			return next, true
		}
	}
	t.waiting = nil
	t.inFlight--
	return none, false
}
