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
	group   int // of the partition whose leader it is for
	task    *Task
	begun   time.Time // by the clock of this machine
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
// One exchange for each group at a time; the latest counts. With several groups
// each is offered a share of the places. It returns like [Partition.Employ];
// but when ctx ends with [replay.ErrNodeStopping], it says goodbye first, and waits
// up to 500 ms until that is heard. in and out must outlive ctx for that long.
func (s *System) Work(ctx context.Context, hello Hello, in <-chan ToWorker, out chan<- FromWorker) error {
	p := s.activities
	box := newOutbox[FromWorker]()
	p.join(box, hello)
	defer p.quit(hello.Group, box)
	obey := func(m ToWorker) { p.obey(hello.Group, m) }
	err := exchange(ctx, in, out, box, obey)
	if errors.Is(err, replay.ErrNodeStopping) && ctx.Err() != nil {
		p.retire(box)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeMax)
		defer cancel()
		_ = exchange(ctx, in, out, box, obey) // until the leader, who has heard it, ends it
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
	p.employers[hello.Group] = box
	hello.Tags, hello.Limits = p.system.config.Tags, p.system.config.ActivityLimits
	box.put(FromWorker{Hello: &hello})
	taken := p.strays[hello.Group]
	for _, l := range p.loans {
		if l.group != hello.Group {
			continue
		}
		taken++
		if l.result != nil {
			box.put(FromWorker{Result: l.result})
			continue
		}
		box.put(FromWorker{Run: &Run{l.task.AttemptID, l.task.Name, time.Since(l.begun)}})
	}
	if free := max(p.system.config.ActivitiesMax/p.system.config.Groups, 1) - taken; free > 0 {
		box.put(FromWorker{Freed: free})
	}
}

func (p *pool) quit(group int, box *outbox[FromWorker]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.employers[group] == box {
		delete(p.employers, group)
	}
}

// say tells the leader of a group, if there is one that listens: the next will be
// told in its turn. p.mu is held.
func (p *pool) say(group int, m FromWorker) {
	if employer := p.employers[group]; employer != nil {
		employer.put(m)
	}
}

// obey does what the leader of a group says.
func (p *pool) obey(group int, m ToWorker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.Task != nil:
		p.lend(group, m.Task)
	case m.GiveUp != nil:
		if l := p.loans[m.GiveUp.key()]; l != nil {
			l.giveUp(m.GiveUp.Timeout)
		}
	case m.Ack != nil:
		if l := p.loans[m.Ack.key()]; l != nil && l.result != nil {
			delete(p.loans, m.Ack.key())
			p.say(l.group, FromWorker{Freed: 1})
		}
	}
}

// lend takes on an attempt, unless it is here already. p.mu is held.
func (p *pool) lend(group int, t *Task) {
	if l := p.loans[t.key()]; l != nil {
		if l.result != nil {
			p.say(l.group, FromWorker{Result: l.result})
		}
		return
	}
	if p.closed || p.leaving {
		return
	}
	l := &loan{pool: p, group: group, task: t, begun: time.Now(), details: t.Details}
	l.carried, l.settler = t.Carried, l
	l.context, l.cancel = context.WithCancelCause(p.context)
	l.info = replay.Attempt{
		Name:      t.Name,
		Input:     t.Input,
		Instance:  t.Ref.Instance,
		Execution: t.Ref.Execution,
		EventID:   t.Ref.EventId,

		Incarnation: t.Ref.Incarnation,

		Number:    t.Number,
		Scheduled: t.Scheduled.Shown(),
		Deadline:  localDeadline(t.Left),
		LastError: replay.DecodeError(t.LastError),
		Details:   t.Details,
		Beat:      l.beat,
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
		l.pool.strays[l.group]--
		l.pool.say(l.group, FromWorker{Freed: 1})
		return nil, false
	}
	l.pool.counts.Lent++
	l.waited = unknownWait
	if l.task.Waited > 0 {
		l.waited = l.task.Waited + time.Since(l.begun)
	}
	return &l.running, true
}

// settle takes what the body has returned.
func (l *loan) settle(output *journalpb.Payload, err error) {
	failure, pending := read(err)
	p := l.pool
	p.system.attempted(&l.running, outcomeOf(err, pending))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.stray:
		p.strays[l.group]--
		p.say(l.group, FromWorker{Freed: 1})
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
	p.say(l.group, FromWorker{Result: l.result})
}

// beat takes a heartbeat.
func (l *loan) beat(details *journalpb.Payload) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if details != nil {
		l.details = details
	}
	if employer := p.employers[l.group]; employer != nil && !l.stray && l.result == nil {
		employer.replace(l.task.key(), FromWorker{Beat: &Beat{l.task.AttemptID, l.details}})
	}
}

// giveUp ends the attempt's context; what it comes to is dropped. Its place is
// taken until the body has returned. The pool's lock is held.
func (l *loan) giveUp(timeout replay.TimeoutKind) {
	p := l.pool
	delete(p.loans, l.task.key())
	if l.result != nil {
		p.say(l.group, FromWorker{Freed: 1})
		return
	}
	l.stray = true
	p.strays[l.group]++
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
