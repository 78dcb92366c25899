package actors

import (
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A router decides which messages of a batch go to the code, and how the others are answered. It
// begins an execution for a start.
type router struct {
	in       *instance
	batch    []Message
	meta     *journalpb.Instance // in the journal, if no execution was in memory
	messages []engine.Message
	accepted []*Message // the same messages in the batch, to answer them
	replies  []reply
	resolved int // how many replies are sent
}

func (s *router) reset() {
	if cap(s.batch) > turnReuseMax {
		*s = router{}
		return
	}
	clear(s.batch)
	clear(s.messages)
	clear(s.accepted)
	clear(s.replies)
	*s = router{batch: s.batch[:0], messages: s.messages[:0], accepted: s.accepted[:0], replies: s.replies[:0]}
}

func (s *router) route(m *Message) {
	switch {
	case m.startEvent() != nil:
		s.start(m)
	case s.in.execution != nil && m.Query != nil:
		s.query(m)
	case s.in.execution != nil && s.in.refusesEvent(m):
		s.reply(m, Answer{Err: &BusyError{RetryAfter: retryAfterMax, Bound: BoundInstance, Reason: "too many external events are buffered in the instance"}})
	case s.in.execution != nil:
		s.accept(m)
	case m.Internal:
		s.reply(m, Answer{Dropped: true})
	default:
		if s.meta != nil {
			s.reply(m, Answer{Err: ErrEnded})
			return
		}
		s.reply(m, Answer{Err: ErrNotFound})
	}
}

// refusesEvent reports whether a message is an external event that does not fit in the buffer.
func (in *instance) refusesEvent(m *Message) bool {
	event := m.Event.GetExternalEvent()
	return event != nil && !m.Internal && in.partition.system.config.Limits.isBufferFull(in.execution, event.Name)
}

// query answers a query from committed state, because the batch's turn has not run yet.
func (s *router) query(m *Message) {
	output, err := s.in.execution.Query(m.Query.Name, m.Query.Input)
	s.reply(m, Answer{Output: output, Err: err})
}

// start begins an execution, or answers for the existing instance.
func (s *router) start(m *Message) {
	if len(s.accepted) > 0 && s.accepted[0].startEvent() != nil {
		// The first start of this batch is about to be recorded.
		s.answerExisting(m, s.accepted[0].startEvent(), s.in.executionNumber, s.in.incarnation)
		return
	}
	if s.meta == nil && s.in.execution != nil {
		s.meta, _ = s.in.partition.journal.Instance(s.in.id)
	}
	meta := s.meta
	existing := &journalpb.OrchestrationStarted{RequestId: meta.GetRequestId(), Parent: meta.GetParent()}
	switch {
	case meta == nil:
		s.begin(m, 1)
	case m.Reuse.allows(meta.Status) && !sameStart(m.startEvent(), existing):
		s.begin(m, meta.Execution+1)
	default:
		s.answerExisting(m, existing, meta.FirstExecution, meta.Incarnation)
	}
}

func (s *router) begin(m *Message, execution uint64) {
	s.in.partition.runs.assignIncarnation(m, s.in.id, execution)
	s.in.beginExecution(execution, m.startEvent().Incarnation)
	s.accept(m)
}

// answerExisting answers a start of an existing instance. A repetition of the start that began the
// run gets the answer of the original.
func (s *router) answerExisting(m *Message, existing *journalpb.OrchestrationStarted, first, incarnation uint64) {
	same := sameStart(m.startEvent(), existing)
	if !same && !m.Attach {
		s.reply(m, Answer{Err: ErrInstanceExists})
		return
	}
	s.replies = append(s.replies, reply{message: m, answer: Answer{
		Attached: !same, Dropped: true, FirstExecution: first, Incarnation: incarnation,
	}})
}

// sameStart reports whether a start is the one that began the existing run.
func sameStart(requested, existing *journalpb.OrchestrationStarted) bool {
	return requested.RequestId != "" && requested.RequestId == existing.RequestId ||
		requested.Parent != nil && proto.Equal(requested.Parent, existing.Parent)
}

func (s *router) accept(m *Message) {
	s.messages = append(s.messages, m.Message)
	s.accepted = append(s.accepted, m)
}

// reply answers a message whether or not the append is committed.
func (s *router) reply(m *Message, a Answer) {
	s.replies = append(s.replies, reply{m, a, true})
}
