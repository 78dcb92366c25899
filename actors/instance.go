package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// One turn takes at most turnMax messages, and no more after turnBytesMax bytes
// of payload.
const (
	turnMax      = 1024
	turnBytesMax = 1 << 20
)

// What an instance's actor is told.
type (
	wakeUp   struct{}            // messages wait in the inbox
	appended struct{ err error } // the append of the last turn was decided
	leave    struct{}            // drop everything and stop
)

// committed is what is told most: it is made once.
var committed any = appended{}

// An instance is the actor of one live instance. It owns the history's end and
// the cursor: one turn at a time, and the next only when the last is committed.
type instance struct {
	id        string
	partition *Partition
	pid       *actor.PID
	mailbox   *mailbox
	code      codeState

	// Guarded by the partition's lock.
	inbox   []Message
	room    [1]Message // for as many messages as mostly wait
	stalled error
	held    *load // from outside, on their way; counted, unless an actor before had one
	counted load
	awake   bool // the actor has something to do, or is stalled
	passage passage
	idle    bool // then its neighbours among those that are:
	older   *instance
	newer   *instance

	// The actor's own.
	execution *replay.Execution
	number    uint64 // of the execution
	// Of the run that the execution belongs to; see incarnate.
	incarnation uint64
	batchMax    int   // how many the next turn takes at most
	startsAlone bool  // a start in the next turn is recorded without running the code
	forming     *turn // has messages from the inbox, and may still be taken back
	pending     *turn // what is being appended
	leaving     bool
	gone        bool
}

// newInstance starts the actor of an instance.
func newInstance(p *Partition, id string) *instance {
	in := &instance{id: id, partition: p, batchMax: turnMax}
	in.inbox, in.held = in.room[:0], &in.counted
	p.live.Add(1)
	in.code.watch.OnStray(in.strayed)
	in.pid, in.mailbox = p.system.spawn(in.receive)
	return in
}

func (in *instance) receive(ctx actor.Context) {
	defer in.contain(ctx)
	if in.gone {
		return
	}
	switch message := ctx.Message().(type) {
	case wakeUp:
		in.run()
	case appended:
		in.commit(message.err)
		in.run()
	case leave:
		in.leaving = true
	default:
		return
	}
	if in.leaving && in.pending == nil && !in.gone {
		in.stop(ctx, ErrStopped)
	}
}

// contain turns a panic of the engine into the end of this actor alone.
func (in *instance) contain(ctx actor.Context) {
	value := recover()
	if value == nil {
		return
	}
	// The engine may have panicked where code runs.
	pprof.SetGoroutineLabels(context.Background())
	if _, left := in.partition.leaveCode(in); left {
		in.returned()
		ctx.Stop(ctx.Self())
		return
	}
	in.partition.system.counters.faults.Add(1)
	fault := &FaultError{Instance: in.id, Value: value, Stack: string(debug.Stack())}
	in.partition.logger.Error("fault in instance", "instance", in.id, "execution", in.number, "fault", value, "stack", fault.Stack)
	// Detached first: whoever has this answer reaches a new actor.
	var waiting []Message
	if in.forming != nil {
		waiting = in.forming.batch
	}
	for _, m := range slices.Concat(waiting, in.partition.detach(in)) {
		m.answer(Answer{Err: fault})
	}
	if in.pending != nil {
		in.pending.answer(fault)
	}
	in.forming, in.pending = nil, nil
	if !in.gone {
		in.stop(ctx, fault)
	}
}

// stop ends the actor. Messages that wait are answered with err.
func (in *instance) stop(ctx actor.Context, err error) {
	in.gone = true
	in.drop()
	for _, m := range in.partition.detach(in) {
		m.answer(Answer{Err: err})
	}
	ctx.Stop(ctx.Self())
	in.partition.live.Done()
}

// drop ends the coroutines. The history is all that is needed to bring them
// back. Their deferred functions may block: whatever has to be done all the same
// comes first.
func (in *instance) drop() {
	x := in.execution
	if x == nil {
		return
	}
	in.execution = nil
	in.partition.mu.Lock()
	in.partition.enterCode(in, true)
	in.partition.mu.Unlock()
	in.runsCode()
	x.Drop()
	in.codeDone()
}

// run takes turns until one has to wait for the journal, or nothing is left to
// do.
func (in *instance) run() {
	for in.pending == nil && !in.leaving {
		t := in.newTurn()
		in.forming = t
		if !in.partition.take(in, t) {
			in.forming = nil
			t.release()
			return
		}
		if err := in.turn(t); err != nil {
			in.fail(t, err)
		}
	}
}

// turn takes the batch of a turn to the journal. On error nothing of it was answered.
func (in *instance) turn(t *turn) error {
	if t.terminates {
		return in.terminate(t)
	}
	in.runsCode()
	err := in.deliver(t)
	in.codeDone()
	if err != nil {
		return in.startAlone(t, err)
	}
	if t.known.GetCondition() != nil && len(t.events) == 0 {
		in.partition.recordCondition(t.known, nil)
	}
	in.propose(t)
	return nil
}

// deliver has the code take the batch of a turn.
func (in *instance) deliver(t *turn) error {
	known, err := in.load()
	if err != nil {
		return err
	}
	in.partition.system.counters.messages.Add(uint64(len(t.batch)))
	t.known = known
	for i := range t.batch {
		t.sort(&t.batch[i])
	}
	if in.startsAlone {
		in.startsAlone = false
		if len(t.accepted) > 0 && t.accepted[0].started() != nil {
			return errCodeBlocked
		}
	}
	if len(t.messages) > 0 {
		in.execution.SetApplied(in.partition.applied())
		outcome, err := in.execution.Turn(in.partition.now().Shown(), t.messages)
		if err != nil {
			return err
		}
		t.events, t.successor = outcome.Events, in.execution.Successor()
		if !in.execution.Ended() {
			t.exceeds = in.partition.system.config.Limits.exceeded(in.execution.Size())
		}
		for i, disposition := range outcome.Dispositions {
			if disposition == replay.Postponed {
				t.postponed = append(t.postponed, *t.accepted[i])
				continue
			}
			t.outcome(t.accepted[i], disposition)
		}
	}
	return nil
}

// terminate ends a stalled instance, as the one message of the turn asks. No code
// has to run for it.
func (in *instance) terminate(t *turn) error {
	known, ok := in.partition.journal.Instance(in.id)
	if !ok {
		return ErrNotFound
	}
	in.number, in.incarnation = known.Execution, known.Incarnation
	t.events = []*journalpb.Event{{
		EventId:   known.LastEventId + 1,
		Timestamp: max(in.partition.now().UnixNano(), known.UpdatedAt),
		Body:      t.batch[0].Event.Body,
	}}
	t.outcome(&t.batch[0], replay.Recorded)
	in.forming, in.pending = nil, t
	in.appendPending()
	return nil
}

// startAlone records the start of an instance whose code cannot take its first turn: this node
// has none, or it is blocked, or it has made a durable call where it must not. Without a record
// nobody could see the instance or end it. What came in the same batch waits for the next turn.
func (in *instance) startAlone(t *turn, err error) error {
	var noCode *replay.NoCodeError
	var mismatch *replay.Mismatch
	if len(t.accepted) == 0 || t.accepted[0].started() == nil {
		return err
	}
	if !errors.As(err, &noCode) && !errors.As(err, &mismatch) && !errors.Is(err, errCodeBlocked) {
		return err
	}
	in.drop()
	in.forming = nil
	var later []Message
	for _, m := range t.accepted[1:] {
		later = append(later, *m)
	}
	in.partition.putBack(in, later, nil)
	started := &journalpb.Event{EventId: 1, Timestamp: in.partition.now().UnixNano(), Body: t.messages[0].Event.Body}
	t.events = []*journalpb.Event{started}
	t.outcome(t.accepted[0], replay.Recorded)
	t.startsAlone = true
	in.propose(t)
	return nil
}

// load brings the latest execution into memory, if the instance has one that
// runs and it is not there. It returns what the journal knows of the instance, if
// it had to ask; nil for nothing.
func (in *instance) load() (known *journalpb.Instance, err error) {
	if in.execution != nil {
		return nil, nil
	}
	known, ok := in.partition.journal.Instance(in.id)
	if !ok {
		return nil, nil
	}
	if known.Status != journalpb.Status_STATUS_RUNNING {
		return known, nil
	}
	in.begin(known.Execution, known.Incarnation)
	in.partition.system.counters.activations.Add(1)
	return known, in.execution.Replay(in.partition.journal.Events(in.id, known.Execution, 1))
}

func (in *instance) begin(number, incarnation uint64) {
	config := in.partition.system.config
	in.number, in.incarnation = number, incarnation
	in.execution = replay.NewExecution(in.id, number, config.Registry, config.Logger)
	if in.partition.incarnations() {
		in.execution.CountAllNext()
	}
	in.execution.SetApplied(in.partition.applied())
	in.execution.SetWatch(&in.code.watch)
}

// fail takes a turn back. Code that does not fit stalls the instance until a
// node with other code takes it up; any other error is the batch's answer.
func (in *instance) fail(t *turn, err error) {
	defer in.drop()
	in.forming = nil
	var mismatch *replay.Mismatch
	var noCode *replay.NoCodeError
	if errors.As(err, &mismatch) || errors.As(err, &noCode) {
		in.partition.system.counters.stalls.Add(1)
		in.partition.stalled(in, mismatch, err)
		in.stall(t.batch, err)
		return
	}
	in.partition.logger.Error("turn", "instance", in.id, "execution", in.number, "error", err)
	for i := range t.batch {
		t.batch[i].answer(Answer{Err: fmt.Errorf("turn: %w", err)})
	}
}

// stall has the instance wait for code that fits, with the messages of its batch, and
// that recorded. One that has only tried again, and has nothing to wait with, leaves
// memory: what is recorded of it says enough.
func (in *instance) stall(batch []Message, reason error) {
	others := answerRetries(batch, reason)
	known, ok := in.partition.journal.Instance(in.id)
	if len(others) == 0 && known.GetCondition() != nil {
		return
	}
	in.partition.putBack(in, others, reason)
	if condition := conditionOf(reason); ok && condition != nil {
		in.partition.recordCondition(known, condition)
	}
}

// propose appends the events of a turn. With none there is nothing to wait for.
func (in *instance) propose(t *turn) {
	in.forming, in.pending = nil, t
	if len(t.events) == 0 {
		in.commit(nil)
		return
	}
	bytes, err := t.encode()
	tooLarge := bytes > in.partition.system.config.AppendBytesMax
	if tooLarge && len(t.batch) > 1 {
		in.halve(t.batch)
		return
	}
	switch {
	case err != nil:
		in.commit(err)
	case tooLarge:
		in.overflow(fmt.Sprintf("one step asks for %d bytes of events, the limit is %d: schedule less at once, or pass references",
			bytes, in.partition.system.config.AppendBytesMax))
	case t.exceeds != "":
		in.overflow(t.exceeds)
	default:
		t.append()
	}
}

// appendPending hands the events of the pending turn to the journal.
func (in *instance) appendPending() {
	if _, err := in.pending.encode(); err != nil {
		in.commit(err)
		return
	}
	in.pending.append()
}

// halve takes back a turn in which the code asked for more than one append
// holds, because there were too many messages to answer to. Half as many are
// tried next.
func (in *instance) halve(batch []Message) {
	in.pending = nil
	in.batchMax = len(batch) / 2
	in.partition.putBack(in, batch, nil)
	in.drop()
}

// overflow ends an instance whose code asks for more than there may be: it can
// go neither forward nor back.
func (in *instance) overflow(reason string) {
	first := in.pending.events[0]
	terminated := &journalpb.Event{EventId: first.EventId, Timestamp: first.Timestamp, Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}
	if first.GetOrchestrationStarted() != nil {
		terminated.EventId++
		in.pending.events = []*journalpb.Event{first, terminated}
	} else {
		in.pending.events = []*journalpb.Event{terminated}
		in.pending.instead = ErrEnded // the message is not recorded
	}
	in.pending.successor = nil
	in.appendPending()
}

// commit ends the pending turn: its events are facts, or never were and are
// thrown away with everything that followed from them.
func (in *instance) commit(err error) {
	ended := err != nil
	if err != nil {
		in.partition.refused(in.id, in.number, err)
	} else {
		in.batchMax = min(2*in.batchMax, turnMax)
		in.partition.system.committed(in.id, in.number, in.pending.events)
		in.release(in.pending.events)
		ended = in.settled()
	}
	t := in.pending
	t.answer(err)
	in.pending = nil
	t.release()
	if ended {
		in.drop()
	}
}

// settled looks at what the committed turn has made of the instance, and reports
// whether the execution has ended.
func (in *instance) settled() (ended bool) {
	if later := in.pending.postponed; len(later) > 0 {
		in.pending.postponed = nil
		in.partition.putBack(in, later, nil)
	}
	last := in.pending.events
	if len(last) > 0 && journalpb.Terminal(last[len(last)-1].Arm()) {
		ended = true
		in.partition.unstall(in)
	}
	if in.pending.successor != nil || in.pending.startsAlone {
		// The next execution takes its first turn when it is loaded. One without code, or whose
		// code does not fit, stalls then, as it does under every next leader.
		in.partition.nudge(in.id)
	}
	return ended
}
