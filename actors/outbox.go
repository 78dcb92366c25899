package actors

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An OutgoingMessage is an event, or a request to cancel, that an instance sends to another one.
type OutgoingMessage struct {
	From      *journalpb.OperationRef // the operation that sends it
	Instance  string                  // the receiver
	RequestID string                  // the same each time that the message is sent
	// Exactly one of the two is set.
	Event  *journalpb.ExternalEvent
	Cancel *journalpb.OrchestrationCancelRequested
	// Retried reports that the receiver may have recorded the message before, at a journal index of
	// its partition larger than FirstIndex.
	Retried    bool
	FirstIndex uint64
}

// input returns the message as the receiver records it.
func (m *OutgoingMessage) input() *journalpb.Event {
	if m.Event != nil {
		return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{
			Name: m.Event.Name, Data: m.Event.Data, RequestId: m.RequestID, Headers: m.Event.Headers,
		}}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: m.Cancel.GetReason(), RequestId: m.RequestID},
	}}
}

// messageRequestID returns the request ID of the message that an operation sends. It is as unique
// as the operation and always short enough.
func messageRequestID(ref *journalpb.OperationRef) string {
	hash := sha256.Sum256([]byte(ref.Key()))
	return "tenuto.send/" + hex.EncodeToString(hash[:16])
}

// An outbox sends the messages of a partition's instances to other instances, each until the
// receiver has recorded or rejected it. The open operations in the journal bound how many wait.
type outbox struct {
	context context.Context // of the partition
	journal Journal
	send    func(ctx context.Context, m *OutgoingMessage) error
	timers  *timerActor
	sender  *sender // tells instances the outcomes
	faults  *atomic.Uint64
	logger  *slog.Logger

	sending sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[operation.Key]*delivery
	// Messages that are repeated wait behind each other, not in front of new ones.
	fresh, repeated lane
}

// A lane is a queue of messages with the goroutines that send them. The outbox's lock guards it.
type lane struct {
	queued  []*delivery
	workers int
}

// The bounds of a lane.
const (
	laneWorkersMax  = 32
	firstTryTimeout = 2 * time.Second
	nextTryTimeout  = 10 * time.Second
)

// A delivery is a message that is not delivered yet.
type delivery struct {
	message OutgoingMessage
	context context.Context // ends when nothing waits for the delivery
	cancel  context.CancelFunc
	delay   time.Duration // before the next repetition; 0: it has not failed
}

// put sends the message of an operation. retried reports that an earlier leader may have sent it.
func (o *outbox) put(ref *journalpb.OperationRef, sent *journalpb.MessageSent, retried bool) {
	d := &delivery{message: OutgoingMessage{
		From: ref, Instance: sent.Instance, RequestID: messageRequestID(ref), Event: sent.Event, Cancel: sent.Cancel,
		Retried: retried, FirstIndex: sent.FirstIndex,
	}}
	d.context, d.cancel = context.WithCancel(o.context)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		d.cancel()
		return
	}
	o.open[operation.KeyOf(ref)] = d
	o.enqueue(&o.fresh, d)
}

// enqueue queues a delivery, and starts another goroutine unless laneWorkersMax run. o.mu is held.
func (o *outbox) enqueue(l *lane, d *delivery) {
	l.queued = append(l.queued, d)
	if l.workers < laneWorkersMax {
		l.workers++
		o.sending.Go(func() { o.run(l) })
	}
}

// run sends the queued messages of a lane until there are none.
func (o *outbox) run(l *lane) {
	for {
		o.mu.Lock()
		if len(l.queued) == 0 {
			l.queued = nil
			l.workers--
			o.mu.Unlock()
			return
		}
		d := l.queued[0]
		l.queued = l.queued[1:]
		o.mu.Unlock()
		o.try(d)
	}
}

// try sends a message once. After a panic of the engine the message is sent again.
func (o *outbox) try(d *delivery) {
	if d.context.Err() != nil {
		return
	}
	defer func() {
		if value := recover(); value != nil {
			o.faults.Add(1)
			o.logger.Error("fault in outbox", "instance", d.message.From.Instance, "event_id", d.message.From.EventId, "fault", value, "stack", string(debug.Stack()))
			d.message.Retried = true
			o.repeatLater(d, errors.New("fault while sending"))
		}
	}()
	limit := firstTryTimeout
	if d.delay > 0 {
		limit = nextTryTimeout
	}
	ctx, cancel := context.WithTimeout(d.context, limit)
	defer cancel()
	o.finish(d, o.send(ctx, &d.message))
}

// finish handles the outcome of a message that was sent once: it records it, or repeats the
// message.
func (o *outbox) finish(d *delivery, err error) {
	rejection := rejectionOf(err)
	if err != nil && rejection == nil || rejection == ErrNotFound && o.awaitsStart(d) {
		o.repeatLater(d, err)
		return
	}
	outcome := &journalpb.Event{Body: &journalpb.Event_MessageDelivered{MessageDelivered: new(journalpb.MessageDelivered)}}
	if rejection != nil {
		outcome.Body = &journalpb.Event_MessageRejected{MessageRejected: &journalpb.MessageRejected{Error: engine.EncodeError(rejection)}}
	}
	if o.remove(d) {
		o.sender.deliverReliably(d.message.From.Instance, completion(d.message.From, outcome, nil))
	}
}

// rejectionOf returns the reason to record if an error is final, nil if not. A sentinel is recorded
// alone, because the text around it depends on how the message was sent.
func rejectionOf(err error) error {
	for _, reason := range []error{ErrNotFound, ErrEnded, ErrRequestIDReused} {
		if errors.Is(err, reason) {
			return reason
		}
	}
	var invalid *replay.InvalidError
	var refused *replay.PayloadError
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &invalid):
		return err
	}
	return nil
}

// awaitsStart reports whether the receiver is about to be started by the sender, or by a chained
// start of this partition. In another partition a message may overtake the start.
func (o *outbox) awaitsStart(d *delivery) bool {
	for open := range o.journal.InstanceOperations(d.message.From.Instance) {
		if open.Child == d.message.Instance {
			return true
		}
	}
	return o.journal.HasChainedStart(d.message.Instance)
}

// repeatLater sends a message again after a delay.
func (o *outbox) repeatLater(d *delivery, err error) {
	if d.context.Err() != nil {
		return
	}
	before := d.delay
	d.delay = max(sched.NextBackoff(before), sched.BackoffMin)
	if d.delay == sched.BackoffMax && before < sched.BackoffMax {
		o.logger.Warn("message not delivered yet", "instance", d.message.From.Instance, "execution", d.message.From.Execution,
			"event_id", d.message.From.EventId, "receiver", d.message.Instance, "error", err)
	}
	o.timers.ScheduleAfter(d.delay, func() { o.repeat(d) })
}

// repeat queues a message again, unless it was canceled meanwhile.
func (o *outbox) repeat(d *delivery) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed && d.context.Err() == nil {
		o.enqueue(&o.repeated, d)
	}
}

// remove removes a delivery, and reports whether something waits for it.
func (o *outbox) remove(d *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := operation.KeyOf(d.message.From)
	waits := o.open[key] == d
	if waits {
		delete(o.open, key)
	}
	d.cancel()
	return waits
}

// cancelDelivery stops sending a message whose delivery nothing waits for any more. The receiver
// may have recorded it, or may still do so.
func (o *outbox) cancelDelivery(ref *journalpb.OperationRef) {
	o.mu.Lock()
	d := o.open[operation.KeyOf(ref)]
	o.mu.Unlock()
	if d != nil {
		o.remove(d)
	}
}

// close stops sending. The next leader sends what is left. The partition's context must have ended.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.fresh.queued, o.repeated.queued = true, nil, nil
	for _, d := range o.open {
		d.cancel()
	}
	o.mu.Unlock()
	o.sending.Wait()
}

// SendMessage sends a message to an instance of this partition; see PartitionConfig.SendMessage. It
// is for a system without a cluster.
func (p *Partition) SendMessage(ctx context.Context, m *OutgoingMessage) error {
	answers := make(chan Answer, 1)
	p.Deliver(m.Instance, Message{
		Message: engine.Message{Event: m.input(), Retried: m.Retried, FirstIndex: m.FirstIndex, CheckData: true},
		FreshID: !m.Retried,
		Done:    func(a Answer) { answers <- a },
	})
	select {
	case a := <-answers:
		if m.Retried && errors.Is(a.Err, ErrEnded) && p.hasRecorded(m) {
			return nil
		}
		m.Retried = m.Retried || !errors.Is(a.Err, ErrBusy)
		return a.Err
	case <-ctx.Done():
		m.Retried = true
		return ctx.Err()
	}
}

// hasRecorded reports whether the latest run of the receiver has recorded a message.
func (p *Partition) hasRecorded(m *OutgoingMessage) bool {
	meta, ok := p.journal.Instance(m.Instance)
	for execution := meta.GetFirstExecution(); ok && execution <= meta.Execution; execution++ {
		for event, err := range p.journal.Events(m.Instance, execution, 1) {
			if err == nil && event.InputRequestID() == m.RequestID {
				return true
			}
		}
	}
	return false
}
