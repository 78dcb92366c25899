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
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// jumpThreshold is the shortest duration that passes without a leader if no activity runs. A
// leader's clock reads the time every few seconds, which would make a virtual year slow.
const jumpThreshold = time.Minute

// closeGrace is the virtual time in which activities must return after the end of their context.
const closeGrace = 10 * 365 * 24 * time.Hour

// A node is a system of actors with a journal and no peers. Only the goroutine of the bubble
// may call its methods.
type node struct {
	journal   *journal
	barrier   *barrier
	order     *order
	system    *actors.System
	partition atomic.Pointer[actors.Partition]

	replayEvery  int // 0: never
	commits      int
	updateWaits  bool              // an update waits, perhaps for an attempt; it would end with the leadership
	evictNext    string            // the instance to evict in the next step, or ""
	replayedUpTo map[string]uint64 // the last event replayed, by instance
}

// start starts the actors. An error is a bug in this package.
func (n *node) start(registry *engine.Registry, logger *slog.Logger) error {
	n.system = actors.NewSystem(actors.Config{
		Registry: registry, Logger: logger, GracePeriod: closeGrace, AttemptContext: tokenSigner.WithContext(context.Background()),
	})
	if err := n.becomeLeader(); err != nil {
		return err
	}
	synctest.Wait()
	return nil
}

// partitionConfig returns the configuration of the only partition of a cluster with the newest
// protocol. The incarnation of a run does not depend on other starts or on the time: its text
// is "1-1", unless the ID was used before.
func (n *node) partitionConfig() actors.PartitionConfig {
	return actors.PartitionConfig{
		HasIncarnations: func() bool { return true },
		NewIncarnation:  func(_ string, execution uint64) uint64 { return journalpb.NewIncarnation(1, execution) },
		SendMessage:     n.sendMessage,
	}
}

// sendMessage sends a message between instances when its turn has come.
func (n *node) sendMessage(ctx context.Context, m *actors.OutgoingMessage) error {
	h := &heldItem{instance: m.From.Instance, execution: m.From.Execution, eventID: m.From.EventId, what: "message to " + m.Instance}
	defer context.AfterFunc(ctx, func() { n.barrier.release(h) })()
	n.barrier.await(ctx, h)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return n.partition.Load().SendMessage(ctx, m)
}

// becomeLeader opens the partition in a new epoch.
func (n *node) becomeLeader() error {
	epoch, err := n.journal.beginEpoch()
	if err != nil {
		return err
	}
	n.partition.Store(n.system.LeadPartition(context.Background(), n.partitionConfig(), n.journal, epoch))
	return nil
}

// deliver sends a message to an instance. Sending the answer must not block. Bodies of
// activities may call it too.
func (n *node) deliver(id string, m actors.Message, answers chan<- actors.Answer) {
	m.Done = func(a actors.Answer) { answers <- a }
	n.partition.Load().Deliver(id, m)
}

// step admits one arrival. The node must be idle at this moment of virtual time. It returns the
// commit, if the arrival was an append, and whether there was an arrival.
//
// The test replays the commit before the next step. The next step evicts the instance, because the
// author's deferred functions must not run concurrently with a replay.
func (n *node) step() (c *commit, more bool, err error) {
	if n.evictNext != "" {
		n.partition.Load().EvictIdle(n.evictNext)
		n.evictNext = ""
		synctest.Wait()
	}
	a, err := n.nextArrival()
	switch {
	case err != nil || a == nil:
		return nil, false, err
	case a.held != nil:
		n.barrier.release(a.held)
		return nil, true, nil
	}
	if err := n.journal.commit(a.proposal); err != nil {
		return nil, false, fmt.Errorf("append to %s: %w", a.proposal.append.Instance, err)
	}
	synctest.Wait()
	n.commits++
	if a.commit.replay = n.shouldReplay(a.commit); a.commit.replay {
		n.evictNext = a.commit.instance
	}
	return a.commit, true, nil
}

// A history of up to replayEachAppendMax events is replayed after each append. A longer one is
// replayed when it has grown by one part in replayGrowthDivisor; otherwise the cost of a test would
// be quadratic in its length.
const (
	replayEachAppendMax = 500
	replayGrowthDivisor = 50
)

// shouldReplay reports whether to replay and evict the instance of a commit now.
func (n *node) shouldReplay(c *commit) bool {
	if n.replayEvery == 0 || n.commits%n.replayEvery != 0 {
		return false
	}
	events := c.segments[len(c.segments)-1].events
	last, before := events[len(events)-1].EventId, n.replayedUpTo[c.instance]
	if last > before && last > replayEachAppendMax && last-before < last/replayGrowthDivisor {
		return false
	}
	if n.replayedUpTo == nil {
		n.replayedUpTo = make(map[string]uint64)
	}
	n.replayedUpTo[c.instance] = last
	return true
}

// advance lets time pass until something happens, or until the given time.
func (n *node) advance(until time.Time) error {
	if time.Until(until) > jumpThreshold && !n.updateWaits && !n.inspect().activityRunning {
		n.partition.Load().Close()
		time.Sleep(time.Until(until))
		return n.becomeLeader()
	}
	select { // drop an outdated signal
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

// A nodeState describes a node that is idle at a moment.
type nodeState struct {
	nextWakeUp      time.Time // when the next timer, backoff or timeout is due; zero if none is
	activityRunning bool      // the body of an activity runs
	overdue         bool      // something due has not happened
}

// inspect examines the open operations.
func (n *node) inspect() nodeState {
	now := time.Now()
	var s nodeState
	for op := range n.journal.OpenOperations() {
		switch int(op.Kind) {
		case journalpb.TypeTimerCreated:
			s.addWakeUp(now, time.Unix(0, op.FireAt))
			s.overdue = s.overdue || op.FireAt <= now.UnixNano()
		case journalpb.TypeActivityScheduled:
			n.inspectActivity(op, now, &s)
		case journalpb.TypeSubOrchestrationScheduled:
			child, ok := n.journal.Instance(op.Child)
			s.overdue = s.overdue || !ok || child.Status != journalpb.Status_STATUS_RUNNING
		case journalpb.TypeMessageSent:
			s.overdue = true
		}
	}
	for range n.journal.Unbegun() {
		s.overdue = true
	}
	return s
}

// addWakeUp adds a time at which something is due.
func (s *nodeState) addWakeUp(now, at time.Time) {
	if at.After(now) && (s.nextWakeUp.IsZero() || at.Before(s.nextWakeUp)) {
		s.nextWakeUp = at
	}
}

// inspectActivity adds the state of an open activity and, if it does not run, the times of its
// backoff and timeouts. A time that does not apply causes at most a needless wake-up.
func (n *node) inspectActivity(op *journalpb.Operation, now time.Time, s *nodeState) {
	switch n.partition.Load().AttemptsOf(op.Ref).State {
	case activity.BackingOff, activity.Pending, activity.WaitingForTag, activity.WaitingForCode:
	case activity.Ending:
		s.overdue = true
	default:
		s.activityRunning = true
		return
	}
	event, err := n.journal.Event(op.Ref.Instance, op.Ref.Execution, op.Ref.EventId)
	if err != nil {
		return // the next reader reports the error
	}
	options := event.GetActivityScheduled().GetOptions()
	s.addWakeUp(now, time.Unix(0, op.Attempt.GetNextAt()))
	for _, limit := range []int64{options.GetScheduleToStart(), options.GetScheduleToClose()} {
		s.addWakeUp(now, time.Unix(0, event.Timestamp+limit))
	}
	s.addWakeUp(now, time.Unix(0, op.Attempt.GetStartedAt()+options.GetStartToClose()))
}

// stalledInstance returns a stalled instance and the reason, or a nil reason if none is
// stalled.
func (n *node) stalledInstance() (id string, reason error) {
	for known := range n.journal.Instances() {
		if reason := n.partition.Load().StallReason(known.Instance); reason != nil {
			return known.Instance, reason
		}
	}
	return "", nil
}

// close ends the node: it rejects appends, releases all attempts and stops the actors.
func (n *node) close() {
	n.journal.close()
	n.barrier.releaseAll()
	n.partition.Load().Close()
	n.system.Close()
	// The actor library keeps a goroutine for 1 s after a message to a stopped actor.
	time.Sleep(2 * time.Second)
}

// A commit is a committed append.
type commit struct {
	instance string
	segments []segment
	replay   bool // replay the history up to here
}

// A segment is the part of an append that belongs to one execution.
type segment struct {
	execution uint64
	events    []*journalpb.Event
}

// events returns all events in order.
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
