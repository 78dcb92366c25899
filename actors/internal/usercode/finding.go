package usercode

import "time"

// A finding is blocked code, for the log.
type finding struct {
	instance      string
	eventID       uint64
	since         time.Time
	abandonReason string // why it was abandoned; "" if it was not
}

// findings are the result of a check.
type findings struct {
	blocked []finding
	then    []func() // to be called without the lock
}

// add asks the owner of blocked code what to do. The watchdog's lock is held.
func (f *findings) add(c *Code, first bool) {
	found := finding{instance: c.owner.Instance(), eventID: c.Monitor.EventID(), since: c.runningSince}
	reason, then := c.owner.HandleBlocked(first)
	found.abandonReason = reason
	f.blocked = append(f.blocked, found)
	if then != nil {
		f.then = append(f.then, then)
	}
}

// handle calls what the owners have asked for, and logs blocked code with its stacks.
func (w *Watchdog) handle(f findings) {
	for _, then := range f.then {
		then()
	}
	if len(f.blocked) == 0 {
		return
	}
	stacks := codeStacks(w.actorFunction)
	for _, found := range f.blocked {
		attributes := []any{
			"instance", found.instance, "event_id", found.eventID, "blocked_for", time.Since(found.since),
			"stack", stacks[found.instance],
		}
		if found.abandonReason == "" {
			w.logger.Warn("orchestration code is blocked outside of durable calls; the instance waits for it: fix the code or terminate the instance", attributes...)
			continue
		}
		w.logger.Warn("orchestration code blocked outside of durable calls was abandoned", append(attributes, "reason", found.abandonReason)...)
	}
}
