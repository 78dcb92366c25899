package actors

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/actors/internal/usercode"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// One turn takes at most turnMax messages, and stops after turnBytesMax bytes of payload.
const (
	turnMax      = 1024
	turnBytesMax = 1 << 20
)

// The messages to an instance's actor.
type (
	wakeUp        struct{}            // messages wait in the inbox
	appendDecided struct{ err error } // the append of the pending turn was committed or rejected
	stopRequest   struct{}            // evict and stop
)

// appendCommitted is the most frequent message, so it is allocated once.
var appendCommitted any = appendDecided{}

// An instance is the actor of one live instance. It owns the history and the cursor of the
// instance. It takes one turn at a time, the next only after the last is committed.
type instance struct {
	id        string
	partition *Partition
	pid       *actor.PID
	mailbox   *sched.Mailbox
	code      usercode.Code

	// The partition's lock guards the fields below.
	inbox       []Message
	inboxArray  [1]Message // avoids an allocation for one waiting message
	held        heldUpdates
	stallReason error
	inFlight    *load // external messages in flight: &ownInFlight, or that of a replaced actor
	ownInFlight load
	awake       bool // the actor has something to do, or is stalled
	// What the code does: it begins an execution from a start in the batch, or the actor ends
	// coroutines and nothing waits for the outcome.
	codeStarting, codeEnding bool
	// recordingStart says that the turn is to record a start whose code cannot run.
	recordingStart bool
	turnState      sched.TurnState
	idleLinks      sched.IdleLinks[*instance]

	// Only the actor uses the fields below.
	execution       *engine.Execution
	executionNumber uint64 // of the execution
	// incarnation is that of the run that the execution belongs to; see assignIncarnation.
	incarnation  uint64
	batchMax     int   // how many messages the next turn may take
	startOnly    bool  // the next turn records a start without running the code
	isFirstStep  bool  // no code has run on the latest execution, which this actor has begun
	openTurn     *turn // its messages can still be put back into the inbox
	pendingTurn  *turn // its append is not decided
	replacements replacements
	stopping     bool
	stopped      bool
	// conditionProposed says that a condition was proposed since the last turn that succeeded.
	conditionProposed bool
}

func newInstance(p *Partition, id string) *instance {
	in := &instance{id: id, partition: p, batchMax: turnMax}
	in.inbox, in.inFlight = in.inboxArray[:0], &in.ownInFlight
	p.liveActors.Add(1)
	in.code.Monitor.OnForeignCall(in.onForeignCall)
	in.pid, in.mailbox = p.system.spawn(in.receive)
	return in
}

// TurnState implements sched.TurnTaker.
func (in *instance) TurnState() *sched.TurnState { return &in.turnState }

// IdleLinks implements sched.Idler.
func (in *instance) IdleLinks() *sched.IdleLinks[*instance] { return &in.idleLinks }

func (in *instance) receive(ctx actor.Context) {
	defer in.recoverPanic(ctx)
	if in.stopped {
		return
	}
	switch message := ctx.Message().(type) {
	case wakeUp:
		in.takeTurns()
	case appendDecided:
		in.finishAppend(message.err)
		in.takeTurns()
	case stopRequest:
		in.stopping = true
	default:
		return
	}
	if in.stopping && in.pendingTurn == nil && !in.stopped {
		in.stop(ctx, ErrStopped)
	}
}

// recoverPanic stops only this actor after a panic of the engine.
func (in *instance) recoverPanic(ctx actor.Context) {
	value := recover()
	if value == nil {
		return
	}
	// The panic may have left the labels of user code.
	usercode.Unlabel()
	if _, abandoned := in.leaveCode(); abandoned {
		in.discardReturnedCode()
		ctx.Stop(ctx.Self())
		return
	}
	in.partition.system.counters.faults.Add(1)
	fault := &FaultError{Instance: in.id, Value: value, Stack: string(debug.Stack())}
	in.partition.logger.Error("fault in instance", "instance", in.id, "execution", in.executionNumber, "fault", value, "stack", fault.Stack)
	// Detach first: messages that senders deliver after these answers must reach a new actor.
	var waiting []Message
	if in.openTurn != nil {
		waiting = in.openTurn.batch
	}
	for _, m := range slices.Concat(waiting, in.partition.detach(in)) {
		m.resolve(Answer{Err: fault})
	}
	if in.pendingTurn != nil {
		in.pendingTurn.resolve(fault)
	}
	in.openTurn, in.pendingTurn = nil, nil
	if !in.stopped {
		defer in.recoverPanic(ctx) // of the code that stop ends
		in.stop(ctx, fault)
	}
}

// stop ends the actor. Waiting messages are answered with err.
func (in *instance) stop(ctx actor.Context, err error) {
	in.stopped = true
	in.evict()
	for _, m := range in.partition.detach(in) {
		m.resolve(Answer{Err: err})
	}
	ctx.Stop(ctx.Self())
	in.partition.liveActors.Done()
}

// evict ends the coroutines; the history suffices to restore them. Their deferred functions may
// block, so callers do everything else first.
func (in *instance) evict() {
	x := in.execution
	if x == nil {
		return
	}
	in.execution = nil
	in.partition.mu.Lock()
	in.enterCode(true)
	in.partition.mu.Unlock()
	in.code.Label(in.id)
	x.Evict()
	in.finishCode()
}

// takeTurns takes turns until one waits for the journal, or nothing is left to do.
func (in *instance) takeTurns() {
	for in.pendingTurn == nil && !in.stopping {
		t := in.newTurn()
		in.openTurn = t
		if !in.partition.takeBatch(in, t) {
			in.openTurn = nil
			t.release()
			return
		}
		if err := in.runTurn(t); err != nil {
			in.failTurn(t, err)
		}
	}
}

// runTurn runs a turn and proposes its append. On error, no message of the batch has been
// answered.
func (in *instance) runTurn(t *turn) error {
	switch {
	case t.batch[0].Copy != nil:
		if !t.terminateOnly {
			in.finishCode() // it runs none
		}
		t.copyHistory(t.batch[0].Copy)
		return nil
	case t.terminateOnly:
		return in.terminate(t)
	}
	in.code.Label(in.id)
	err := in.deliverBatch(t)
	in.finishCode()
	if err != nil {
		return in.recordStart(t, err)
	}
	t.clearCondition(in)
	in.propose(t)
	return nil
}

// clearCondition removes the recorded condition of an instance that has taken a turn without
// events. Events remove it, too.
func (t *turn) clearCondition(in *instance) {
	meta := t.meta
	if meta == nil && in.conditionProposed {
		meta, _ = in.partition.journal.Instance(in.id)
	}
	if len(t.events) == 0 && meta != nil && (in.conditionProposed || meta.Condition != nil) {
		in.partition.conditions.record(meta, nil)
	}
	in.conditionProposed = false
}

// deliverBatch passes the batch of a turn to the code.
func (in *instance) deliverBatch(t *turn) error {
	in.partition.system.counters.messages.Add(uint64(len(t.batch)))
	t.refuseEvents()
	refused := len(t.replies)
	if refused == len(t.batch) {
		return nil
	}
	meta, err := in.loadExecution()
	if err != nil {
		return err
	}
	t.meta = meta
	for i, next := 0, 0; i < len(t.batch); i++ {
		if next < refused && t.isReplyTo(next, &t.batch[i]) {
			next++
			continue
		}
		t.route(&t.batch[i])
	}
	if in.startOnly {
		in.startOnly = false
		if len(t.accepted) > 0 && t.accepted[0].startEvent() != nil {
			return errCodeBlocked
		}
	}
	if len(t.messages) > 0 {
		outcome, err := t.run()
		if err != nil {
			return err
		}
		t.events, t.successor = outcome.Events, in.execution.Successor()
		if !in.execution.Ended() {
			t.exceededLimit = in.partition.system.limits.Load().exceededLimit(in.execution.Size())
		}
		for i, disposition := range outcome.Dispositions {
			if disposition == engine.Postponed {
				t.postponed = append(t.postponed, *t.accepted[i])
				continue
			}
			t.addReply(t.accepted[i], disposition, in.execution.Refusal(i))
		}
		t.postponed = slices.Concat(t.postponed, t.withdrawn, t.later)
	}
	return nil
}

// terminate ends an instance that is stalled, or whose code is blocked, without running code. The
// turn's only message asks for that: a termination, or a start that is to replace the run.
func (in *instance) terminate(t *turn) error {
	m := &t.batch[0]
	meta, ok := in.partition.journal.Instance(in.id)
	if !ok {
		in.partition.unstall(in)
		return ErrNotFound
	}
	in.executionNumber, in.incarnation = meta.Execution, meta.Incarnation
	switch {
	case meta.Status != journalpb.Status_STATUS_RUNNING: // it has ended, and deferred functions are blocked
		in.unblock()
		if isStart(*m) {
			t.postponed = append(t.postponed, *m)
		} else {
			t.reply(m, Answer{Err: ErrEnded})
		}
	case m.isForOtherRun(meta.Incarnation):
		in.unblock() // the code restarts
		t.reply(m, Answer{Err: ErrEnded})
	case isStart(*m) && !m.replaces(meta):
		in.unblock() // the code restarts
		t.answerWithoutRunning(m, meta)
	default:
		event := m.termination()
		event.EventId, event.Timestamp = meta.LastEventId+1, max(in.partition.now().UnixNano(), meta.UpdatedAt)
		t.events = []*journalpb.Event{event}
		if isStart(*m) {
			t.postponed = append(t.postponed, *m)
		} else {
			t.addReply(m, engine.Recorded, nil)
		}
	}
	in.propose(t)
	return nil
}

// recordStart records the start of an instance whose code cannot take its first turn: the code is
// missing, blocked, or has made a durable call where it must not. Without a record the instance
// would be invisible and could not be ended. The rest of the batch waits for the next turn.
func (in *instance) recordStart(t *turn, err error) error {
	var noCode *replay.NotRegisteredError
	var mismatch *replay.Mismatch
	if len(t.accepted) == 0 || t.accepted[0].startEvent() == nil {
		return err
	}
	if !errors.As(err, &noCode) && !errors.As(err, &mismatch) && !errors.Is(err, errCodeBlocked) {
		return err
	}
	in.setRecordingStart()
	in.evict()
	in.openTurn = nil
	t.accepted[0].withholdUpdate()
	var later []Message
	for _, m := range t.accepted[1:] {
		later = append(later, *m)
	}
	later = append(later, t.later...)
	in.partition.putBack(in, 0, later, nil)
	first := t.accepted[0].Event
	started := &journalpb.Event{EventId: 1, Timestamp: in.partition.now().UnixNano(), Origin: first.Origin, Body: first.Body}
	t.events = []*journalpb.Event{started}
	t.addReply(t.accepted[0], engine.Recorded, nil)
	t.startOnly = true
	in.propose(t)
	return nil
}

// loadExecution brings the latest execution into memory, if the instance has a running one that is
// not loaded. It returns the journal's metadata if it had to read it; nil if there is none.
func (in *instance) loadExecution() (meta *journalpb.Instance, err error) {
	if in.execution != nil {
		return nil, nil
	}
	meta, ok := in.partition.journal.Instance(in.id)
	if !ok {
		return nil, nil
	}
	if meta.Status != journalpb.Status_STATUS_RUNNING {
		return meta, nil
	}
	in.beginExecution(meta.Execution, meta.Incarnation)
	in.partition.system.counters.activations.Add(1)
	if in.isFirstStep && meta.LastEventId == 1 {
		in.execution.FirstStep()
	}
	in.isFirstStep = false
	return meta, in.execution.Replay(in.partition.journal.Events(in.id, meta.Execution, 1))
}

func (in *instance) beginExecution(number, incarnation uint64) {
	config := in.partition.system.config
	in.executionNumber, in.incarnation = number, incarnation
	in.execution = engine.NewExecution(in.id, number, config.Registry, config.Logger)
	if in.partition.runs.hasIncarnations() {
		in.execution.CountAllPayloadsNext()
	}
	in.execution.SetAppliedIndex(in.partition.runs.appliedIndex())
	in.execution.SetMonitor(&in.code.Monitor)
}

// failTurn undoes a turn. If the code is missing or does not fit, the instance stalls until a node
// with other code runs it. After any other error, the messages of the batch are answered with it.
func (in *instance) failTurn(t *turn, err error) {
	defer in.evict()
	in.openTurn = nil
	batch := t.answerRefused()
	var mismatch *replay.Mismatch
	var noCode *replay.NotRegisteredError
	if errors.As(err, &mismatch) || errors.As(err, &noCode) {
		in.partition.system.counters.stalls.Add(1)
		in.partition.logStalled(in, mismatch, err)
		in.stall(batch, err)
		return
	}
	in.partition.logger.Error("turn failed, its messages are answered with the error", "instance", in.id, "execution", in.executionNumber, "error", err)
	for i := range batch {
		batch[i].resolve(Answer{Err: fmt.Errorf("turn: %w", err)})
	}
}

// stall makes the instance wait for code that fits, keeps its messages, and records the condition.
// An instance that only retried, and has no other messages, is evicted: its recorded condition
// suffices.
func (in *instance) stall(batch []Message, reason error) {
	others, condition := resolveRetries(batch, reason), conditionOf(reason)
	meta, ok := in.partition.journal.Instance(in.id)
	if len(others) > 0 || meta.GetCondition() == nil {
		in.partition.putBack(in, 0, others, reason)
	}
	if ok && condition != nil && !proto.Equal(condition, meta.Condition) {
		in.conditionProposed = true
		in.partition.conditions.record(meta, condition)
	}
}

// propose appends the events of a turn. A turn without events ends at once.
func (in *instance) propose(t *turn) {
	in.openTurn, in.pendingTurn = nil, t
	if t.copied != nil {
		in.partition.journal.CopyHistory(t.copied, t.onDecided)
		return
	}
	if len(t.events) == 0 {
		in.finishAppend(nil)
		return
	}
	in.addFirstIndexes(t.events)
	bytes, err := t.encode()
	if err == nil {
		err = t.checkRunOptions()
	}
	maximum := in.partition.system.config.AppendBytesMax
	if bytes > maximum && len(t.batch) > 1 {
		in.retryHalfBatch(t.batch)
		return
	}
	if bytes > maximum && t.batch[0].Update != nil {
		t.batch[0].withholdUpdate()
		t.batch[0].Update = nil // its sender delivers it again
		repeatTurn(in, t.batch)
		return
	}
	if err == nil && bytes > maximum && t.failWithoutRetry() {
		bytes, err = t.encode()
	}
	switch {
	case err != nil:
		in.finishAppend(err)
	case bytes > maximum:
		in.terminateForLimit(t.sizeReason(bytes, maximum))
	case t.exceededLimit != "":
		in.terminateForLimit(t.exceededLimit)
	default:
		t.append()
	}
}

// addFirstIndexes adds to the messages that the events send what their receivers' partitions have
// recorded before.
func (in *instance) addFirstIndexes(events []*journalpb.Event) {
	applied := in.partition.config.AppliedIndexOf
	if applied == nil {
		return
	}
	for _, event := range events {
		if sent := event.GetMessageSent(); sent != nil {
			sent.FirstIndex = applied(sent.Instance)
		}
	}
}

func (in *instance) appendPending() {
	if _, err := in.pendingTurn.encode(); err != nil {
		in.finishAppend(err)
		return
	}
	in.pendingTurn.append()
}

// retryHalfBatch undoes a turn whose events exceed one append because its batch was too large. The
// next turn takes half as many messages.
func (in *instance) retryHalfBatch(batch []Message) {
	in.batchMax = len(batch) / 2
	repeatTurn(in, batch)
}

// repeatTurn undoes a turn and puts its messages back into the inbox.
func repeatTurn(in *instance, batch []Message) {
	in.pendingTurn = nil
	in.partition.putBack(in, 0, batch, nil)
	in.evict()
}

// terminateForLimit ends an instance whose code exceeds a limit, because it cannot make progress.
func (in *instance) terminateForLimit(reason string) {
	first := in.pendingTurn.events[0]
	terminated := &journalpb.Event{EventId: first.EventId, Timestamp: first.Timestamp, Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}
	if first.GetOrchestrationStarted() != nil {
		terminated.EventId++
		in.pendingTurn.events = []*journalpb.Event{first, terminated}
	} else {
		in.pendingTurn.events = []*journalpb.Event{terminated}
		in.pendingTurn.overrideErr = ErrEnded // the message is not recorded
	}
	in.pendingTurn.successor = nil
	in.appendPending()
}

// finishAppend ends the pending turn. If the append was rejected, it discards the turn's events and
// the coroutines.
func (in *instance) finishAppend(err error) {
	ended := err != nil
	if err != nil {
		in.partition.logRejectedAppend(in.id, in.executionNumber, err)
		if in.pendingTurn.copied != nil {
			in.unblock() // the code restarts
		}
	} else {
		if len(in.pendingTurn.events) > 0 {
			in.batchMax = min(2*in.batchMax, turnMax)
		}
		in.partition.system.observeCommitted(in.id, in.executionNumber, in.pendingTurn.events)
		in.releaseEffects(in.pendingTurn.events)
		in.replacements.remember(in.pendingTurn)
		ended = in.afterCommit()
	}
	t := in.pendingTurn
	t.resolve(err)
	in.pendingTurn = nil
	t.release()
	if ended {
		in.evict()
	}
}

// afterCommit updates the instance after its turn is committed, and reports whether the execution
// has ended.
func (in *instance) afterCommit() (ended bool) {
	if later := in.pendingTurn.postponed; len(later) > 0 {
		in.pendingTurn.postponed = nil
		for i := range later {
			later[i].markReplaced()
		}
		in.partition.admission.trackUndecided(in, later)
		in.partition.putBack(in, in.pendingTurn.takenFrom, later, nil)
	}
	if held := in.pendingTurn.held; len(held) > 0 {
		in.pendingTurn.held = nil
		in.partition.mu.Lock()
		in.held = append(in.held, held...)
		in.partition.mu.Unlock()
	}
	last := in.pendingTurn.events
	if len(last) > 0 && journalpb.IsTerminal(last[len(last)-1].TypeNumber()) {
		ended = true
		in.partition.unstall(in)
	}
	if in.pendingTurn.copied != nil {
		// As under a new leader: before its first turn, the open operations are recovered.
		in.partition.recovery.recoverInstance(slices.Collect(in.partition.journal.InstanceOperations(in.id)))
		in.partition.sender.nudge(in.id)
		return true
	}
	if in.pendingTurn.successor != nil || in.pendingTurn.startOnly {
		// The next execution takes its first turn when it is loaded. If its code is missing or
		// does not fit, the instance stalls then, as it would under the next leader.
		in.isFirstStep = true
		in.partition.sender.nudge(in.id)
	}
	return ended
}
