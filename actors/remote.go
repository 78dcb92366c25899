package actors

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/replay"
)

// A remote is a worker on another node, as the leader's pool sees it. Its fields
// are guarded by the pool's lock, but for the outbox, which has its own.
type remote struct {
	partition *Partition
	box       *outbox[ToWorker]
	end       context.CancelCauseFunc // of the exchange

	hello      *Hello
	activities map[string]bool
	free       int
	runs       map[attemptKey]*attempt // those that it makes and that count
	running    map[string]int          // by the name of those that it limits
}

func (r *remote) pool() *pool { return r.partition.system.activities }

// Employ has a worker run activities of the partition. in is what the worker
// says, out what it is told; they belong together, and are of no use after that.
// Results that the worker holds are taken, and what it runs since before goes on,
// if it is still wanted. What it has not done when the exchange ends is begun
// again elsewhere, unless it comes back within Config.RejoinWait.
//
// It returns when ctx ends, with its cause; when the partition is closed, with
// [replay.ErrNodeStopping]; when the worker is silent, with [ErrSilent]; when the
// worker stops, with [ErrGoodbye], and then what it has not done is begun again at
// once; or when in is closed.
func (p *Partition) Employ(ctx context.Context, in <-chan FromWorker, out chan<- ToWorker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.context, func() { cancel(context.Cause(p.context)) })()
	r := &remote{partition: p, box: newOutbox[ToWorker](), runs: make(map[attemptKey]*attempt), running: make(map[string]int), end: cancel}
	err := exchange(ctx, in, out, r.box, r.hear)
	r.pool().lose(r)
	return err
}

// employSelf has this node offer itself what it holds as a worker of a leader
// before.
func (p *Partition) employSelf() {
	pool := p.system.activities
	pool.mu.Lock()
	defer pool.mu.Unlock()
	held := false
	for _, l := range pool.loans {
		held = held || l.group == p.place.Group
	}
	if !held {
		return
	}
	up, down := make(chan FromWorker), make(chan ToWorker)
	p.rejoining.Go(func() { _ = p.Employ(p.context, up, down) })
	p.rejoining.Go(func() { _ = p.system.Work(p.context, Hello{Group: p.place.Group}, down, up) })
}

// hear takes what the worker says.
func (r *remote) hear(m FromWorker) {
	switch {
	case m.Hello != nil:
		r.meet(m.Hello)
	case r.hello == nil: // set by this goroutine alone
	case m.Run != nil:
		r.whenTakenUp(m.Run.AttemptID, func() { r.resume(m.Run) })
	case m.Freed > 0:
		r.freed(m.Freed)
	case m.Beat != nil:
		r.beat(m.Beat)
	case m.Result != nil:
		r.whenTakenUp(m.Result.AttemptID, func() { r.settle(m.Result) })
	case m.Goodbye:
		r.pool().dismiss(r)
		r.end(ErrGoodbye)
	}
}

// whenTakenUp has something about an attempt done when the operations of its
// instance are taken up: before, nothing is known of it, and it must not be taken
// for closed.
func (r *remote) whenTakenUp(id AttemptID, f func()) {
	if !r.partition.postpone(id.Ref.Instance, f) {
		f()
	}
}

// meet learns what the worker can do. One that was there under its name is lost.
func (r *remote) meet(hello *Hello) {
	p := r.pool()
	p.locked(func() func() {
		if p.closed || r.partition.context.Err() != nil || r.hello != nil {
			return nil
		}
		var then []func()
		for _, other := range slices.Clone(p.remotes[r.partition]) {
			if other.hello.Node == hello.Node {
				then = append(then, p.part(other, lostWorker))
			}
		}
		r.hello, r.activities = hello, make(map[string]bool)
		for _, name := range hello.Activities {
			r.activities[name] = true
		}
		p.remotes[r.partition] = append(p.remotes[r.partition], r)
		for _, l := range p.lines {
			if r.partition == l.class.partition && r.serves(l.class) {
				l.mark(ActivityQueued)
			}
		}
		return func() {
			for _, f := range then {
				f()
			}
		}
	})
}

// Worker returns what a node has said that it can do, nil if it is not there as a worker of
// the partition. The caller must not change it.
func (p *Partition) Worker(node string) *Hello {
	pool := p.system.activities
	pool.mu.Lock()
	defer pool.mu.Unlock()
	for _, r := range pool.remotes[p] {
		if r.hello.Node == node {
			return r.hello
		}
	}
	return nil
}

// serves tells whether the worker takes activities of a class.
func (r *remote) serves(c class) bool { return r.hasTag(c.tag) && r.activities[c.name] }

func (r *remote) hasTag(tag string) bool { return tag == "" || slices.Contains(r.hello.Tags, tag) }

// mayRun tells whether the worker's limit for a name lets one more run there.
func (r *remote) mayRun(name string) bool {
	most, limited := r.hello.Limits[name]
	return !limited || r.running[name] < most
}

// freest returns the worker with the most free places of those that take
// activities of a class, nil if there is none. p.mu is held.
func (p *pool) freest(c class) *remote {
	var freest *remote
	for _, r := range p.remotes[c.partition] {
		if r.free > 0 && (freest == nil || r.free > freest.free) && r.serves(c) && r.mayRun(c.name) {
			freest = r
		}
	}
	return freest
}

// give begins the next attempt of a task on the worker, or ends the task's
// waiting if it is too late. The pool's lock is held.
func (r *remote) give(t *task) {
	if t.tooLate(t.now()) {
		return // the alarm that says so is on its way
	}
	a := t.begin()
	r.take(a)
	r.free--
	r.pool().counts.Remote++
	task := &Task{
		AttemptID: a.id(),
		Name:      a.info.Name,
		Input:     a.info.Input,
		Scheduled: t.since,
		LastError: t.lastError,
		Details:   t.details,
		Carried:   t.carried,
		Left:      t.left(a),
		Waited:    max(a.waited, 1),
	}
	r.box.put(ToWorker{Task: task})
}

func (a *attempt) id() AttemptID { return AttemptID{a.task.ref, a.info.Number} }

// take makes the worker the one that makes an attempt. The pool's lock is held.
func (r *remote) take(a *attempt) {
	a.remote, a.lost = r, false
	r.runs[a.id().key()] = a
	r.running[a.info.Name]++
}

// release forgets an attempt that the worker makes no more, or in vain. The
// pool's lock is held.
func (r *remote) release(a *attempt) {
	a.remote = nil
	delete(r.runs, a.id().key())
	if r.running[a.info.Name]--; r.running[a.info.Name] <= 0 {
		delete(r.running, a.info.Name)
	}
}

// giveUp tells the worker that an attempt is not wanted any more. The pool's lock
// is held.
func (r *remote) giveUp(a *attempt, cause error) {
	r.release(a)
	order := &GiveUp{AttemptID: a.id()}
	var timeout *replay.TimeoutError
	if errors.As(cause, &timeout) {
		order.Timeout = timeout.Kind
	}
	r.box.put(ToWorker{GiveUp: order})
}

// freed counts places in that have become free.
func (r *remote) freed(places int) {
	r.pool().locked(func() func() {
		r.free += places
		r.pool().dispatch()
		return nil
	})
}

// find returns the task of an attempt, nil if it is over. The pool's lock is
// held.
func (r *remote) find(id AttemptID) *task {
	t := r.pool().tasks[r.partition][keyOf(id.Ref)]
	if t == nil || t.over() {
		return nil
	}
	return t
}

// resume goes on with an attempt that the worker makes since before, if nobody
// else has begun it.
func (r *remote) resume(run *Run) {
	p := r.pool()
	p.locked(func() func() {
		if r.partition.context.Err() != nil || !slices.Contains(p.remotes[r.partition], r) {
			return nil // the next exchange will say it again
		}
		t := r.find(run.AttemptID)
		switch {
		case t == nil:
		case t.current != nil && t.current.remote == r && run.Number == t.current.info.Number:
			return nil
		case t.current == nil && t.earlier && run.Number == t.failed+1:
			t.await(t.newAttempt(t.now().Add(-run.Age)))
			r.take(t.current)
			return nil
		case t.current != nil && t.current.lost && run.Number == t.current.info.Number:
			t.disarm(alarmRejoin)
			r.take(t.current)
			return nil
		}
		r.box.put(ToWorker{GiveUp: &GiveUp{AttemptID: run.AttemptID}})
		return nil
	})
}

// beat takes a heartbeat of an attempt, if the worker makes it for us.
func (r *remote) beat(b *Beat) {
	p := r.pool()
	p.mu.Lock()
	a := r.runs[b.key()]
	p.mu.Unlock()
	if a != nil {
		a.beat(b.Details)
	}
}

// settle takes what an attempt has come to, and acknowledges it when that is
// recorded, or when it is not wanted. When the partition is closed it does
// neither: the next leader will be told again.
func (r *remote) settle(result *Result) {
	acknowledge := func(err error) {
		if err == nil || errors.Is(err, ErrActivityClosed) {
			r.box.put(ToWorker{Ack: &result.AttemptID})
		}
	}
	pending := false
	p := r.pool()
	p.locked(func() func() {
		t := r.find(result.AttemptID)
		if t == nil || r.partition.context.Err() != nil {
			return nil
		}
		t.presume(result.Number)
		if t.current == nil || t.current.info.Number != result.Number {
			return nil
		}
		if t.current.remote == r {
			r.release(t.current)
		}
		if result.Details != nil {
			t.details = result.Details
		}
		if pending = result.Pending; pending {
			t.waiters = append(t.waiters, acknowledge)
			t.pend()
		}
		return nil
	})
	if pending {
		return
	}
	if result.Pending {
		acknowledge(r.late())
		return
	}
	r.partition.CompleteActivity(Completion{
		Ref: result.Ref, Attempt: result.Number, Result: result.Output, Error: result.Error,
	}, acknowledge)
}

// late says what has become of an attempt that counts no more.
func (r *remote) late() error {
	if r.partition.context.Err() != nil {
		return ErrStopped
	}
	return ErrActivityClosed
}

// Why a worker is parted with.
const (
	lostWorker = "worker lost"
	goneWorker = "worker stops"
)

// lose parts with a worker whose exchange has ended.
func (p *pool) lose(r *remote) {
	p.locked(func() func() { return p.part(r, lostWorker) })
}

// dismiss parts with a worker that does not come back, and has what it makes begun
// again at once.
func (p *pool) dismiss(r *remote) {
	p.mu.Lock()
	left := slices.Collect(maps.Values(r.runs))
	then := p.part(r, goneWorker)
	p.mu.Unlock()
	if then != nil {
		then()
	}
	for _, a := range left {
		p.renew(a)
	}
}

// part takes a worker off and gives it a little time to come back: what it makes
// goes on until then. reason is for the log. p.mu is held.
func (p *pool) part(r *remote, reason string) (then func()) {
	all := p.remotes[r.partition]
	at := slices.Index(all, r)
	if at < 0 {
		return nil
	}
	p.remotes[r.partition] = slices.Delete(all, at, at+1)
	lost := len(r.runs)
	for _, a := range r.runs {
		r.release(a)
		a.lost = true
		a.task.arm(alarmRejoin, a.task.now().Add(p.system.config.RejoinWait), func() { p.renew(a) })
	}
	return func() {
		if lost > 0 {
			r.partition.logger.Warn(reason, "worker", r.hello.Node, "activities", lost)
		}
	}
}

// renew begins an attempt again whose worker has not come back. It is the same
// attempt: that it was lost is no failure of the activity.
func (p *pool) renew(a *attempt) {
	p.locked(func() func() {
		t := a.task
		if p.closed || t.current != a || !a.lost || t.state != ActivityRunning {
			return nil
		}
		t.stop(replay.ErrNodeStopping)
		t.state, t.earlier = ActivityQueued, true
		p.counts.Again++
		return p.route(t)
	})
}

// abandon takes every attempt off the worker and leaves it at it. The pool's lock
// is held.
func (r *remote) abandon() {
	for _, a := range r.runs {
		r.release(a)
	}
}
