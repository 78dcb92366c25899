package actors

import (
	"errors"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/usercode"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An instance's actor runs user code: orchestrations, queries, payload codecs, and the deferred
// functions of ended coroutines. All of it should return at once. Package usercode watches it. If
// it does not return, this file limits the damage:
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

// codeActorFunction is the name, in stacks, of the function in which an actor runs code.
const codeActorFunction = "actors.(*instance).receive"

// errCodeBlocked is why the new actor of a blocked instance runs no code. The actor records the
// start, or takes only a termination until the termination is committed.
var errCodeBlocked = errors.New("the code of the instance is blocked outside of durable calls")

// abandonedCode is the panic value that unwinds an actor whose code was abandoned.
type abandonedCode struct{}

// Instance implements usercode.Owner.
func (in *instance) Instance() string { return in.id }

// enterCode records that the actor begins to run user code. If ending is true, that code is the
// deferred functions of coroutines that the actor ends. p.mu is held.
func (in *instance) enterCode(ending bool) {
	in.codeStarting, in.codeEnding = false, ending
	in.recordingStart = in.recordingStart && ending
	in.partition.code.Enter(&in.code, in)
}

// setRecordingStart says that the turn is to record a start whose code cannot run.
func (in *instance) setRecordingStart() {
	in.partition.mu.Lock()
	defer in.partition.mu.Unlock()
	in.recordingStart = true
}

// leaveCode records that the code has returned. It returns how long the code was blocked and
// whether it was abandoned meanwhile.
func (in *instance) leaveCode() (blocked time.Duration, abandoned bool) {
	p := in.partition
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.code.Blocked() {
		p.system.dispatcher.Reacquire()
	}
	return p.code.Leave(&in.code)
}

// finishCode is called after the code has returned. It panics if the code was abandoned.
func (in *instance) finishCode() {
	usercode.Unlabel()
	blocked, abandoned := in.leaveCode()
	if abandoned {
		panic(abandonedCode{})
	}
	if blocked > 0 {
		in.partition.logger.Info("blocked code resumed", "instance", in.id, "execution", in.executionNumber, "after", blocked)
		in.partition.conditions.clearHung(in.id)
	}
}

// HandleBlocked implements usercode.Owner.
func (in *instance) HandleBlocked(first bool) (abandonReason string, then func()) {
	p := in.partition
	if first {
		p.releaseTurn(in)
		p.system.dispatcher.ReleaseBlocked()
		p.resumeTimers()
	}
	switch {
	case p.closed:
		waiting := p.abandonCode(in)
		return "the partition is closing", func() {
			for _, m := range waiting {
				m.resolve(Answer{Err: ErrStopped})
			}
		}
	case in.codeStarting, in.recordingStart:
		p.replaceActor(in)
		return "its start is recorded first, then the code restarts", nil
	case slices.ContainsFunc(in.unhandledMessages(), in.endsRun):
		p.replaceActor(in)
		return "the instance is terminated", nil
	case in.codeEnding:
		p.replaceActor(in)
		return "its coroutines are being ended and nothing waits for them", nil
	case first:
		return "", func() { p.conditions.recordHung(in.id) }
	}
	return "", nil
}

// endsRun reports whether a message ends the run of a blocked instance: a termination, or a start
// or copy that replaces the run. A repetition of the start that began the run waits for the code.
func (in *instance) endsRun(m Message) bool {
	if !isTermination(m) || !isStart(m) && m.Copy == nil {
		return isTermination(m)
	}
	meta, ok := in.partition.journal.Instance(in.id)
	if m.Copy != nil { // a fork onto an existing instance is refused
		return ok && m.Copy.Source == in.id && meta.Status == journalpb.Status_STATUS_RUNNING && meta.RequestId != m.Copy.RequestId
	}
	return ok && m.replaces(meta)
}

// unhandledMessages returns the batch of a blocked instance and its inbox. p.mu is held.
func (in *instance) unhandledMessages() []Message {
	if in.openTurn == nil {
		return slices.Concat(in.held, in.inbox)
	}
	return slices.Concat(in.held, in.openTurn.batch, in.inbox)
}

// abandonCode drops the actor of an instance whose code is blocked, and returns its unanswered
// messages. p.mu is held.
func (p *Partition) abandonCode(in *instance) []Message {
	waiting := in.unhandledMessages()
	in.inbox, in.held = nil, nil
	p.code.Abandon(&in.code)
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
	next.startOnly = in.codeStarting || in.recordingStart
	next.replacements = in.replacements
	if stalled == nil && !next.startOnly && slices.ContainsFunc(waiting, in.endsRun) {
		stalled = errCodeBlocked
	}
	p.stalls.set(next, stalled)
	p.send(next, wakeUp{})
}

// onForeignCall is called when a goroutine that the instance's code started itself makes a durable
// call. It runs on that goroutine. The nudge makes the instance take a turn, which stalls it.
func (in *instance) onForeignCall(m *replay.Mismatch) {
	in.partition.logger.Warn("durable call on a goroutine that the orchestration started itself: the goroutine ends, the instance stalls",
		"instance", in.id, "execution", m.Execution, "event_id", m.EventID, "source", m.Source)
	in.partition.sender.nudge(in.id)
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
