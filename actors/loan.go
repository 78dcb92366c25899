package actors

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A loan is an attempt that runs here for the leader of another node. It is kept
// until that, or the leader after it, has acknowledged what it has come to. Its
// fields are guarded by the pool's lock.
type loan struct {
	running
	pool    *pool
	task    *Task
	begun   time.Time
	details *journalpb.Payload
	result  *Result // nil until the body has returned
	stray   bool    // it was given up, and its body runs on
}

// Work offers the places of this node to the one that leads, for as long as it
// takes an exchange to end. What was begun goes on after that, and results are
// kept: they are offered in the next exchange, to whoever leads then. Of hello,
// Tags and Limits are those of the configuration; without Activities nothing new
// is taken on.
//
// One exchange at a time; the latest counts. It returns like [Partition.Employ];
// but when ctx ends with [replay.ErrNodeStopping], it says goodbye first, and waits
// up to 500 ms until that is heard. in and out must outlive ctx for that long.
func (s *System) Work(ctx context.Context, hello Hello, in <-chan ToWorker, out chan<- FromWorker) error {
	p := s.activities
	box := newOutbox[FromWorker]()
	p.join(box, hello)
	defer p.quit(box)
	err := exchange(ctx, in, out, box, p.obey)
	if errors.Is(err, replay.ErrNodeStopping) && ctx.Err() != nil {
		p.retire(box)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeMax)
		defer cancel()
		_ = exchange(ctx, in, out, box, p.obey) // until the leader, who has heard it, ends it
	}
	return err
}

// retire ends what runs here for others, and says so.
func (p *pool) retire(box *outbox[FromWorker]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving = true
	box.put(FromWorker{Goodbye: true})
	p.cancel(replay.ErrNodeStopping)
}

// join begins an exchange: it says what this node can do and what it has.
func (p *pool) join(box *outbox[FromWorker], hello Hello) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.employer = box
	hello.Tags, hello.Limits = p.system.config.Tags, p.system.config.ActivityLimits
	box.put(FromWorker{Hello: &hello})
	for _, l := range p.loans {
		if l.result != nil {
			box.put(FromWorker{Result: l.result})
			continue
		}
		box.put(FromWorker{Run: &Run{l.task.AttemptID, l.task.Name, time.Since(l.begun)}})
	}
	if free := p.system.config.ActivitiesMax - len(p.loans) - p.strays; free > 0 {
		box.put(FromWorker{Freed: free})
	}
}

func (p *pool) quit(box *outbox[FromWorker]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.employer == box {
		p.employer = nil
	}
}

// say tells the leader, if there is one that listens: the next will be told in
// its turn. p.mu is held.
func (p *pool) say(m FromWorker) {
	if p.employer != nil {
		p.employer.put(m)
	}
}

// obey does what the leader says.
func (p *pool) obey(m ToWorker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.Task != nil:
		p.lend(m.Task)
	case m.GiveUp != nil:
		if l := p.loans[m.GiveUp.key()]; l != nil {
			l.giveUp(m.GiveUp.Timeout)
		}
	case m.Ack != nil:
		if l := p.loans[m.Ack.key()]; l != nil && l.result != nil {
			delete(p.loans, m.Ack.key())
			p.say(FromWorker{Freed: 1})
		}
	}
}

// lend takes on an attempt, unless it is here already. p.mu is held.
func (p *pool) lend(t *Task) {
	if l := p.loans[t.key()]; l != nil {
		if l.result != nil {
			p.say(FromWorker{Result: l.result})
		}
		return
	}
	if p.closed || p.leaving {
		return
	}
	l := &loan{pool: p, task: t, begun: time.Now(), details: t.Details}
	l.carried, l.settler = t.Carried, l
	l.context, l.cancel = context.WithCancelCause(p.context)
	l.info = replay.Attempt{
		Name:      t.Name,
		Input:     t.Input,
		Instance:  t.Ref.Instance,
		Execution: t.Ref.Execution,
		EventID:   t.Ref.EventId,
		Number:    t.Number,
		Scheduled: t.Scheduled,
		LastError: replay.DecodeError(t.LastError),
		Details:   t.Details,
		Beat:      l.beat,
	}
	if t.Left > 0 {
		l.info.Deadline = l.begun.Add(t.Left)
	}
	p.loans[t.key()] = l
	if p.hasPlace(t.Name) {
		p.place(l)
	} else {
		p.queued = append(p.queued, l)
	}
}

func (l *loan) name() string { return l.task.Name }

// start begins the attempt. The pool's lock is held.
func (l *loan) start() (*running, bool) {
	if l.stray {
		l.pool.strays--
		l.pool.say(FromWorker{Freed: 1})
		return nil, false
	}
	l.pool.counts.Lent++
	return &l.running, true
}

// settle takes what the body has returned.
func (l *loan) settle(output *journalpb.Payload, err error) {
	failure, pending := read(err)
	p := l.pool
	p.system.attempted(&l.info, l.begun, outcomeOf(err, pending))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.stray:
		p.strays--
		p.say(FromWorker{Freed: 1})
		return
	case err != nil && !pending && errors.Is(context.Cause(l.context), replay.ErrNodeStopping):
		return // the leader will notice that this node is gone
	}
	l.result = &Result{AttemptID: l.task.AttemptID, Output: output, Pending: pending}
	if err != nil && !pending {
		l.result.Error = replay.EncodeError(failure)
	}
	if !proto.Equal(l.details, l.task.Details) {
		l.result.Details = l.details
	}
	p.say(FromWorker{Result: l.result})
}

// beat takes a heartbeat.
func (l *loan) beat(details *journalpb.Payload) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if details != nil {
		l.details = details
	}
	if p.employer != nil && !l.stray && l.result == nil {
		p.employer.replace(l.task.key(), FromWorker{Beat: &Beat{l.task.AttemptID, l.details}})
	}
}

// giveUp ends the attempt's context; what it comes to is dropped. Its place is
// taken until the body has returned. The pool's lock is held.
func (l *loan) giveUp(timeout replay.TimeoutKind) {
	p := l.pool
	delete(p.loans, l.task.key())
	if l.result != nil {
		p.say(FromWorker{Freed: 1})
		return
	}
	l.stray = true
	p.strays++
	if timeout != "" {
		l.cancel(&replay.TimeoutError{Kind: timeout})
	} else {
		l.cancel(replay.ErrGivenUp)
	}
	// One that waits for a place is not begun.
	if at := slices.Index(p.queued, job(l)); at >= 0 {
		p.queued = slices.Delete(p.queued, at, at+1)
		_, _ = l.start()
	}
}
