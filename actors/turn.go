package actors

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A turn is a batch of messages on its way through code and journal. Its memory
// serves one turn after the other; an instance that waits for messages has none.
type turn struct {
	sorter
	events    []*journalpb.Event
	successor *journalpb.Event // of the next execution, if this one continues as new
	postponed []Message        // that the next execution takes, once there is one
	instead   error            // what the senders are told if it was taken
	exceeds   string           // which limit the instance has gone beyond; empty if none

	terminates  bool // a stalled instance, by the one message of the batch
	startsAlone bool // it records the start of an instance and nothing that its code does

	record  journalpb.Append
	encoded [2]encoding
	decided func(error) // tells the instance what became of the append
}

// An encoding is the events of one execution, all of them in one buffer.
type encoding struct {
	segment journalpb.Segment
	buffer  []byte
}

// What a turn may keep for the next.
const (
	turnKeptMax   = 64       // messages
	bufferKeptMax = 16 << 10 // bytes, of each buffer
)

func (in *instance) newTurn() *turn {
	t, ok := in.partition.system.turns.Get().(*turn)
	if !ok {
		t = new(turn)
		t.decided = func(err error) {
			if err == nil {
				t.in.partition.tell(t.in, committed)
				return
			}
			t.in.partition.tell(t.in, appended{err})
		}
	}
	t.in = in
	return t
}

// release gives the memory of a turn to another. Nothing of it is used after that.
func (t *turn) release() {
	turns := &t.in.partition.system.turns
	t.sorter.reset()
	t.record.Instance, t.record.Segments = "", t.record.Segments[:0]
	for i := range t.encoded {
		e := &t.encoded[i]
		clear(e.segment.Events)
		e.segment.Events = e.segment.Events[:0]
		if cap(e.buffer) > bufferKeptMax {
			e.buffer = nil
		}
	}
	t.events, t.successor, t.postponed, t.instead, t.exceeds = nil, nil, nil, nil, ""
	t.terminates, t.startsAlone = false, false
	turns.Put(t)
}

// encode prepares the append of a turn and returns how many bytes the events take
// of the execution that it belongs to.
func (t *turn) encode() (bytes int, err error) {
	t.record.Instance, t.record.Epoch = t.in.id, t.in.partition.epoch
	t.record.Segments = append(t.record.Segments[:0], &t.encoded[0].segment)
	bytes, err = t.encoded[0].encode(t.in.number, t.events)
	if err == nil && t.successor != nil {
		t.record.Segments = append(t.record.Segments, &t.encoded[1].segment)
		_, err = t.encoded[1].encode(t.in.number+1, []*journalpb.Event{t.successor})
	}
	return bytes, err
}

func (e *encoding) encode(execution uint64, events []*journalpb.Event) (bytes int, err error) {
	for _, event := range events {
		bytes += proto.Size(event)
	}
	e.segment.Execution, e.segment.FirstEventId, e.segment.Events = execution, events[0].EventId, e.segment.Events[:0]
	if cap(e.buffer) < bytes {
		e.buffer = make([]byte, 0, bytes)
	}
	sized := proto.MarshalOptions{UseCachedSize: true}
	buffer := e.buffer[:0]
	for _, event := range events {
		from := len(buffer)
		if buffer, err = sized.MarshalAppend(buffer, event); err != nil {
			return 0, fmt.Errorf("encode event: %w", err)
		}
		e.segment.Events = append(e.segment.Events, buffer[from:len(buffer):len(buffer)])
	}
	e.buffer = buffer
	return bytes, nil
}

func (t *turn) append() { t.in.partition.journal.Append(&t.record, t.decided) }

// A reply is what the sender of a message is told.
type reply struct {
	message    *Message
	answer     Answer
	regardless bool // of what becomes of the append
}

// answer tells each sender once what became of the append. The turn's postponed
// messages are still here only if it was refused: put back instead, they would
// bring about the same turn again at once.
func (t *turn) answer(err error) {
	if err == nil {
		err = t.instead
	}
	for t.told < len(t.replies) {
		next := t.replies[t.told]
		t.told++
		if err != nil && !next.regardless {
			next.answer.Err = err
		}
		next.message.answer(next.answer)
	}
	for len(t.postponed) > 0 { // there is no next execution
		next := t.postponed[0]
		t.postponed = t.postponed[1:]
		next.answer(Answer{Err: err})
	}
}

// outcome notes what became of a message.
func (t *turn) outcome(m *Message, disposition replay.Disposition) {
	a := Answer{Dropped: disposition == replay.Dropped}
	switch disposition {
	case replay.Ended:
		a.Err = ErrEnded
	case replay.Forgotten:
		a.Err = ErrForgotten
	case replay.Taken:
		a.Err = ErrRequestID
	}
	if m.started() != nil {
		a.FirstExecution, a.Incarnation = t.in.number, t.in.incarnation
	}
	t.replies = append(t.replies, reply{message: m, answer: a})
}
