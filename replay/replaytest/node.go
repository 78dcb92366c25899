package replaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// jumpFrom is from when on time passes without a leader if nothing is running:
// the clock of the actors looks at the time every few seconds, which would make
// a year long.
const jumpFrom = time.Minute

// closeGrace is how much virtual time activities get that do not heed the end of
// their context.
const closeGrace = 10 * 365 * 24 * time.Hour

// A node is a system of actors over a journal, with nobody else to talk to. All
// its methods are for the goroutine of the bubble.
type node struct {
	journal   *journal
	gate      *gate
	order     *order
	system    *actors.System
	partition atomic.Pointer[actors.Partition]

	replayEvery int // 0: never
	commits     int
	due         string            // the instance to be evicted next; "" for none
	replayed    map[string]uint64 // up to which event, by instance
}

// begin starts the actors. An error is a bug in this package.
func (n *node) begin(registry *replay.Registry, logger *slog.Logger) error {
	n.system = actors.NewSystem(actors.Config{Registry: registry, Logger: logger, Grace: closeGrace})
	if err := n.lead(); err != nil {
		return err
	}
	synctest.Wait()
	return nil
}

// place is that of the only partition of a cluster that has come to the newest protocol. The
// incarnation of a run does not depend on what else is started, or on the time: its text is
// "1-1", unless the ID was used before.
var place = actors.Place{
	Incarnations: func() bool { return true },
	Incarnation:  func(_ string, execution uint64) uint64 { return journalpb.NewIncarnation(1, execution) },
}

// lead opens the partition in a new epoch.
func (n *node) lead() error {
	epoch, err := n.journal.reign()
	if err != nil {
		return err
	}
	n.partition.Store(n.system.LeadAt(context.Background(), place, n.journal, epoch))
	return nil
}

// deliver gives a message to an instance and has the answer sent, which must not
// block. Bodies of activities may call it too.
func (n *node) deliver(id string, m actors.Message, answers chan<- actors.Answer) {
	m.Done = func(a actors.Answer) { answers <- a }
	n.partition.Load().Deliver(id, m)
}

// step lets in one of those who wait, when nothing else happens at this moment of
// virtual time. It returns what was committed, if that was an append, and whether
// there was anything to do.
//
// The test replays what was committed before it asks for the next step. Instances
// leave memory only then: their deferred functions are the author's, and what they
// change must not be changed by two at a time.
func (n *node) step() (c *commit, more bool, err error) {
	if n.due != "" {
		n.partition.Load().EvictIdle(n.due)
		n.due = ""
		synctest.Wait()
	}
	a, err := n.next()
	switch {
	case err != nil || a == nil:
		return nil, false, err
	case a.attempt != nil:
		n.gate.let(a.attempt)
		return nil, true, nil
	}
	if err := n.journal.commit(a.proposal); err != nil {
		return nil, false, fmt.Errorf("append to %s: %w", a.proposal.append.Instance, err)
	}
	synctest.Wait()
	n.commits++
	if a.commit.replay = n.isDue(a.commit); a.commit.replay {
		n.due = a.commit.instance
	}
	return a.commit, true, nil
}

// A history of fewer events than eachAppendMax is replayed after each append, a longer one
// when it has grown by one part in growthParts: else the cost of a test would be the square
// of the length.
const (
	eachAppendMax = 500
	growthParts   = 50
)

// isDue tells whether the instance of a commit is to be replayed and evicted now.
func (n *node) isDue(c *commit) bool {
	if n.replayEvery == 0 || n.commits%n.replayEvery != 0 {
		return false
	}
	events := c.segments[len(c.segments)-1].events
	last, before := events[len(events)-1].EventId, n.replayed[c.instance]
	if last > before && last > eachAppendMax && last-before < last/growthParts {
		return false
	}
	if n.replayed == nil {
		n.replayed = make(map[string]uint64)
	}
	n.replayed[c.instance] = last
	return true
}

// pass lets time pass until something has happened, or until that time.
func (n *node) pass(until time.Time) error {
	if time.Until(until) > jumpFrom && !n.survey().working {
		n.partition.Load().Close()
		time.Sleep(time.Until(until))
		return n.lead()
	}
	select { // what is left of the past
	case <-n.journal.changed:
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-n.journal.changed:
	case <-timer.C:
	}
	return nil
}

// A survey is what a node is like when nothing happens any more at a moment.
type survey struct {
	wakeUp  time.Time // when something is due by the journal; zero if nothing is
	working bool      // a body of an activity runs
	overdue bool      // something should have happened and has not
}

// survey goes through what is open.
func (n *node) survey() survey {
	now := time.Now()
	var s survey
	for op := range n.journal.Open() {
		switch int(op.Kind) {
		case journalpb.ArmTimerCreated:
			s.consider(now, time.Unix(0, op.FireAt))
			s.overdue = s.overdue || op.FireAt <= now.UnixNano()
		case journalpb.ArmActivityScheduled:
			n.considerActivity(op, now, &s)
		case journalpb.ArmSubOrchestrationScheduled:
			child, ok := n.journal.Instance(op.Child)
			s.overdue = s.overdue || !ok || child.Status != journalpb.Status_STATUS_RUNNING
		}
	}
	for range n.journal.Unbegun() {
		s.overdue = true
	}
	return s
}

// consider takes a time into account at which something is due.
func (s *survey) consider(now, at time.Time) {
	if at.After(now) && (s.wakeUp.IsZero() || at.Before(s.wakeUp)) {
		s.wakeUp = at
	}
}

// considerActivity takes into account what an open activity is doing, and if it
// does not run, when it is looked at again. A time that does not apply does no
// harm.
func (n *node) considerActivity(op *journalpb.Operation, now time.Time, s *survey) {
	switch n.partition.Load().Activity(op.Ref) {
	case actors.ActivityPausing, actors.ActivityPending, actors.ActivityWaitingForTag, actors.ActivityWaitingForCode:
	case actors.ActivityEnding:
		s.overdue = true
	default:
		s.working = true
		return
	}
	event, err := n.journal.Event(op.Ref.Instance, op.Ref.Execution, op.Ref.EventId)
	if err != nil {
		return // it is read again by whoever needs it, and says so
	}
	options := event.GetActivityScheduled().GetOptions()
	s.consider(now, time.Unix(0, op.Attempt.GetNextAt()))
	for _, limit := range []int64{options.GetScheduleToStart(), options.GetScheduleToClose()} {
		s.consider(now, time.Unix(0, event.Timestamp+limit))
	}
	s.consider(now, time.Unix(0, op.Attempt.GetStartedAt()+options.GetStartToClose()))
}

// stalled returns why an instance cannot go on, nil if each can.
func (n *node) stalled() (id string, reason error) {
	for known := range n.journal.Instances() {
		if reason := n.partition.Load().Stalled(known.Instance); reason != nil {
			return known.Instance, reason
		}
	}
	return "", nil
}

// close ends everything, whatever it is doing.
func (n *node) close() {
	n.journal.close()
	n.gate.letAll()
	n.partition.Load().Close()
	n.system.Close()
	// After a message to an actor that has ended, the library keeps a goroutine
	// for a second.
	time.Sleep(2 * time.Second)
}

// A commit is an append that was committed.
type commit struct {
	instance string
	segments []segment
	replay   bool // the history so far is to be replayed
}

// A segment is the part of an append that belongs to one execution.
type segment struct {
	execution uint64
	events    []*journalpb.Event
}

// events yields all events in order.
func (c *commit) events() []*journalpb.Event {
	var all []*journalpb.Event
	for _, s := range c.segments {
		all = append(all, s.events...)
	}
	return all
}

func newCommit(a *journalpb.Append) (*commit, error) {
	c := &commit{instance: a.Instance}
	for _, encoded := range a.Segments {
		s := segment{execution: encoded.Execution}
		for _, data := range encoded.Events {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(data, event); err != nil {
				return nil, errors.Join(errors.New("decode event"), err)
			}
			s.events = append(s.events, event)
		}
		c.segments = append(c.segments, s)
	}
	return c, nil
}
