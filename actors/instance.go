package actors

import (
	"container/list"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/proto"

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

// An instance is the actor of one live instance. It owns the history's end and
// the cursor: one turn at a time, and the next only when the last is committed.
type instance struct {
	id        string
	partition *Partition
	pid       *actor.PID

	// Guarded by the partition's lock.
	inbox   []Message
	awake   bool // the actor has something to do, or is stalled
	stalled error
	held    load          // from outside, on their way
	place   *list.Element // among the idle ones
	passage passage

	// The actor's own.
	execution *replay.Execution
	number    uint64    // of the execution
	taken     []Message // from the inbox, on their way into a turn
	batchMax  int       // how many the next turn takes at most
	pending   *turn     // what is being appended
	leaving   bool
	gone      bool
}

// A turn is a batch of messages on its way through code and journal.
type turn struct {
	events    []*journalpb.Event
	successor *journalpb.Event // of the next execution, if this one continues as new
	postponed []Message        // that the next execution takes
	answers   []func(error)    // called with the outcome of the append
	instead   error            // what they are called with if it was taken
	exceeds   string           // which limit the instance has gone beyond; empty if none
}

// answer tells each sender once.
func (t *turn) answer(err error) {
	if err == nil {
		err = t.instead
	}
	for len(t.answers) > 0 {
		next := t.answers[0]
		t.answers = t.answers[1:]
		next(err)
	}
}

// newInstance starts the actor of an instance.
func newInstance(p *Partition, id string) *instance {
	in := &instance{id: id, partition: p, batchMax: turnMax}
	p.live.Add(1)
	in.pid = p.system.spawn(in.receive)
	return in
}

func (in *instance) receive(ctx actor.Context) {
	defer in.contain(ctx)
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
	in.partition.system.counters.faults.Add(1)
	fault := &FaultError{Instance: in.id, Value: value, Stack: string(debug.Stack())}
	in.partition.logger.Error("fault in instance", "instance", in.id, "execution", in.number, "fault", value, "stack", fault.Stack)
	// Detached first: whoever has this answer reaches a new actor.
	for _, m := range slices.Concat(in.taken, in.partition.detach(in)) {
		m.answer(Answer{Err: fault})
	}
	if in.pending != nil {
		in.pending.answer(fault)
	}
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
// back.
func (in *instance) drop() {
	if in.execution != nil {
		in.execution.Drop()
		in.execution = nil
	}
}

// run takes turns until one has to wait for the journal, or nothing is left to
// do.
func (in *instance) run() {
	for in.pending == nil && !in.leaving {
		if in.stalled != nil {
			if !in.terminateStalled() {
				return
			}
			continue
		}
		in.taken = in.partition.take(in)
		if len(in.taken) == 0 {
			return
		}
		if err := in.turn(in.taken); err != nil {
			in.fail(in.taken, err)
		}
	}
}

// terminateStalled ends a stalled instance if somebody has asked for that. No
// code has to run for it.
func (in *instance) terminateStalled() bool {
	m, asked := in.partition.takeTerminate(in)
	known, ok := in.partition.journal.Instance(in.id)
	if !asked || !ok {
		return false
	}
	in.number = known.Execution
	in.pending = &turn{
		events: []*journalpb.Event{{
			EventId:   known.LastEventId + 1,
			Timestamp: max(in.partition.now().UnixNano(), known.UpdatedAt),
			Body:      m.Event.Body,
		}},
		answers: []func(error){in.answerTo(m, replay.Recorded)},
	}
	in.appendPending()
	return true
}

// turn delivers a batch of messages. On error nothing of it was answered.
func (in *instance) turn(batch []Message) error {
	known, err := in.load()
	if err != nil {
		return err
	}
	in.partition.system.counters.messages.Add(uint64(len(batch)))
	sorter := &sorter{in: in, known: known}
	for i := range batch {
		sorter.sort(&batch[i])
	}
	turn := &turn{answers: sorter.answers}
	if len(sorter.messages) > 0 {
		outcome, err := in.execution.Turn(in.partition.now(), sorter.messages)
		if err != nil {
			return in.startWithoutCode(sorter, turn, err)
		}
		turn.events, turn.successor = outcome.Events, in.execution.Successor()
		if !in.execution.Ended() {
			turn.exceeds = in.partition.system.config.Limits.exceeded(in.execution.Size())
		}
		for i, disposition := range outcome.Dispositions {
			if disposition == replay.Postponed {
				turn.postponed = append(turn.postponed, *sorter.accepted[i])
				continue
			}
			turn.answers = append(turn.answers, in.answerTo(sorter.accepted[i], disposition))
		}
	}
	in.propose(turn)
	return nil
}

// startWithoutCode records the start of an instance that this node has no code
// for: it waits for code, and everybody can see that. What came in the same
// batch waits with it.
func (in *instance) startWithoutCode(s *sorter, turn *turn, err error) error {
	var noCode *replay.NoCodeError
	if !errors.As(err, &noCode) || s.accepted[0].started() == nil {
		return err
	}
	in.drop()
	in.taken = nil
	var later []Message
	for _, m := range s.accepted[1:] {
		later = append(later, *m)
	}
	in.partition.putBack(in, later, nil)
	started := &journalpb.Event{EventId: 1, Timestamp: in.partition.now().UnixNano(), Body: s.messages[0].Event.Body}
	turn.events = []*journalpb.Event{started}
	turn.answers = append(turn.answers, in.answerTo(s.accepted[0], replay.Recorded))
	in.propose(turn)
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
	in.begin(known.Execution)
	in.partition.system.counters.activations.Add(1)
	return known, in.execution.Replay(in.partition.journal.Events(in.id, known.Execution, 1))
}

func (in *instance) begin(number uint64) {
	config := in.partition.system.config
	in.number = number
	in.execution = replay.NewExecution(in.id, number, config.Registry, config.Logger)
}

// fail takes a turn back. Code that does not fit stalls the instance until a
// node with other code takes it up; any other error is the batch's answer.
func (in *instance) fail(batch []Message, err error) {
	in.drop()
	in.taken = nil
	var mismatch *replay.Mismatch
	var noCode *replay.NoCodeError
	if errors.As(err, &mismatch) || errors.As(err, &noCode) {
		in.partition.system.counters.stalls.Add(1)
		in.partition.stalled(in, mismatch, err)
		in.partition.putBack(in, batch, err)
		return
	}
	in.partition.logger.Error("turn", "instance", in.id, "execution", in.number, "error", err)
	for i := range batch {
		batch[i].answer(Answer{Err: fmt.Errorf("turn: %w", err)})
	}
}

// propose appends the events of a turn. With none there is nothing to wait for.
func (in *instance) propose(turn *turn) {
	batch := in.taken
	in.taken, in.pending = nil, turn
	if len(turn.events) == 0 {
		in.commit(nil)
		return
	}
	segments, bytes, err := in.encode(turn)
	tooLarge := bytes > in.partition.system.config.AppendBytesMax
	if tooLarge && len(batch) > 1 {
		in.halve(batch)
		return
	}
	if len(turn.postponed) > 0 {
		in.partition.putBack(in, turn.postponed, nil)
	}
	switch {
	case err != nil:
		in.commit(err)
	case tooLarge:
		in.overflow(fmt.Sprintf("one step asks for %d bytes of events, the limit is %d: schedule less at once, or pass references",
			bytes, in.partition.system.config.AppendBytesMax))
	case turn.exceeds != "":
		in.overflow(turn.exceeds)
	default:
		in.append(segments)
	}
}

// encode returns the segments of a turn's append, and how many bytes the events
// take of the execution that it belongs to.
func (in *instance) encode(turn *turn) (segments []*journalpb.Segment, bytes int, err error) {
	segment, bytes, err := segmentOf(in.number, turn.events)
	if err != nil || turn.successor == nil {
		return []*journalpb.Segment{segment}, bytes, err
	}
	next, _, err := segmentOf(in.number+1, []*journalpb.Event{turn.successor})
	return []*journalpb.Segment{segment, next}, bytes, err
}

// appendPending hands the events of the pending turn to the journal.
func (in *instance) appendPending() {
	segments, _, err := in.encode(in.pending)
	if err != nil {
		in.commit(err)
		return
	}
	in.append(segments)
}

func (in *instance) append(segments []*journalpb.Segment) {
	in.partition.journal.Append(&journalpb.Append{
		Instance: in.id,
		Epoch:    in.partition.epoch,
		Segments: segments,
	}, func(err error) { in.partition.tell(in, appended{err}) })
}

// segmentOf encodes events, all of them into one buffer.
func segmentOf(execution uint64, events []*journalpb.Event) (segment *journalpb.Segment, bytes int, err error) {
	for _, event := range events {
		bytes += proto.Size(event)
	}
	segment = &journalpb.Segment{Execution: execution, FirstEventId: events[0].EventId, Events: make([][]byte, len(events))}
	sized := proto.MarshalOptions{UseCachedSize: true}
	buffer := make([]byte, 0, bytes)
	for i, event := range events {
		from := len(buffer)
		if buffer, err = sized.MarshalAppend(buffer, event); err != nil {
			return nil, 0, fmt.Errorf("encode event: %w", err)
		}
		segment.Events[i] = buffer[from:len(buffer):len(buffer)]
	}
	return segment, bytes, nil
}

// halve takes back a turn in which the code asked for more than one append
// holds, because there were too many messages to answer to. Half as many are
// tried next.
func (in *instance) halve(batch []Message) {
	in.drop()
	in.pending = nil
	in.batchMax = len(batch) / 2
	in.partition.putBack(in, batch, nil)
}

// overflow ends an instance whose code asks for more than there may be: it can
// go neither forward nor back.
func (in *instance) overflow(reason string) {
	in.drop()
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
	if err != nil {
		in.drop()
		in.partition.refused(in.id, in.number, err)
	} else {
		in.batchMax = min(2*in.batchMax, turnMax)
		in.partition.system.committed(in.id, in.number, in.pending.events)
		in.release(in.pending.events)
		in.settled()
	}
	in.pending.answer(err)
	in.pending = nil
}

// settled looks at what the committed turn has made of the instance.
func (in *instance) settled() {
	last := in.pending.events
	if len(last) > 0 && journalpb.Terminal(last[len(last)-1].Arm()) {
		in.drop()
		in.partition.unstall(in)
	}
	if in.pending.successor != nil {
		// The next execution takes its first turn when it is loaded.
		in.partition.nudge(in.id)
	}
}

// answerTo returns what tells the sender of a message the outcome.
func (in *instance) answerTo(m *Message, disposition replay.Disposition) func(error) {
	first := uint64(0)
	if m.started() != nil {
		first = in.number
	}
	return func(err error) {
		answer := Answer{Err: err, Dropped: disposition == replay.Dropped, FirstExecution: first}
		if err == nil && disposition == replay.Ended {
			answer.Err = ErrEnded
		}
		m.answer(answer)
	}
}
