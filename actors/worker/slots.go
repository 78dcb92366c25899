package worker

import (
	"runtime/debug"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Starter makes an actor call Run of an attempt soon. The worker's lock is held.
type Starter interface{ Start(*Attempt) }

// slots are the slots of a node. The worker's lock guards them.
type slots struct {
	max           int
	limits        map[string]int // how many bodies run at once, by name
	runningByName map[string]int // of limited activities
	used          int
	closed        bool
	// returning is how many actors have freed their slots and are reporting that. Each of them then
	// takes an attempt from ready, if there is one, because waking another actor costs more. The
	// length of ready is at most returning.
	returning int
	ready     []*Attempt
}

// hasFree reports whether an attempt of that name can begin now.
func (s *slots) hasFree(name string) bool {
	return !s.closed && s.used < s.max && s.canRun(name)
}

// canRun reports whether the limit of a name allows one more attempt.
func (s *slots) canRun(name string) bool {
	limit, limited := s.limits[name]
	return !limited || s.runningByName[name] < limit
}

// addRunning counts an attempt that has got a slot.
func (s *slots) addRunning(name string) {
	if _, limited := s.limits[name]; limited {
		s.runningByName[name]++
	}
}

// removeRunning removes from the count an attempt whose body has returned.
func (s *slots) removeRunning(name string) {
	if _, limited := s.limits[name]; limited {
		s.runningByName[name]--
	}
}

// Load returns how many of the slots are in use, and whether an attempt of that name could begin at
// once.
func (w *Worker) Load(name string) (used, slots int, free bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots.used, w.slots.max, w.slots.hasFree(name)
}

// Slots returns how many bodies may run at once, and how many more could now.
func (w *Worker) Slots() (all, free int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slots.max, max(w.slots.max-w.slots.used, 0)
}

// start starts an attempt in a free slot. w.mu is held.
func (w *Worker) start(a *Attempt) {
	w.slots.addRunning(a.Info.Name)
	w.slots.used++
	if len(w.slots.ready) < w.slots.returning {
		w.slots.ready = append(w.slots.ready, a)
	} else {
		w.config.Starter.Start(a)
	}
}

// nextQueued removes and returns the next attempt that waits for a slot and can begin, nil if
// there is none. w.mu is held.
func (w *Worker) nextQueued() *Attempt {
	if w.slots.closed {
		return nil
	}
	for i, a := range w.queued {
		if w.slots.canRun(a.Info.Name) && w.canceled[a.key()] == nil {
			w.queued = slices.Delete(w.queued, i, i+1)
			return a
		}
	}
	return nil
}

// nextInSlot returns the next attempt for an actor, nil if there is none for it. If nothing here
// waits for the slot of the last attempt, it frees the slot and lets the leaders know.
func (w *Worker) nextInSlot(done *Attempt) *Attempt {
	w.mu.Lock()
	if done.abandoned { // its slot is already freed
		w.mu.Unlock()
		return nil
	}
	w.slots.removeRunning(done.Info.Name)
	if next := w.nextQueued(); next != nil {
		w.slots.addRunning(next.Info.Name)
		w.mu.Unlock()
		return next
	}
	w.slots.used--
	w.slots.returning++
	w.mu.Unlock()
	return w.reportFreeSlot()
}

// reportFreeSlot lets the leaders know of a free slot, and returns an attempt from ready, if there
// is one.
func (w *Worker) reportFreeSlot() (next *Attempt) {
	reported := false
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.slots.returning--
		if len(w.slots.ready) == 0 {
			return
		}
		next = w.slots.ready[0]
		w.slots.ready = slices.Delete(w.slots.ready, 0, 1)
		if !reported { // the engine panicked
			w.config.Starter.Start(next)
		}
	}()
	w.config.SlotFreed()
	reported = true
	return nil
}

// abandonSlot frees a slot whose goroutine ends early, because user code called Goexit or the
// engine panicked.
func (w *Worker) abandonSlot(done *Attempt) {
	w.mu.Lock()
	if done.abandoned {
		w.mu.Unlock()
		return
	}
	next := w.releaseSlot(done)
	w.mu.Unlock()
	if next == nil {
		w.config.SlotFreed()
	}
}

// releaseSlot frees the slot of an attempt. If an attempt waits for it here, it starts and is
// returned. w.mu is held.
func (w *Worker) releaseSlot(of *Attempt) (next *Attempt) {
	w.slots.used--
	w.slots.removeRunning(of.Info.Name)
	if next = w.nextQueued(); next != nil {
		w.start(next)
	}
	return next
}

// Run runs the attempt, which has a slot, and then others that have got a slot. Each sends its
// result to the leader. Run does not return if a body calls runtime.Goexit.
func (a *Attempt) Run() {
	w, last, running := a.worker, a, a
	defer func() {
		if value := recover(); value != nil {
			last.recordFault(value)
		}
	}()
	defer func() {
		if running != nil {
			w.abandonSlot(running)
		}
	}()
	for a != nil {
		last, running = a, a
		a.runBody()
		running = nil
		a = w.nextInSlot(a)
	}
}

// recordFault counts and logs a panic of the engine.
func (a *Attempt) recordFault(value any) {
	a.worker.config.Faults.Add(1)
	a.worker.config.Logger.Error("fault in activity", "activity", a.Info.Name, "instance", a.Info.Instance, "execution", a.Info.Execution,
		"event_id", a.Info.EventID, "fault", value, "stack", string(debug.Stack()))
}

// runBody runs the body, unless the attempt is no longer wanted.
func (a *Attempt) runBody() {
	if !a.begin() {
		return
	}
	defer a.finish()
	a.worker.config.RunBody(a)
}

// finish releases the context of an attempt whose body has returned.
func (a *Attempt) finish() {
	a.cancel(nil)
	a.worker.runningBodies.Done()
}

// Close cancels all attempts, and lets no more begin. Attempts assigned later are dropped.
func (w *Worker) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots.closed = true
	for _, a := range w.attempts {
		a.cancel(replay.ErrNodeStopping)
	}
	for _, a := range w.canceled {
		if a.graceTimer != nil {
			a.graceTimer.Stop()
		}
	}
}

// Wait waits up to grace for running bodies, and reports whether all have returned. The worker must
// be closed.
func (w *Worker) Wait(grace time.Duration) bool {
	returned := make(chan struct{})
	go func() {
		w.runningBodies.Wait()
		close(returned)
	}()
	select {
	case <-returned:
		return true
	case <-time.After(grace):
		w.config.Logger.Warn("activity bodies abandoned: they did not return after their contexts were canceled", "grace", grace)
		return false
	}
}
