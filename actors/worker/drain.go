package worker

import (
	"math"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// StopAssigning makes a worker that leads no partition take no more attempts. Those that have begun
// continue. Those that wait for a slot go back to their leaders, which begin them on other workers
// at once. The channel is closed when no attempt is left: each has ended, and a leader has
// acknowledged its result or canceled it.
func (w *Worker) StopAssigning() (idle <-chan struct{}) {
	for to, message := range w.stopAssigning() {
		to.Put(message)
	}
	return w.idle
}

// stopAssigning returns the messages to the leaders.
func (w *Worker) stopAssigning() map[*leader]*clusterpb.FromWorker {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle != nil {
		return nil
	}
	w.idle = make(chan struct{})
	returned := make(map[int][]*clusterpb.AttemptID)
	for _, a := range w.queued {
		returned[a.partition] = append(returned[a.partition], a.assignment.Attempt)
		delete(w.attempts, a.key())
		a.cancel(nil) // releases its context; its body does not begin here
	}
	w.queued = nil
	messages := make(map[*leader]*clusterpb.FromWorker)
	for partition, l := range w.leaders {
		l.excess = math.MaxInt // freed slots are not offered
		messages[l] = session.StopAssigning(returned[partition]...)
	}
	w.checkIdle()
	return messages
}

// forget removes an attempt that has ended. w.mu is held.
func (w *Worker) forget(key session.AttemptKey) {
	if w.attempts[key] != nil {
		delete(w.attempts, key)
		w.checkIdle()
	}
}

// checkIdle closes the channel of StopAssigning if no attempt is left. w.mu is held.
func (w *Worker) checkIdle() {
	if w.idle == nil || len(w.attempts) > 0 {
		return
	}
	select {
	case <-w.idle:
	default:
		close(w.idle)
	}
}
