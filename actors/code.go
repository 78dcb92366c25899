package actors

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An instance's actor runs user code: orchestrations, queries, payload codecs, and the deferred
// functions of ended coroutines. All of it should return at once. If it does not, this file limits
// the effects:
//
//   - After about a second the partition logs the stack and counts the instance as blocked. The
//     instance releases its slots, so that other instances are not slowed down.
//   - Code that blocks in the first turn of an instance is abandoned once: the start is recorded
//     without it, and the code begins again. From then on the instance is visible and can be
//     terminated.
//   - The partition abandons the code when the partition closes, when the instance is
//     terminated, or when nothing waits for the outcome. It drops the actor and does not wait for
//     the actor's goroutines. If the code ever returns, the actor ends its coroutines and stops.
//     It appends nothing and answers no message.
const (
	// codeCheckInterval is how often the partition checks running code, while any runs.
	codeCheckInterval = 500 * time.Millisecond
	// codeBlockedChecks is the check at which code counts as blocked: after 1 to 1.5 s.
	codeBlockedChecks = 3
	// codeRewarnChecks is the number of checks until the warning is repeated: 10 min.
	codeRewarnChecks = 1200
)

// codeLabel is the profiler label of goroutines that run code of an instance. It identifies their
// stacks here and in the application's profiles.
const codeLabel = "tenuto.instance"

// errCodeBlocked is why the new actor of a blocked instance runs no code. The actor records the
// start, or takes only a termination until the termination is committed.
var errCodeBlocked = errors.New("the code of the instance is blocked outside of durable calls")

// codeState says whether an instance's actor is running user code. The partition's lock guards all
// fields except monitor and labels.
type codeState struct {
	running      bool
	starting     bool // the turn begins an execution from a start in its batch
	ending       bool // the actor is ending coroutines; nothing waits for the outcome
	checks       int  // how many checks found it running
	runningSince time.Time
	blocked      bool // it has run for too long
	abandoned    bool // permanently: the actor must have no further effect
	// Neighbors in the partition's list.
	previous, next *instance

	monitor replay.Monitor
	labels  context.Context // carries codeLabel; made at the first use
}

// A codeList holds the instances of a partition whose code is running. The partition's lock guards
// it.
type codeList struct {
	first           *instance
	blocked         int // how many of the instances are blocked
	checksScheduled bool
	timer           *time.Timer    // runs Partition.checkCode
	checking        sync.WaitGroup // 1 while the timer is scheduled or checkCode runs
}

// enterCode records that an instance's actor begins to run code. p.mu is held.
func (p *Partition) enterCode(in *instance, ending bool) {
	c := &in.code
	c.running, c.starting, c.ending, c.checks = true, false, ending, 0
	c.next = p.runningCode.first
	if c.next != nil {
		c.next.code.previous = in
	}
	p.runningCode.first = in
	if p.runningCode.checksScheduled {
		return
	}
	p.runningCode.checksScheduled = true
	p.runningCode.checking.Add(1)
	if p.runningCode.timer == nil {
		p.runningCode.timer = time.AfterFunc(codeCheckInterval, p.checkCode)
	} else {
		p.runningCode.timer.Reset(codeCheckInterval)
	}
}

// leaveCode records that the code has returned. It returns how long the code was blocked and
// whether it was abandoned meanwhile.
func (p *Partition) leaveCode(in *instance) (blocked time.Duration, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &in.code
	switch {
	case c.abandoned:
		return 0, true
	case c.blocked:
		p.system.dispatcher.Reacquire()
		blocked = time.Since(c.runningSince)
	}
	p.unlinkCode(in)
	return blocked, false
}

// unlinkCode removes an instance from the list. p.mu is held.
func (p *Partition) unlinkCode(in *instance) {
	c := &in.code
	if !c.running {
		return
	}
	if c.next != nil {
		c.next.code.previous = c.previous
	}
	if c.previous != nil {
		c.previous.code.next = c.next
	} else {
		p.runningCode.first = c.next
	}
	if c.blocked {
		p.runningCode.blocked--
	}
	c.running, c.blocked, c.previous, c.next = false, false, nil, nil
}

// abandonedCode is the panic value that unwinds an actor whose code was abandoned.
type abandonedCode struct{}

// labelGoroutine labels the actor's goroutine. Goroutines that the code starts inherit the label.
func (in *instance) labelGoroutine() {
	if in.code.labels == nil {
		in.code.labels = pprof.WithLabels(context.Background(), pprof.Labels(codeLabel, in.id))
	}
	pprof.SetGoroutineLabels(in.code.labels)
}

// finishCode is called after the code has returned. It panics if the code was abandoned.
func (in *instance) finishCode() {
	pprof.SetGoroutineLabels(context.Background())
	blocked, left := in.partition.leaveCode(in)
	if left {
		panic(abandonedCode{})
	}
	if blocked > 0 {
		in.partition.logger.Info("blocked code resumed", "instance", in.id, "execution", in.executionNumber, "after", blocked)
	}
}

// A codeReport is a log record about blocked code.
type codeReport struct {
	in            *instance
	eventID       uint64
	since         time.Time
	abandonReason string // why it was abandoned; "" if it was not
}

// checkCode checks running code, and reschedules itself while any runs.
func (p *Partition) checkCode() {
	var reports []codeReport
	var waiting []Message
	p.mu.Lock()
	for in := p.runningCode.first; in != nil; {
		next := in.code.next
		report, messages := p.checkInstanceCode(in)
		if report != nil {
			reports = append(reports, *report)
		}
		waiting = append(waiting, messages...)
		in = next
	}
	p.mu.Unlock()
	for _, m := range waiting {
		m.resolve(Answer{Err: ErrStopped})
	}
	p.logBlockedCode(reports)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runningCode.first != nil {
		p.runningCode.timer.Reset(codeCheckInterval)
		return
	}
	p.runningCode.checksScheduled = false
	p.runningCode.checking.Done()
}

// checkInstanceCode checks one instance. The caller must answer the returned messages with
// ErrStopped. p.mu is held.
func (p *Partition) checkInstanceCode(in *instance) (report *codeReport, waiting []Message) {
	c := &in.code
	c.checks++
	if c.checks == 1 {
		c.runningSince = time.Now()
	}
	if c.checks < codeBlockedChecks || c.checks > codeBlockedChecks && (c.checks-codeBlockedChecks)%codeRewarnChecks != 0 {
		return nil, nil
	}
	report = &codeReport{in: in, eventID: c.monitor.EventID(), since: c.runningSince}
	if !c.blocked {
		c.blocked = true
		p.runningCode.blocked++
		p.releaseTurn(in)
		p.system.dispatcher.ReleaseBlocked()
	}
	switch {
	case p.closed:
		report.abandonReason = "the partition is closing"
		return report, p.abandonCode(in)
	case c.starting:
		report.abandonReason = "its start is recorded first, then the code restarts"
		p.replaceActor(in)
	case slices.ContainsFunc(in.unhandledMessages(), isTermination):
		report.abandonReason = "the instance is terminated"
		p.replaceActor(in)
	case c.ending:
		report.abandonReason = "its coroutines are being ended and nothing waits for them"
		p.replaceActor(in)
	}
	return report, nil
}

// unhandledMessages returns the batch of a blocked instance and its inbox. p.mu is held.
func (in *instance) unhandledMessages() []Message {
	if in.openTurn == nil {
		return in.inbox
	}
	return slices.Concat(in.openTurn.batch, in.inbox)
}

// abandonCode drops the actor of an instance whose code is blocked, and returns its unanswered
// messages. p.mu is held.
func (p *Partition) abandonCode(in *instance) []Message {
	waiting := in.unhandledMessages()
	in.inbox = nil
	p.unlinkCode(in)
	in.code.abandoned = true
	in.code.monitor.Abandon()
	p.forget(in)
	p.system.dispatcher.Abandon()
	p.system.counters.abandonedCode.Add(1)
	p.liveActors.Done()
	return waiting
}

// replaceActor abandons the blocked code of an instance and gives its messages to a new actor. The
// new actor first records a start, or takes a termination, without running the code. p.mu is held.
func (p *Partition) replaceActor(in *instance) {
	current, stalled := p.instances[in.id] == in, in.stallReason
	waiting := p.abandonCode(in)
	if !current || len(waiting) == 0 && stalled == nil {
		return // an evicted instance has no messages
	}
	next := newInstance(p, in.id)
	p.instances[in.id] = next
	next.inbox, next.inFlight, next.batchMax, next.awake = waiting, in.inFlight, in.batchMax, true
	next.startOnly = in.code.starting
	if stalled == nil && !next.startOnly && slices.ContainsFunc(waiting, isTermination) {
		stalled = errCodeBlocked
	}
	p.setStalled(next, stalled)
	p.send(next, wakeUp{})
}

// onForeignCall is called when a goroutine that the instance's code started itself makes a durable
// call. It runs on that goroutine. The nudge makes the instance take a turn, which stalls it.
func (in *instance) onForeignCall(m *replay.Mismatch) {
	in.partition.logger.Warn("durable call on a goroutine that the orchestration started itself: the goroutine ends, the instance stalls",
		"instance", in.id, "execution", m.Execution, "event_id", m.EventID, "source", m.Source)
	in.partition.nudge(in.id)
}

// discardReturnedCode stops an actor whose abandoned code has returned, and discards the code's
// results.
func (in *instance) discardReturnedCode() {
	in.stopped = true
	in.mailbox.Abandon()
	if in.execution != nil {
		in.execution.Evict()
		in.execution = nil
	}
	in.partition.system.counters.abandonedCode.Add(-1)
	in.partition.logger.Info("abandoned code returned, its results are discarded", "instance", in.id, "execution", in.executionNumber)
}

// abandonBlockedCode abandons all blocked code when the partition closes. A later check abandons
// code that blocks afterwards. p.mu is held.
func (p *Partition) abandonBlockedCode() (reports []codeReport, waiting []Message) {
	for in := p.runningCode.first; in != nil; {
		next := in.code.next
		if in.code.blocked {
			reports = append(reports, codeReport{in, in.code.monitor.EventID(), in.code.runningSince, "the partition is closing"})
			waiting = append(waiting, p.abandonCode(in)...)
		}
		in = next
	}
	return reports, waiting
}

// stopCodeChecks returns after the last check. All actors must have ended or been abandoned.
func (p *Partition) stopCodeChecks() {
	p.mu.Lock()
	if p.runningCode.checksScheduled && p.runningCode.timer.Stop() {
		p.runningCode.checksScheduled = false
		p.runningCode.checking.Done()
	}
	p.mu.Unlock()
	p.runningCode.checking.Wait()
}

// logBlockedCode logs blocked code with its stacks.
func (p *Partition) logBlockedCode(reports []codeReport) {
	if len(reports) == 0 {
		return
	}
	stacks := codeStacks()
	for _, r := range reports {
		attributes := []any{
			"instance", r.in.id, "event_id", r.eventID, "for", time.Since(r.since),
			"stack", stacks[r.in.id],
		}
		if r.abandonReason == "" {
			p.logger.Warn("orchestration code is blocked outside of durable calls; the instance waits for it", attributes...)
			continue
		}
		p.logger.Warn("orchestration code blocked outside of durable calls was abandoned", append(attributes, "because", r.abandonReason)...)
	}
}
