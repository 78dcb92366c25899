package actors

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An instance's actor runs code of its author: orchestrations, queries, payload codecs,
// and the deferred functions of coroutines that are ended. All of it should return at
// once. This file bounds what happens when it does not:
//
//   - After about a second the partition logs the stack and counts the instance as
//     blocked. The instance gives back its slots, so that others are not slowed down.
//   - Code that is blocked in the first turn of an instance is left behind once: the start is
//     recorded without it, and the code begins again. From then on everybody can see the
//     instance and terminate it.
//   - When the partition closes, when somebody terminates the instance, or when nothing
//     waits for the outcome, the partition leaves the code behind: it forgets the actor
//     and does not wait for its goroutines. If the code ever returns, the actor ends its
//     coroutines and stops. It appends nothing and answers nobody.
const (
	// How often the partition looks at code that is running, while any is.
	codeLookEvery = 500 * time.Millisecond
	// At the third look, code has been running for 1 to 1.5 s.
	codeBlockedLooks = 3
	// After how many more looks the warning is repeated: 10 min.
	codeRepeatLooks = 1200
)

// codeLabel is the profiler label of goroutines that run code of an instance. It finds
// their stacks, also in the profiles of the application.
const codeLabel = "tenuto.instance"

// errCodeBlocked is why the successor of a blocked instance records a start without running the
// code, or takes no message other than a termination until that is committed.
var errCodeBlocked = errors.New("the code of the instance is blocked outside of durable calls")

// codeState says whether the actor of an instance is running code of its author. The
// partition's lock guards all but watch and labels.
type codeState struct {
	running  bool
	starting bool // it takes the first turn of an execution that a message of the batch starts
	ending   bool // it ends coroutines; nothing waits for the outcome
	looks    int  // how often it was found running
	since    time.Time
	blocked  bool // it has been running for too long
	left     bool // for good: the actor must have no effect any more
	// Neighbors in the partition's list.
	previous, next *instance

	watch  replay.Watch
	labels context.Context // carries codeLabel; made at the first use
}

// A codeList holds the instances of a partition whose code is running. The partition's
// lock guards it.
type codeList struct {
	first   *instance
	blocked int // how many of them are blocked
	armed   bool
	timer   *time.Timer    // runs Partition.lookAtCode
	looking sync.WaitGroup // one while armed
}

// enterCode notes that the actor of an instance begins to run code. p.mu is held.
func (p *Partition) enterCode(in *instance, ending bool) {
	c := &in.code
	c.running, c.starting, c.ending, c.looks = true, false, ending, 0
	c.next = p.code.first
	if c.next != nil {
		c.next.code.previous = in
	}
	p.code.first = in
	if p.code.armed {
		return
	}
	p.code.armed = true
	p.code.looking.Add(1)
	if p.code.timer == nil {
		p.code.timer = time.AfterFunc(codeLookEvery, p.lookAtCode)
	} else {
		p.code.timer.Reset(codeLookEvery)
	}
}

// leaveCode notes that the code has returned, and reports how long it was blocked and
// whether it was left behind meanwhile.
func (p *Partition) leaveCode(in *instance) (blocked time.Duration, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &in.code
	switch {
	case c.left:
		return 0, true
	case c.blocked:
		p.system.dispatcher.resume()
		blocked = time.Since(c.since)
	}
	p.unlinkCode(in)
	return blocked, false
}

// unlinkCode takes an instance off the list. p.mu is held.
func (p *Partition) unlinkCode(in *instance) {
	c := &in.code
	if !c.running {
		return
	}
	if c.next != nil {
		c.next.code.previous = c.previous
	}
	if c.previous != nil {
		c.previous.code.next = c.next
	} else {
		p.code.first = c.next
	}
	if c.blocked {
		p.code.blocked--
	}
	c.running, c.blocked, c.previous, c.next = false, false, nil, nil
}

// leftBehind is the panic that ends what an actor is doing whose code was left behind.
type leftBehind struct{}

// runsCode labels the goroutine of the actor, and those that the code starts.
func (in *instance) runsCode() {
	if in.code.labels == nil {
		in.code.labels = pprof.WithLabels(context.Background(), pprof.Labels(codeLabel, in.id))
	}
	pprof.SetGoroutineLabels(in.code.labels)
}

// codeDone is called when the code has returned. It panics if that was left behind.
func (in *instance) codeDone() {
	pprof.SetGoroutineLabels(context.Background())
	blocked, left := in.partition.leaveCode(in)
	if left {
		panic(leftBehind{})
	}
	if blocked > 0 {
		in.partition.logger.Info("blocked code goes on", "instance", in.id, "execution", in.number, "after", blocked)
	}
}

// A codeReport is a line to be logged about code that is blocked.
type codeReport struct {
	in      *instance
	eventID uint64
	since   time.Time
	left    string // why it was left behind; "" if it was not
}

// lookAtCode looks after code that is running, and goes on until none is.
func (p *Partition) lookAtCode() {
	var reports []codeReport
	var waiting []Message
	p.mu.Lock()
	for in := p.code.first; in != nil; {
		next := in.code.next
		report, messages := p.lookAt(in)
		if report != nil {
			reports = append(reports, *report)
		}
		waiting = append(waiting, messages...)
		in = next
	}
	p.mu.Unlock()
	for _, m := range waiting {
		m.answer(Answer{Err: ErrStopped})
	}
	p.logBlocked(reports)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.code.first != nil {
		p.code.timer.Reset(codeLookEvery)
		return
	}
	p.code.armed = false
	p.code.looking.Done()
}

// lookAt looks after one instance. The messages that it returns are to be answered with
// ErrStopped. p.mu is held.
func (p *Partition) lookAt(in *instance) (report *codeReport, waiting []Message) {
	c := &in.code
	c.looks++
	if c.looks == 1 {
		c.since = time.Now()
	}
	if c.looks < codeBlockedLooks || c.looks > codeBlockedLooks && (c.looks-codeBlockedLooks)%codeRepeatLooks != 0 {
		return nil, nil
	}
	report = &codeReport{in: in, eventID: c.watch.EventID(), since: c.since}
	if !c.blocked {
		c.blocked = true
		p.code.blocked++
		p.exit(in)
		p.system.dispatcher.pause()
	}
	switch {
	case p.closed:
		report.left = "the partition closes"
		return report, p.leaveBehind(in)
	case c.starting:
		report.left = "its start is recorded first, then the code begins again"
		p.replace(in)
	case slices.ContainsFunc(in.notTaken(), terminates):
		report.left = "the instance is terminated"
		p.replace(in)
	case c.ending:
		report.left = "its coroutines are being ended and nothing waits for them"
		p.replace(in)
	}
	return report, nil
}

// notTaken returns the messages that a blocked instance is taking, and those that wait.
// p.mu is held.
func (in *instance) notTaken() []Message {
	if in.forming == nil {
		return in.inbox
	}
	return slices.Concat(in.forming.batch, in.inbox)
}

// leaveBehind forgets the actor of an instance whose code is blocked, and returns the
// messages that it has not taken or has not answered. p.mu is held.
func (p *Partition) leaveBehind(in *instance) []Message {
	waiting := in.notTaken()
	in.inbox = nil
	p.unlinkCode(in)
	in.code.left = true
	in.code.watch.Abandon()
	p.forget(in)
	p.system.dispatcher.forsake()
	p.system.counters.leftBehind.Add(1)
	p.live.Done()
	return waiting
}

// replace leaves the blocked code of an instance behind and gives its messages to a new
// actor, which records a start first, if there is one, or takes a termination first, without
// running the code. p.mu is held.
func (p *Partition) replace(in *instance) {
	current, stalled := p.instances[in.id] == in, in.stalled
	waiting := p.leaveBehind(in)
	if !current || len(waiting) == 0 && stalled == nil {
		return // an evicted instance has no messages
	}
	next := newInstance(p, in.id)
	p.instances[in.id] = next
	next.inbox, next.held, next.batchMax, next.awake = waiting, in.held, in.batchMax, true
	next.startsAlone = in.code.starting
	if stalled == nil && !next.startsAlone && slices.ContainsFunc(waiting, terminates) {
		stalled = errCodeBlocked
	}
	p.setStalled(next, stalled)
	p.tell(next, wakeUp{})
}

// strayed is called on a goroutine that the instance's code has started itself and that has
// made a durable call. The message makes the instance take a turn, which stalls it.
func (in *instance) strayed(m *replay.Mismatch) {
	in.partition.logger.Warn("durable call on a goroutine that the orchestration started itself: the goroutine ends, the instance stalls",
		"instance", in.id, "execution", m.Execution, "event_id", m.EventID, "source", m.Source)
	in.partition.nudge(in.id)
}

// returned ends an actor whose code was left behind and has returned. What it has done
// since is forgotten with it.
func (in *instance) returned() {
	in.gone, in.mailbox.left = true, true
	if in.execution != nil {
		in.execution.Drop()
		in.execution = nil
	}
	in.partition.system.counters.leftBehind.Add(-1)
	in.partition.logger.Info("code that was left behind has returned, without effect", "instance", in.id, "execution", in.number)
}

// leaveBlocked leaves all code behind that is blocked when the partition closes. The
// partition leaves what blocks later when it finds it. p.mu is held.
func (p *Partition) leaveBlocked() (reports []codeReport, waiting []Message) {
	for in := p.code.first; in != nil; {
		next := in.code.next
		if in.code.blocked {
			reports = append(reports, codeReport{in, in.code.watch.EventID(), in.code.since, "the partition closes"})
			waiting = append(waiting, p.leaveBehind(in)...)
		}
		in = next
	}
	return reports, waiting
}

// closeCode returns when nobody looks after code any more. All actors have ended or were
// left behind.
func (p *Partition) closeCode() {
	p.mu.Lock()
	if p.code.armed && p.code.timer.Stop() {
		p.code.armed = false
		p.code.looking.Done()
	}
	p.mu.Unlock()
	p.code.looking.Wait()
}

// logBlocked warns of blocked code, with its stacks.
func (p *Partition) logBlocked(reports []codeReport) {
	if len(reports) == 0 {
		return
	}
	stacks := codeStacks()
	for _, r := range reports {
		attributes := []any{
			"instance", r.in.id, "event_id", r.eventID, "for", time.Since(r.since),
			"stack", stacks[r.in.id],
		}
		if r.left == "" {
			p.logger.Warn("orchestration code is blocked outside of durable calls; the instance waits for it", attributes...)
			continue
		}
		p.logger.Warn("orchestration code that is blocked outside of durable calls was left behind", append(attributes, "because", r.left)...)
	}
}
