package actors

import "time"

const (
	// delayTarget is how long a message from outside may take until it is recorded.
	// New starts are refused when all have taken longer for delayWindow.
	delayTarget = 100 * time.Millisecond
	delayWindow = 100 * time.Millisecond
	// Those who send starts are told that they are to be fewer at half of the
	// delay, and of the messages, at which they would be refused, when all messages have
	// taken that long for half of delayWindow: a queue is meant, and not a slow sync.
	crowdedDelay  = delayTarget / 2
	crowdedFrom   = shedFrom / 2
	crowdedWindow = delayWindow / 2
	// delayForgotten is after how long without any message that says nothing more.
	delayForgotten = time.Second
	// shedFrom is how many messages must be on their way at least: a few that take
	// long are no queue.
	shedFrom = 256
	// Bounds of BusyError.RetryAfter.
	retryAfterMin = 50 * time.Millisecond
	retryAfterMax = 2 * time.Second
	// instanceShare is the part of the window that one instance may fill.
	instanceShare = 10
)

// A window is the messages from outside that are on their way: they wait for
// their turn, or for its commit. It is what keeps a flood at the door, where a
// refusal costs next to nothing. What comes from inside does not count: it is
// bounded by what is open, and goes before. Guarded by the partition's lock.
type window struct {
	held  load
	delay time.Duration // of the latest message
	seen  time.Time     // when it was recorded
	// Since when every message has taken longer than delayTarget, and than crowdedDelay;
	// zero: the last one has not.
	above, late time.Time
}

// A load is how many messages there are, and how many bytes they take.
type load struct{ messages, bytes int }

func (l *load) add(bytes int)    { l.messages++; l.bytes += bytes }
func (l *load) remove(bytes int) { l.messages--; l.bytes -= bytes }

// fits tells whether another message fits; one fits always.
func (l *load) fits(bytes, messagesMax, bytesMax int) bool {
	return l.messages == 0 || l.messages < messagesMax && l.bytes+bytes <= bytesMax
}

// observe takes notice of how long a message has taken.
func (w *window) observe(took time.Duration, now time.Time) {
	w.delay, w.seen = took, now
	since := func(begun time.Time, limit time.Duration) time.Time {
		switch {
		case took <= limit:
			return time.Time{}
		case begun.IsZero():
			return now
		}
		return begun
	}
	w.above, w.late = since(w.above, delayTarget), since(w.late, crowdedDelay)
}

// crowded tells whether new starts will be refused soon, if no fewer of them come.
func (w *window) crowded(now time.Time) bool {
	return w.held.messages >= crowdedFrom && !w.late.IsZero() && now.Sub(w.late) >= crowdedWindow
}

// sheds tells whether new starts are refused: the queue does not get shorter, so
// taking more would only make all of them late.
func (w *window) sheds(now time.Time) bool {
	return w.held.messages >= shedFrom && !w.above.IsZero() &&
		now.Sub(w.above) >= delayWindow && now.Sub(w.seen) < delayForgotten
}

// retryAfter says when to try again: when what is there now will be done.
func (w *window) retryAfter() time.Duration {
	return min(max(w.delay, retryAfterMin), retryAfterMax)
}

// busy refuses a message for an instance that may have no actor; nil if it fits.
// p.mu is held.
func (p *Partition) busy(in *instance, m *Message, bytes int) *BusyError {
	config, w := &p.system.config, &p.window
	var bound Bound
	reason := ""
	switch {
	case in != nil && !in.held.fits(bytes, min(config.InboxMax, max(config.WindowMax/instanceShare, 1)), config.WindowBytesMax/instanceShare):
		bound, reason = BoundInstance, "too many messages are on their way to the instance"
	case !w.held.fits(bytes, config.WindowMax, config.WindowBytesMax):
		bound, reason = BoundWindow, "too many messages are on their way"
	case m.started() != nil && w.sheds(time.Now()):
		bound, reason = BoundDelay, "what is there already takes too long: no new starts"
	default:
		return nil
	}
	p.system.counters.rejections.of(bound).Add(1)
	return &BusyError{RetryAfter: w.retryAfter(), Bound: bound, Reason: reason}
}

// hold counts a message from outside until it is answered. p.mu is held.
func (p *Partition) hold(in *instance, m *Message, bytes int) {
	in.held.add(bytes)
	p.window.held.add(bytes)
	begin, done, query := time.Now(), m.Done, m.Query != nil
	m.Done = func(a Answer) {
		p.mu.Lock()
		in.held.remove(bytes)
		p.window.held.remove(bytes)
		if now := time.Now(); a.Err == nil && !query {
			p.window.observe(now.Sub(begin), now)
			a.Crowded = p.window.crowded(now)
		}
		p.mu.Unlock()
		if done != nil {
			done(a)
		}
	}
}
