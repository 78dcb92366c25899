package store

import "time"

// A Pace is that of work in the background for which there is time: it rests between its
// parts. Replicas have the same to write at the same moment, and what waits behind it
// for a processor may be a heartbeat, which must not be late.
type Pace struct {
	rested time.Time // when the last rest had ended
}

const (
	// Work rests when it has gone on for so long, and PaceRest times as long as that, but
	// not longer at once than PaceRestMax.
	PaceWork    = 2 * time.Millisecond
	PaceRest    = 7
	PaceRestMax = 50 * time.Millisecond
)

// StartPace returns the pace of work that begins.
func StartPace() Pace { return Pace{time.Now()} }

// Rest rests if it is time to. share is asked then, and returns for which part of a
// whole rest there is time, from 0 to 1. A rest ends early when one of two channels is
// closed, each of which may be nil.
func (p *Pace) Rest(share func() float64, end, otherEnd <-chan struct{}) {
	worked := time.Since(p.rested)
	if worked < PaceWork {
		return
	}
	if while := min(time.Duration(PaceRest*share()*float64(worked)), PaceRestMax); while > 0 {
		timer := time.NewTimer(while)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-end:
		case <-otherEnd:
		}
	}
	p.rested = time.Now()
}
