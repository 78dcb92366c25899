package actors

import (
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay/engine"
)

const (
	// New starts are rejected if, for delayInterval, every external message has taken longer than
	// delayTarget until it was recorded.
	delayTarget   = 100 * time.Millisecond
	delayInterval = 100 * time.Millisecond
	// Answers report overload at half of the delay, the messages and the interval at which starts
	// are rejected. All three are required, so that one slow sync does not count as overload.
	overloadDelay       = delayTarget / 2
	overloadMinInFlight = shedMinInFlight / 2
	overloadInterval    = delayInterval / 2
	// delayExpiry is how long a measured delay counts if no further message is recorded.
	delayExpiry = time.Second
	// shedMinInFlight is the fewest messages in flight at which starts are rejected: a few slow
	// messages are not a queue.
	shedMinInFlight = 256
	// Bounds of BusyError.RetryAfter.
	retryAfterMin = 50 * time.Millisecond
	retryAfterMax = 2 * time.Second
	// One instance may use 1/instanceShare of the bounds for external messages in flight.
	instanceShare = 10
)

// An admission bounds the external messages in flight: those that wait for a turn or for its
// commit. A rejection here is cheap, because nothing has been done for the message yet. Internal
// messages do not count, because the open operations bound them. The partition's lock guards it.
type admission struct {
	mu         *sync.Mutex // the partition's
	config     *Config
	rejections *rejections

	inFlight    load
	latestDelay time.Duration // of the latest message
	latestAt    time.Time     // when it was recorded
	// Since when every message has taken longer than delayTarget, and longer than overloadDelay.
	// Zero if the latest message did not.
	aboveTargetSince, aboveOverloadSince time.Time
}

// A load is a number of messages and their bytes.
type load struct{ messages, bytes int }

func (l *load) add(bytes int)    { l.messages++; l.bytes += bytes }
func (l *load) remove(bytes int) { l.messages--; l.bytes -= bytes }

// fits reports whether another message fits. The first always does.
func (l *load) fits(bytes, messagesMax, bytesMax int) bool {
	return l.messages == 0 || l.messages < messagesMax && l.bytes+bytes <= bytesMax
}

// recordDelay stores the delay of a recorded message, and since when all delays exceed each limit.
func (adm *admission) recordDelay(elapsed time.Duration, now time.Time) {
	adm.latestDelay, adm.latestAt = elapsed, now
	since := func(started time.Time, limit time.Duration) time.Time {
		switch {
		case elapsed <= limit:
			return time.Time{}
		case started.IsZero():
			return now
		}
		return started
	}
	adm.aboveTargetSince, adm.aboveOverloadSince = since(adm.aboveTargetSince, delayTarget), since(adm.aboveOverloadSince, overloadDelay)
}

// isOverloaded reports whether new starts will be rejected if the load grows.
func (adm *admission) isOverloaded(now time.Time) bool {
	return adm.inFlight.messages >= overloadMinInFlight && !adm.aboveOverloadSince.IsZero() && now.Sub(adm.aboveOverloadSince) >= overloadInterval
}

// shouldShed reports whether new starts are rejected. The queue then does not get shorter, so more
// starts would only delay all messages.
func (adm *admission) shouldShed(now time.Time) bool {
	return adm.inFlight.messages >= shedMinInFlight && !adm.aboveTargetSince.IsZero() &&
		now.Sub(adm.aboveTargetSince) >= delayInterval && now.Sub(adm.latestAt) < delayExpiry
}

// retryAfter estimates the time until the messages now in flight are answered. It returns the delay
// of the latest message, limited to the range from 50 ms to 2 s.
func (adm *admission) retryAfter() time.Duration {
	return min(max(adm.latestDelay, retryAfterMin), retryAfterMax)
}

// rejection returns the error for a message that does not fit; nil if it fits. in is nil if the
// instance has no actor. The partition's lock is held.
func (adm *admission) rejection(in *instance, m *Message, bytes int) *BusyError {
	config := adm.config
	var bound Bound
	reason := ""
	switch {
	case in != nil && !in.inFlight.fits(bytes, min(config.InboxMax, max(config.InFlightMax/instanceShare, 1)), config.InFlightBytesMax/instanceShare):
		bound, reason = BoundInstance, "too many messages in flight to the instance"
	case !adm.inFlight.fits(bytes, config.InFlightMax, config.InFlightBytesMax):
		bound, reason = BoundInFlight, "too many messages in flight in the partition"
	case m.startEvent() != nil && adm.shouldShed(time.Now()):
		bound, reason = BoundDelay, "messages take too long to commit: new starts are rejected"
	default:
		return nil
	}
	adm.rejections.of(bound).Add(1)
	return &BusyError{RetryAfter: adm.retryAfter(), Bound: bound, Reason: reason}
}

// trackUndecided counts the updates of a batch that are not counted yet: they come from starts that
// were recorded without them. Every message counted before has a Done.
func (adm *admission) trackUndecided(in *instance, batch []Message) {
	adm.mu.Lock()
	defer adm.mu.Unlock()
	for i := range batch {
		if m := &batch[i]; m.Done == nil && m.Validation != engine.ValidateNone {
			adm.track(in, m, m.size())
		}
	}
}

// track counts an external message until it is answered. The partition's lock is held.
func (adm *admission) track(in *instance, m *Message, bytes int) {
	in.inFlight.add(bytes)
	adm.inFlight.add(bytes)
	start, done, query := time.Now(), m.Done, m.Query != nil
	m.Done = func(a Answer) {
		adm.mu.Lock()
		in.inFlight.remove(bytes)
		adm.inFlight.remove(bytes)
		if now := time.Now(); a.Err == nil && !query {
			adm.recordDelay(now.Sub(start), now)
			a.Overloaded = adm.isOverloaded(now)
		}
		adm.mu.Unlock()
		if done != nil {
			done(a)
		}
	}
}
