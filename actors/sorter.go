package actors

import (
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A sorter decides which messages of a batch go to the code, beginning an
// execution where a start asks for it, and what the others are answered.
type sorter struct {
	in       *instance
	batch    []Message
	known    *journalpb.Instance // in the journal, if no execution was in memory
	messages []replay.Message
	accepted []*Message // the same, with their senders
	replies  []reply
	told     int // how many of them are sent
}

// reset makes a sorter ready for another batch.
func (s *sorter) reset() {
	if cap(s.batch) > turnKeptMax {
		*s = sorter{}
		return
	}
	clear(s.batch)
	clear(s.messages)
	clear(s.accepted)
	clear(s.replies)
	*s = sorter{batch: s.batch[:0], messages: s.messages[:0], accepted: s.accepted[:0], replies: s.replies[:0]}
}

func (s *sorter) sort(m *Message) {
	switch {
	case m.started() != nil:
		s.start(m)
	case s.in.execution != nil && m.Query != nil:
		s.query(m)
	case s.in.execution != nil && s.in.refusesEvent(m):
		s.reply(m, Answer{Err: &BusyError{RetryAfter: retryAfterMax, Bound: BoundInstance, Reason: "too many events wait for the instance's code to take them"}})
	case s.in.execution != nil:
		s.accept(m)
	case m.Internal:
		s.reply(m, Answer{Dropped: true})
	default:
		if s.known != nil {
			s.reply(m, Answer{Err: ErrEnded})
			return
		}
		s.reply(m, Answer{Err: ErrNotFound})
	}
}

// refusesEvent tells whether a message is an event from outside for which there
// is no room.
func (in *instance) refusesEvent(m *Message) bool {
	event := m.Event.GetExternalEvent()
	return event != nil && !m.Internal && in.partition.system.config.Limits.full(in.execution, event.Name)
}

// query answers a query from what is committed: the turn that this batch may
// take comes after it.
func (s *sorter) query(m *Message) {
	output, err := s.in.execution.Query(m.Query.Name, m.Query.Input)
	s.reply(m, Answer{Output: output, Err: err})
}

// start begins the first execution of an instance, or meets one that exists.
func (s *sorter) start(m *Message) {
	if len(s.accepted) > 0 && s.accepted[0].started() != nil {
		// The first start of this batch is about to be recorded.
		s.meet(m, s.accepted[0].started(), s.in.number, s.in.incarnation)
		return
	}
	if s.known == nil && s.in.execution != nil {
		s.known, _ = s.in.partition.journal.Instance(s.in.id)
	}
	known := s.known
	existing := &journalpb.OrchestrationStarted{RequestId: known.GetRequestId(), Parent: known.GetParent()}
	switch {
	case known == nil:
		s.begin(m, 1)
	case m.Reuse.allows(known.Status) && !sameStart(m.started(), existing):
		s.begin(m, known.Execution+1)
	default:
		s.meet(m, existing, known.FirstExecution, known.Incarnation)
	}
}

// begin begins a run with that execution.
func (s *sorter) begin(m *Message, execution uint64) {
	s.in.partition.incarnate(m, s.in.id, execution)
	s.in.begin(execution, m.started().Incarnation)
	s.accept(m)
}

// meet answers a start of an instance that exists: a repeated start is the same
// start.
func (s *sorter) meet(m *Message, existing *journalpb.OrchestrationStarted, first, incarnation uint64) {
	same := sameStart(m.started(), existing)
	if !same && !m.Attach {
		s.reply(m, Answer{Err: ErrInstanceExists})
		return
	}
	s.replies = append(s.replies, reply{message: m, answer: Answer{
		Attached: !same, Dropped: true, FirstExecution: first, Incarnation: incarnation,
	}})
}

// sameStart tells whether a start is the one by which a run was begun.
func sameStart(wanted, existing *journalpb.OrchestrationStarted) bool {
	return wanted.RequestId != "" && wanted.RequestId == existing.RequestId ||
		wanted.Parent != nil && proto.Equal(wanted.Parent, existing.Parent)
}

func (s *sorter) accept(m *Message) {
	s.messages = append(s.messages, m.Message)
	s.accepted = append(s.accepted, m)
}

// reply answers a message whatever becomes of the append.
func (s *sorter) reply(m *Message, a Answer) {
	s.replies = append(s.replies, reply{m, a, true})
}
