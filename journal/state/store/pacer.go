package store

import "time"

// Pacer slows down background work: it pauses the work at intervals. All replicas do the same
// background work at about the same moment. It must not delay a heartbeat that waits for a
// processor.
type Pacer struct {
	resumed time.Time // when the last pause ended
}

const (
	// PacerWork is how long work runs before it pauses: for PacerPauseRatio times as long as it has
	// worked, but at most for PacerMaxPause at once.
	PacerWork       = 2 * time.Millisecond
	PacerPauseRatio = 7
	PacerMaxPause   = 50 * time.Millisecond
)

// StartPacer returns the pacer of work that begins now.
func StartPacer() Pacer { return Pacer{time.Now()} }

// Pause pauses if a pause is due. It then calls share, which returns the share of a full pause to
// take, from 0 to 1. The pause ends early when one of two channels is closed; either may be nil.
func (p *Pacer) Pause(share func() float64, end, otherEnd <-chan struct{}) {
	worked := time.Since(p.resumed)
	if worked < PacerWork {
		return
	}
	if pause := min(time.Duration(PacerPauseRatio*share()*float64(worked)), PacerMaxPause); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-end:
		case <-otherEnd:
		}
	}
	p.resumed = time.Now()
}
