package actors

import (
	"container/list"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

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
	place   *list.Element // among the idle ones

	// The actor's own.
	execution *replay.Execution
	number    uint64    // of the execution
	taken     []Message // from the inbox, on their way into a turn
	pending   *turn     // what is being appended
	leaving   bool
	gone      bool
}

// A turn is a batch of messages on its way through code and journal.
type turn struct {
	events  []*journalpb.Event
	answers []func(error) // called with the outcome of the append
}

// answer tells each sender once.
func (t *turn) answer(err error) {
	for len(t.answers) > 0 {
		next := t.answers[0]
		t.answers = t.answers[1:]
		next(err)
	}
}

// newInstance starts the actor of an instance.
func newInstance(p *Partition, id string) *instance {
	in := &instance{id: id, partition: p}
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
	fault := &FaultError{Instance: in.id, Value: value, Stack: string(debug.Stack())}
	in.partition.logger.Error("fault in instance", "instance", in.id, "fault", value, "stack", fault.Stack)
	for i := range in.taken {
		in.taken[i].answer(Answer{Err: fault})
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
	p := in.partition
	p.mu.Lock()
	if p.instances[in.id] == in {
		delete(p.instances, in.id)
	}
	p.busy(in)
	waiting := in.inbox
	in.inbox = nil
	p.mu.Unlock()
	for i := range waiting {
		waiting[i].answer(Answer{Err: err})
	}
	ctx.Stop(ctx.Self())
	p.live.Done()
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
	for in.pending == nil && !in.leaving && in.stalled == nil {
		in.taken = in.partition.take(in)
		if len(in.taken) == 0 {
			return
		}
		if err := in.turn(in.taken); err != nil {
			in.fail(in.taken, err)
		}
	}
}

// turn delivers a batch of messages. On error nothing of it was answered.
func (in *instance) turn(batch []Message) error {
	if err := in.load(); err != nil {
		return err
	}
	sorter := &sorter{in: in}
	for i := range batch {
		sorter.sort(&batch[i])
	}
	turn := &turn{answers: sorter.answers}
	if len(sorter.messages) > 0 {
		outcome, err := in.execution.Turn(time.Now(), sorter.messages)
		if err != nil {
			return in.startWithoutCode(sorter, turn, err)
		}
		turn.events = outcome.Events
		for i, disposition := range outcome.Dispositions {
			turn.answers = append(turn.answers, in.answerTo(sorter.accepted[i], disposition))
		}
	}
	in.propose(turn)
	return nil
}

// startWithoutCode records the start of an instance that this node has no code
// for: it waits for code, and everybody can see that.
func (in *instance) startWithoutCode(s *sorter, turn *turn, err error) error {
	var noCode *replay.NoCodeError
	if !errors.As(err, &noCode) || s.accepted[0].started() == nil || len(s.messages) > 1 {
		return err
	}
	in.drop()
	started := &journalpb.Event{EventId: 1, Timestamp: time.Now().UnixNano(), Body: s.messages[0].Event.Body}
	turn.events = []*journalpb.Event{started}
	turn.answers = append(turn.answers, in.answerTo(s.accepted[0], replay.Recorded))
	in.propose(turn)
	return nil
}

// load brings the latest execution into memory, if the instance has one that
// runs.
func (in *instance) load() error {
	if in.execution != nil {
		return nil
	}
	known, ok := in.partition.journal.Instance(in.id)
	if !ok || known.Status != journalpb.Status_STATUS_RUNNING {
		return nil
	}
	in.begin(known.Execution)
	return in.execution.Replay(in.partition.journal.Events(in.id, known.Execution, 1))
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
		in.partition.logger.Warn("instance stalled", "instance", in.id, "reason", err)
		in.partition.putBack(in, batch, err)
		return
	}
	in.partition.logger.Error("turn", "instance", in.id, "error", err)
	for i := range batch {
		batch[i].answer(Answer{Err: fmt.Errorf("turn: %w", err)})
	}
}

// propose appends the events of a turn. With none there is nothing to wait for.
func (in *instance) propose(turn *turn) {
	in.taken, in.pending = nil, turn
	if len(turn.events) == 0 {
		in.commit(nil)
		return
	}
	segment := &journalpb.Segment{Execution: in.number, FirstEventId: turn.events[0].EventId}
	bytes := 0
	for _, event := range turn.events {
		encoded, err := proto.Marshal(event)
		if err != nil {
			in.commit(fmt.Errorf("encode event: %w", err))
			return
		}
		segment.Events = append(segment.Events, encoded)
		bytes += len(encoded)
	}
	if bytes > in.partition.system.config.AppendBytesMax {
		in.overflow(bytes)
		return
	}
	in.partition.journal.Append(&journalpb.Append{
		Instance: in.id,
		Epoch:    in.partition.epoch,
		Segments: []*journalpb.Segment{segment},
	}, func(err error) { in.partition.tell(in, appended{err}) })
}

// overflow ends an instance whose code asks for more at once than one append
// holds: it can go neither forward nor back. A batch of messages is never the
// cause, because take bounds it.
func (in *instance) overflow(bytes int) {
	in.drop()
	first := in.pending.events[0]
	reason := fmt.Sprintf("one step asks for %d bytes of events, the limit is %d: schedule less at once, or pass references",
		bytes, in.partition.system.config.AppendBytesMax)
	terminated := &journalpb.Event{EventId: first.EventId, Timestamp: first.Timestamp, Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}
	in.pending.events = []*journalpb.Event{terminated}
	if first.GetOrchestrationStarted() != nil {
		terminated.EventId++
		in.pending.events = []*journalpb.Event{first, terminated}
	}
	in.propose(in.pending)
}

// commit ends the pending turn: its events are facts, or never were and are
// thrown away with everything that followed from them.
func (in *instance) commit(err error) {
	if err != nil {
		in.drop()
		in.partition.logger.Warn("append refused", "instance", in.id, "error", err)
	} else {
		in.partition.release(in.id, in.number, in.pending.events)
	}
	in.pending.answer(err)
	in.pending = nil
	if in.execution != nil && in.execution.Ended() {
		in.drop()
	}
}

// answerTo returns what tells the sender of a message the outcome.
func (in *instance) answerTo(m *Message, disposition replay.Disposition) func(error) {
	return func(err error) {
		answer := Answer{Err: err, Dropped: disposition == replay.Dropped}
		if err == nil && disposition == replay.Ended {
			answer.Err = ErrEnded
		}
		if err == nil && m.started() != nil {
			answer.Instance, _ = in.partition.journal.Instance(in.id)
		}
		m.answer(answer)
	}
}
