package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// stalls holds the instances that cannot continue, and the channels to notify when an instance
// stalls.
type stalls struct {
	mu             *sync.Mutex // the partition's, which guards the fields below
	count          int
	waitingForCode map[session.Code]int // how many of the instances wait for each code
	watchers       stallWatchers
}

// stallWatchers are the channels notified when an instance stalls.
type stallWatchers map[string]map[chan struct{}]struct{}

// WatchStalls returns a channel that receives a value when an instance stalls after the call.
// Several stalls before the caller receives are one value. The caller must call cancel.
func (p *Partition) WatchStalls(id string) (stalls <-chan struct{}, cancel func()) {
	return p.stalls.watch(id)
}

// watch implements Partition.WatchStalls.
func (s *stalls) watch(id string) (stalls <-chan struct{}, cancel func()) {
	watcher := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers[id] == nil {
		s.watchers[id] = make(map[chan struct{}]struct{})
	}
	s.watchers[id][watcher] = struct{}{}
	return watcher, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers[id], watcher)
		if len(s.watchers[id]) == 0 {
			delete(s.watchers, id)
		}
	}
}

// notify tells the watchers of an instance that it has stalled. The partition's lock is held.
func (w stallWatchers) notify(id string) {
	for watcher := range w[id] {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// WaitingForCode returns the number of instances that cannot continue because this node lacks
// their code, by code. An instance without new messages is not counted.
func (p *Partition) WaitingForCode() map[session.Code]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.stalls.waitingForCode)
}

// adjustWaitingForCode adds change to the number of instances that wait for the code named by a
// reason. The partition's lock is held.
func (s *stalls) adjustWaitingForCode(reason error, change int) {
	if reason == nil {
		return
	}
	var noCode *replay.NotRegisteredError
	if !errors.As(reason, &noCode) || noCode.Kind != "orchestration" {
		return
	}
	code := session.Code{Name: noCode.Name, Version: noCode.Version}
	if s.waitingForCode[code] += change; s.waitingForCode[code] == 0 {
		delete(s.waitingForCode, code)
	}
}

// set sets why an instance cannot continue; nil if it can. The partition's lock is held.
func (s *stalls) set(in *instance, reason error) {
	switch {
	case in.stallReason == nil && reason != nil:
		s.count++
	case in.stallReason != nil && reason == nil:
		s.count--
	}
	s.adjustWaitingForCode(in.stallReason, -1)
	s.adjustWaitingForCode(reason, 1)
	in.stallReason = reason
}

// Retry makes a stalled instance try again. It has no effect on an instance that is not stalled.
func (p *Partition) Retry(id string) {
	p.mu.Lock()
	in := p.instances[id]
	if in != nil && in.stallReason != nil {
		p.stalls.set(in, nil)
		p.send(in, wakeUp{})
	}
	p.mu.Unlock()
	if in == nil {
		p.conditions.retryRecorded(id, nil)
	}
}

// unstall lets an instance continue. It is already awake.
func (p *Partition) unstall(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalls.set(in, nil)
}

// unblock clears errCodeBlocked, so that the new actor takes all messages.
func (in *instance) unblock() {
	p := in.partition
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.stallReason == errCodeBlocked {
		p.stalls.set(in, nil)
	}
}

// logStalled logs that an instance cannot continue, without payloads.
func (p *Partition) logStalled(in *instance, mismatch *replay.Mismatch, reason error) {
	logger := p.logger.With("instance", in.id, "execution", in.executionNumber)
	if mismatch == nil {
		logger.Warn("instance stalled, it waits for a retry or another leader", "reason", reason)
		return
	}
	redacted := mismatch.WithoutPayloads()
	logger.Warn("instance stalled, it waits for code that fits its history", "reason", redacted.Kind, "event_id", redacted.EventID,
		"expected", redacted.Expected, "found", redacted.Found, "source", redacted.Source)
}

// StallReason returns why an instance cannot continue: a [*replay.Mismatch] or a
// [*replay.NotRegisteredError]; nil if it can.
func (p *Partition) StallReason(id string) error {
	_, stallReason := p.LiveState(id)
	return stallReason
}

// LiveState returns what only the leader knows of an instance: whether it is hung, and its
// StallReason. The code of a hung instance has run for longer than HungAfter without reaching a
// durable call.
func (p *Partition) LiveState(id string) (hung bool, stallReason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.instances[id]; in != nil {
		return in.code.Blocked(), in.stallReason
	}
	return false, nil
}

// QueryHungStack answers an [engine.StackQuery] of an instance that is hung: its code does not
// return to take a query. hung is false if it is not.
func (p *Partition) QueryHungStack(id string) (answer Answer, hung bool) {
	var since time.Time
	p.mu.Lock()
	if in := p.instances[id]; in != nil && in.code.Blocked() {
		since, hung = in.code.RunningSince(), true
	}
	p.mu.Unlock()
	if hung {
		answer.Output, answer.Err = p.system.config.Registry.PayloadConverter().EncodeHungStack(p.code.Stack(id), since)
	}
	return answer, hung
}

// stalledCheckMax bounds how long CheckStalled takes.
const stalledCheckMax = 100 * time.Millisecond

var errStalledCheckTooLong = errors.New("the check of an event takes too long")

// CheckStalled returns why a stalled instance will not record an event: its data does not fit what
// the code declares with [replay.Receives]. It returns nil if it fits, if the code does not declare
// the event, and if the instance is not stalled, because the instance itself then checks the event.
//
// It also returns nil if the check takes longer than 100 ms, because the code of the author that
// decodes the data blocks; the instance checks the event again when it continues. If ctx ends
// before, the error is that of ctx. The goroutine that decodes ends when the code returns.
func (p *Partition) CheckStalled(ctx context.Context, id string, event *journalpb.ExternalEvent) error {
	meta, ok := p.journal.Instance(id)
	if !ok || !p.system.config.Registry.DeclaresEvent(meta.Name, meta.Version, event.Name) {
		return nil
	}
	hung, reason := p.LiveState(id)
	if hung || reason == nil && meta.Condition == nil {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, stalledCheckMax, errStalledCheckTooLong)
	defer cancel()
	err := checkBounded(bounded, p, meta, event)
	if errors.Is(err, context.DeadlineExceeded) && context.Cause(bounded) == errStalledCheckTooLong {
		return nil
	}
	return err
}

// checkBounded checks an event for a stalled instance until ctx ends. The slots bound the
// goroutines whose code blocks, and serve nothing else.
func checkBounded(ctx context.Context, p *Partition, meta *journalpb.Instance, event *journalpb.ExternalEvent) error {
	id := meta.Instance
	release, err := p.system.stalledChecks.acquire(ctx, p.context, id)
	if err != nil {
		return err
	}
	checked := make(chan error, 1)
	go func() {
		defer release()
		var err error
		defer func() {
			if value := recover(); value != nil {
				p.logger.Error("check of an event panicked, the instance checks it again", "instance", id, "panic", fmt.Sprintf("%T", value))
			}
			checked <- err
		}()
		err = checkDeclared(p, meta, event, true)
	}()
	select {
	case err := <-checked:
		return err
	case <-ctx.Done():
		if context.Cause(ctx) == errStalledCheckTooLong {
			p.logger.Warn("decoding data of an event blocks: the stalled instance accepts events without a check until it returns",
				"instance", id, "event", event.Name)
		}
		return ctx.Err()
	case <-p.context.Done():
		return ErrStopped
	}
}

// isResident reports whether an instance has an actor.
func (p *Partition) isResident(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.instances[id] != nil
}
