package actors

import (
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/actors/activity"
)

// Stats are the metrics of a [System]. Counters start at 0 when the system is made.
type Stats struct {
	// Turns, Events and Messages count committed turns, their events, and the messages that they
	// took, including repeated and late ones.
	Turns    uint64
	Events   uint64
	Messages uint64
	// Activations counts instances brought into memory by replay. Evictions counts idle instances
	// evicted because too many were in memory.
	Activations uint64
	Evictions   uint64
	// Rejections counts messages rejected with ErrBusy. AppendsRejected counts appends that the
	// journal rejected.
	Rejections      Rejections
	AppendsRejected uint64
	// Stalls counts how often an instance could not continue because its code did not fit or was
	// missing. Faults counts panics of the engine.
	Stalls uint64
	Faults uint64

	// Blocked is the number of instances whose code has been blocked outside of durable calls for
	// a second. AbandonedCode is the number of calls of abandoned code that have not returned.
	Blocked       int
	AbandonedCode int
	// Live is the number of instances with an actor, in the partitions that this node leads. Idle
	// is how many of them have nothing to do.
	Live int
	Idle int
	// MessagesInFlight is the number of external messages that wait for a turn or its commit, and
	// MessageBytesInFlight their size.
	// TurnsInFlight is the number of turns whose appends are not decided. TurnsWaiting is the
	// number of instances that wait because Config.TurnsMax turns are in flight.
	MessagesInFlight     int
	MessageBytesInFlight int
	TurnsInFlight        int
	TurnsWaiting         int
	// TimersDeferred is the number of partitions that defer due timers because too many instances
	// are busy.
	TimersDeferred int
	// ActivitiesOpen is the number of activities that are scheduled and not ended.
	// ActivitiesWaiting is how many of them wait for a slot or a worker.
	ActivitiesOpen    int
	ActivitiesWaiting int
}

type counters struct {
	turns, events, messages         atomic.Uint64
	activations, evictions          atomic.Uint64
	rejections                      rejections
	appendsRejected, stalls, faults atomic.Uint64
	abandonedCode                   atomic.Int64
}

// Rejections counts rejected messages by the bound that they exceeded.
type Rejections struct{ Instance, InFlight, Delay uint64 }

type rejections struct{ instance, inFlight, delay atomic.Uint64 }

func (r *rejections) of(b Bound) *atomic.Uint64 {
	switch b {
	case BoundInstance:
		return &r.instance
	case BoundInFlight:
		return &r.inFlight
	}
	return &r.delay
}

// Stats returns the metrics of the system. partitions are those that it leads; nil elements are
// skipped.
func (s *System) Stats(partitions ...*Partition) Stats {
	c := &s.counters
	stats := Stats{
		Turns: c.turns.Load(), Events: c.events.Load(), Messages: c.messages.Load(),
		Activations: c.activations.Load(), Evictions: c.evictions.Load(),
		Rejections:      Rejections{c.rejections.instance.Load(), c.rejections.inFlight.Load(), c.rejections.delay.Load()},
		AppendsRejected: c.appendsRejected.Load(),
		Stalls:          c.stalls.Load(), Faults: c.faults.Load(),
		AbandonedCode: int(c.abandonedCode.Load()),
	}
	for _, partition := range partitions {
		if partition == nil {
			continue
		}
		partition.mu.Lock()
		stats.Live += len(partition.instances)
		stats.Idle += partition.idle.Len()
		stats.Blocked += partition.code.Blocked()
		stats.MessagesInFlight += partition.admission.inFlight.messages
		stats.MessageBytesInFlight += partition.admission.inFlight.bytes
		stats.TurnsInFlight += partition.turnLimiter.InFlight()
		stats.TurnsWaiting += partition.turnLimiter.Waiting()
		if partition.timersDeferred {
			stats.TimersDeferred++
		}
		partition.mu.Unlock()
	}
	stats.ActivitiesOpen, stats.ActivitiesWaiting = s.activities.Tasks()
	return stats
}

// ActivityCounts counts the attempts that a node has begun since it was started.
type ActivityCounts struct {
	// Local and Remote count, on the leader, attempts in its own slots and on workers.
	Local  uint64
	Remote uint64
	// Reassigned counts, among these, attempts begun again because their worker was lost.
	Reassigned uint64
	// AsWorker counts attempts for leaders on other nodes.
	AsWorker uint64
}

// ActivityCounts returns how many attempts have begun.
func (s *System) ActivityCounts() ActivityCounts {
	c := s.activities.Counts()
	return ActivityCounts{Local: c.Local, Remote: c.Remote, Reassigned: c.Reassigned, AsWorker: s.worker.Begun()}
}

// ActivityUse is what the activities of this node use, by name. Callers must not change the maps.
type ActivityUse struct {
	Counts    map[string]activity.NameCounts // of the partitions that it leads
	Paused    map[string]bool
	Limits    map[string]int // bodies at once on this node
	Slots     int            // bodies of all names at once on this node
	FreeSlots int
}

// ActivityUse returns what the activities use now. Its cost depends on the number of their names.
func (s *System) ActivityUse() ActivityUse {
	use := ActivityUse{Limits: s.config.ActivityLimits}
	use.Counts, use.Paused = s.activities.CountByName()
	use.Slots, use.FreeSlots = s.worker.Slots()
	return use
}

// Slots returns how many bodies may run at once on this node, and how many more could now.
func (s *System) Slots() (all, free int) { return s.worker.Slots() }

// Bounds are the bounds of the load of one partition; see [Config].
type Bounds struct{ InFlight, InFlightBytes, Turns, Resident int }

// Bounds returns the bounds of the load of one partition.
func (s *System) Bounds() Bounds {
	c := &s.config
	return Bounds{c.InFlightMax, c.InFlightBytesMax, c.TurnsMax, c.ResidentMax}
}
