package actors

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
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
	// later holds a start that terminates the run, or a query of a run that this turn begins, and
	// the messages after it, for the next turn.
	later []Message
	// Updates that wait for the next attempt of the run, and those that the code did not accept in
	// the step that began it, which are for the next turn.
	held, withdrawn []Message
	updateErr       error // why the update of the start that begins the run is not recorded
}

func (r *router) reset() {
	if cap(r.batch) > turnReuseMax {
		*r = router{}
		return
	}
	clear(r.batch)
	clear(r.messages)
	clear(r.accepted)
	clear(r.replies)
	r.batch, r.messages, r.accepted, r.replies = r.batch[:0], r.messages[:0], r.accepted[:0], r.replies[:0]
	r.in, r.meta, r.resolved, r.updateErr = nil, nil, 0, nil
	r.later, r.held, r.withdrawn = nil, nil, nil
}

func (r *router) route(m *Message) {
	switch {
	case len(r.later) > 0, m.Query != nil && r.beginsRun():
		r.later = append(r.later, *m)
	case m.startEvent() != nil:
		r.start(m)
	case r.in.execution != nil && m.isForOtherRun(r.in.incarnation):
		r.reply(m, Answer{Err: ErrEnded})
	case r.in.execution != nil && m.Query != nil:
		r.query(m)
	case r.in.execution != nil && r.in.rejectsEvent(m):
		r.reply(m, Answer{Err: &BusyError{RetryAfter: retryAfterMax, Bound: BoundInstance, Reason: "too many external events are buffered in the instance"}})
	case m.withdrawal != nil:
		r.withdrawAgain(m)
	case r.in.execution != nil && m.AwaitsAttempt(r.in.execution):
		r.awaitAttempt(m)
	case r.in.execution != nil:
		r.accept(m)
	case m.Internal:
		r.reply(m, Answer{Dropped: true})
	case r.meta == nil:
		r.reply(m, Answer{Err: ErrNotFound})
	default:
		r.reply(m, Answer{Err: ErrEnded})
	}
}

// beginsRun reports whether the turn begins a run, whose code has not registered any handler yet.
func (r *router) beginsRun() bool { return len(r.accepted) > 0 && r.accepted[0].startEvent() != nil }

// rejectsEvent reports whether a message is an external event that does not fit in the buffer. One
// that is sent again, because the answer was lost, is there already.
func (in *instance) rejectsEvent(m *Message) bool {
	event := m.Event.GetExternalEvent()
	return event != nil && !m.Internal && in.partition.system.limits.Load().isBufferFull(in.execution, event.Name) && !m.HasKnownID(in.execution)
}

// query answers a query from committed state, because the batch's turn has not run yet.
func (r *router) query(m *Message) {
	output, err := r.in.execution.Query(m.Query.Name, m.Query.Input)
	r.reply(m, Answer{Output: output, Err: err})
}

// start begins an execution, or answers for the existing instance.
func (r *router) start(m *Message) {
	if r.beginsRun() {
		// The first start of this batch is about to be recorded.
		if m.Reuse == ReuseTerminating && !sameStart(m.startEvent(), r.accepted[0].startEvent()) {
			r.later = append(r.later, *m)
			return
		}
		r.answerExisting(m, r.accepted[0].startEvent(), r.in.executionNumber, r.in.incarnation)
		return
	}
	if r.meta == nil && r.in.execution != nil {
		r.meta, _ = r.in.partition.journal.Instance(r.in.id)
	}
	meta := r.meta
	if earlier := r.in.replacements.find(m); earlier != nil {
		r.reply(m, Answer{Dropped: true, FirstExecution: earlier.first, Incarnation: earlier.incarnation})
		return
	}
	if meta == nil {
		r.begin(m, 1)
		return
	}
	existing := r.existingStart(m, meta)
	switch {
	case m.Reuse.allows(meta.Status) && !sameStart(m.startEvent(), existing):
		r.begin(m, meta.Execution+1)
	case m.replaces(meta):
		r.accept(&Message{Message: engine.Message{Event: m.termination()}})
		r.later = append(r.later, *m)
	default:
		r.answerExisting(m, existing, meta.FirstExecution, meta.Incarnation)
	}
}

// existingStart returns what is needed of the start that began the run of an instance: all of it
// for a start with the same request ID.
func (r *router) existingStart(m *Message, meta *journalpb.Instance) *journalpb.OrchestrationStarted {
	existing := &journalpb.OrchestrationStarted{Name: meta.Name, RequestId: meta.RequestId, Parent: meta.Parent}
	if m.Internal || !sameRequest(m.startEvent(), existing.RequestId) {
		return existing
	}
	first, err := r.in.partition.journal.Event(r.in.id, meta.FirstExecution, 1)
	if err != nil {
		return m.startEvent() // counts as the same
	}
	return first.GetOrchestrationStarted()
}

func (r *router) begin(m *Message, execution uint64) {
	if err := r.checkSent(m); err != nil {
		r.reply(m, Answer{Err: err})
		return
	}
	if m.Update != nil && !r.in.startOnly {
		m.setInbox([]*journalpb.ExternalEvent{m.Update}, engine.ValidateInStep)
	}
	r.in.partition.runs.assignIncarnation(m, r.in.id, execution)
	r.in.beginExecution(execution, m.startEvent().Incarnation)
	r.accept(m)
}

// checkSent returns why a start is refused: the event that is sent with it would not fit the code.
// A start that is recorded without running code is not checked.
func (r *router) checkSent(m *Message) error {
	if m.Sent == nil || r.in.startOnly {
		return nil
	}
	started := m.startEvent()
	return r.in.partition.system.config.Registry.CheckEvent(started.Name, started.Version, m.Sent)
}

// refuseEvents answers the events of a batch that do not fit the declarations of the code, without
// loading the instance. Their replies come first, in the order of the batch.
func (r *router) refuseEvents() {
	p := r.in.partition
	if r.in.execution != nil || !p.system.config.Registry.DeclaresEvents() {
		return
	}
	var meta *journalpb.Instance
	for i := range r.batch {
		event := r.batch[i].checkedEvent()
		if event == nil {
			continue
		}
		if meta == nil {
			meta, _ = p.journal.Instance(r.in.id)
		}
		if err := checkDeclared(p, meta, event, r.batch[i].FreshID); err != nil {
			r.reply(&r.batch[i], Answer{Err: err})
		}
	}
}

// checkDeclared returns why an instance that runs must not record an event, judged without its
// code: the data does not fit what the code declares. It runs code of the author. Unless the
// request ID is fresh, it may read the whole history.
func checkDeclared(p *Partition, meta *journalpb.Instance, event *journalpb.ExternalEvent, freshID bool) error {
	if meta.GetStatus() != journalpb.Status_STATUS_RUNNING || event.RequestId != "" && event.RequestId == meta.RequestId {
		return nil
	}
	err := p.system.config.Registry.CheckEvent(meta.Name, meta.Version, event)
	if err == nil || !freshID && event.RequestId != "" && mayHaveRecorded(p.journal, meta, event.RequestId) {
		return nil
	}
	return err
}

// mayHaveRecorded reports whether the execution of an instance knows the request ID of an input, or
// its history cannot be read.
func mayHaveRecorded(j Journal, meta *journalpb.Instance, requestID string) bool {
	for event, err := range j.Events(meta.Instance, meta.Execution, 1) {
		if err != nil || event.InputRequestID() == requestID {
			return true
		}
		started := event.GetOrchestrationStarted()
		if slices.Contains(started.GetRequestIds(), requestID) ||
			slices.ContainsFunc(started.GetInbox(), func(carried *journalpb.ExternalEvent) bool { return carried.RequestId == requestID }) {
			return true
		}
	}
	return false
}

// answerRefused answers the events that were refused without loading the instance, and returns the
// rest of the batch. The turn has failed, and has sent no reply.
func (r *router) answerRefused() (others []Message) {
	next := 0
	for i := range r.batch {
		if r.isReplyTo(next, &r.batch[i]) && r.replies[next].answer.isRefusal() {
			r.batch[i].resolve(r.replies[next].answer)
			next++
			continue
		}
		others = append(others, r.batch[i])
	}
	return others
}

// isReplyTo reports whether a reply, if there is one of that index, is to a message.
func (r *router) isReplyTo(index int, m *Message) bool {
	return index < len(r.replies) && r.replies[index].message == m
}

// isRefusal reports whether an answer refuses an event because of its data.
func (a *Answer) isRefusal() bool {
	var refused *replay.PayloadError
	return errors.As(a.Err, &refused) && refused.Host().Refused
}

// answerExisting answers a start of an existing instance. A repetition of the start that began the
// run gets the answer of the original.
func (r *router) answerExisting(m *Message, existing *journalpb.OrchestrationStarted, first, incarnation uint64) {
	same := sameStart(m.startEvent(), existing)
	if !m.Internal && sameRequest(m.startEvent(), existing.RequestId) && !r.in.partition.system.config.Registry.PayloadConverter().IsSameStart(m.startEvent(), existing) {
		r.reply(m, Answer{Err: ErrRequestIDReused})
		return
	}
	if !same && !m.Attach {
		r.reply(m, Answer{Err: ErrInstanceExists})
		return
	}
	if !same && !m.Internal && m.startEvent().Name != existing.Name {
		r.reply(m, Answer{Err: OtherOrchestrationError(existing.Name, m.startEvent().Name)})
		return
	}
	r.replies = append(r.replies, reply{message: m, answer: Answer{
		Attached: !same, Dropped: true, FirstExecution: first, Incarnation: incarnation,
	}})
}

// sameStart reports whether a start is the one that began the existing run.
func sameStart(requested, existing *journalpb.OrchestrationStarted) bool {
	return sameRequest(requested, existing.RequestId) ||
		requested.Parent != nil && proto.Equal(requested.Parent, existing.Parent)
}

// sameRequest reports whether a start has that request ID, which is "" for none.
func sameRequest(requested *journalpb.OrchestrationStarted, requestID string) bool {
	return requestID != "" && requested.RequestId == requestID
}

// answerWithoutRunning answers a start that would replace the run of an instance and does not: it
// began that run, or the run has a parent. It runs no code of the author.
func (r *router) answerWithoutRunning(m *Message, meta *journalpb.Instance) {
	if !sameRequest(m.startEvent(), meta.RequestId) {
		r.reply(m, Answer{Err: ErrInstanceExists})
		return
	}
	r.reply(m, Answer{Dropped: true, FirstExecution: meta.FirstExecution, Incarnation: meta.Incarnation})
}

func (r *router) accept(m *Message) {
	r.messages = append(r.messages, m.Message)
	if r.beginsRun() && r.accepted[0].Sent != nil && r.accepted[0].Sent == m.Event.GetExternalEvent() {
		r.messages[len(r.messages)-1].CheckData = false // checkSent has decided
	}
	r.accepted = append(r.accepted, m)
}

// run passes the accepted messages to the code. It repeats that without the updates that the code
// does not accept in the step that begins it: they are not recorded.
func (r *router) run() (*engine.Turn, error) {
	in := r.in
	for {
		in.execution.SetAppliedIndex(in.partition.runs.appliedIndex())
		outcome, err := in.execution.Turn(in.partition.now().AsTime(), r.messages)
		refused, ok := errors.AsType[*engine.NotAcceptedError](err)
		if !ok {
			return outcome, err
		}
		r.withdraw(refused)
		if err := r.restartCode(); err != nil {
			return nil, err
		}
	}
}

// withdraw takes an update out of the turn. If the code could not judge it, it is for the next
// turn.
func (r *router) withdraw(refused *engine.NotAcceptedError) {
	m := r.accepted[refused.Message]
	if m.startEvent() != nil {
		m.withholdUpdate()
		r.messages[refused.Message], r.updateErr = m.Message, refused.Err
		return
	}
	r.messages = slices.Delete(r.messages, refused.Message, refused.Message+1)
	r.accepted = slices.Delete(r.accepted, refused.Message, refused.Message+1)
	m.withdrawal = &withdrawal{refused.Err} // the turn may be repeated by another actor
	r.withdrawAgain(m)
}

// A withdrawal says that an update was taken out of a turn, and why; err is nil if the code could
// not judge it.
type withdrawal struct{ err error }

// withdrawAgain handles an update that was taken out of this turn.
func (r *router) withdrawAgain(m *Message) {
	if err := m.withdrawal.err; err != nil {
		r.replies = append(r.replies, reply{message: m, answer: Answer{Err: &RejectedError{Err: err}}})
		return
	}
	later := *m
	later.withdrawal = nil
	r.withdrawn = append(r.withdrawn, later)
}

// withholdUpdate removes the update from a start.
func (m *Message) withholdUpdate() {
	if m.Update != nil {
		m.setInbox(nil, engine.ValidateNone)
	}
}

// setInbox sets the inbox of a start. It copies the event, which abandoned code may still read.
func (m *Message) setInbox(inbox []*journalpb.ExternalEvent, validation engine.Validation) {
	started := m.startEvent().ShallowCopy()
	started.Inbox = inbox
	m.Event = &journalpb.Event{Origin: m.Event.Origin, Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started}}
	m.Validation = validation
}

// restartCode evicts the execution, and brings it into memory as it was before the turn.
func (r *router) restartCode() error {
	in, starting := r.in, r.beginsRun()
	in.finishCode()
	if starting {
		in.setRecordingStart() // if its deferred functions block, another actor records the start
	}
	in.evict()
	in.partition.mu.Lock()
	in.enterCode(false)
	in.codeStarting = starting
	in.partition.mu.Unlock()
	in.code.Label(in.id)
	if starting {
		in.beginExecution(in.executionNumber, in.incarnation)
		return nil
	}
	_, err := in.loadExecution()
	return err
}

// awaitAttempt holds an update until the next attempt of the run begins. If that may be in this
// turn, the update is recorded before, so that the attempt cannot end without it.
func (r *router) awaitAttempt(m *Message) {
	if !slices.ContainsFunc(r.batch, mayBeginAttempt) {
		if len(r.in.held)+len(r.held) >= heldMax {
			r.reply(m, Answer{Err: &BusyError{RetryAfter: retryAfterMax, Bound: BoundInstance, Reason: "too many updates wait for the next attempt of the run"}})
			return
		}
		r.held = append(r.held, *m)
		return
	}
	r.accept(m)
	r.messages[len(r.messages)-1].Validation = engine.ValidateInStep
}

// mayBeginAttempt reports whether the next attempt of a run may begin with a message.
func mayBeginAttempt(m Message) bool {
	return m.Event.GetTimerFired() != nil || m.Event.GetOrchestrationResumed() != nil
}

// heldUpdates are the updates that wait for the next attempt of a run, at most heldMax. They stay
// when their callers no longer wait. The partition's lock guards them.
type heldUpdates []Message

// heldTurnMax is how many of them the turn that begins the attempt takes. The others follow it.
const heldTurnMax = 64

const heldMax = 1000

// batchSize returns how many messages the next turn takes from the inbox of an instance. It first
// puts those updates back into the inbox that need not wait any more, or that may begin the attempt
// together with the first message. The instance's actor calls it.
func (h *heldUpdates) batchSize(in *instance) int {
	released := h.release(in)
	n := batchSize(in.inbox, in.batchMax)
	if released || len(*h) == 0 || n < 2 {
		return n
	}
	if i := slices.IndexFunc(in.inbox[1:n], mayBeginAttempt); i >= 0 {
		return i + 1 // it is the first of the next turn
	}
	return n
}

// release puts updates back into the inbox, in front, and reports whether it has.
func (h *heldUpdates) release(in *instance) bool {
	n := len(*h)
	switch {
	case n == 0:
		return false
	case in.execution == nil || !(*h)[0].AwaitsAttempt(in.execution):
	case len(in.inbox) > 0 && mayBeginAttempt(in.inbox[0]):
		n = min(n, heldTurnMax, in.batchMax-1)
		for bytes, i := 0, 0; i < n; i++ {
			if bytes += (*h)[i].size(); bytes > turnBytesMax/2 {
				n = i
			}
		}
	default:
		return false
	}
	in.inbox = slices.Concat((*h)[:n], in.inbox)
	*h = slices.Clone((*h)[n:])
	return true
}

// reply answers a message whether or not the append is committed.
func (r *router) reply(m *Message, a Answer) {
	r.replies = append(r.replies, reply{m, a, true})
}

// A replacement is a run begun by a start with ReuseTerminating.
type replacement struct {
	requestID          string
	first, incarnation uint64
}

// replacements are the latest replacements of an instance. Repetitions of their starts may wait in
// the inbox.
type replacements []replacement

const replacementsMax = 16

// remember adds the run that a committed turn has begun, if its start may replace others.
func (r *replacements) remember(t *turn) {
	if len(t.accepted) == 0 || t.accepted[0].Reuse != ReuseTerminating || t.accepted[0].startEvent() == nil {
		return
	}
	if len(*r) == replacementsMax {
		*r = (*r)[1:]
	}
	*r = append(*r, replacement{t.accepted[0].startEvent().RequestId, t.in.executionNumber, t.in.incarnation})
}

// find returns the run that an earlier message with the same request has begun; nil if there is
// none.
func (r replacements) find(m *Message) *replacement {
	for i := range r {
		if m.Reuse == ReuseTerminating && sameRequest(m.startEvent(), r[i].requestID) {
			return &r[i]
		}
	}
	return nil
}
