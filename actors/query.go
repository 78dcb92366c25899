package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Query is a question to an instance. It is not recorded.
type Query struct {
	Name  string
	Input *journalpb.Payload
}

// endedQueriesMax bounds how many ended instances are replayed for queries at once, on a node, and
// stalledChecksMax how many stalled instances check data.
const (
	endedQueriesMax  = 16
	stalledChecksMax = 16
)

// IsAnsweredAfterEnd reports whether an ended instance can answer the query. An ended instance has
// no coroutines and validates no updates.
func (q *Query) IsAnsweredAfterEnd() bool {
	return q != nil && q.Name != engine.StackQuery && !strings.HasPrefix(q.Name, engine.UpdatePrefix)
}

// codeSlots bound the code of the author that runs outside of the actors of instances: replays of
// ended instances for queries, or checks of data for stalled ones. A call counts until its code has
// returned, because code may block.
type codeSlots struct {
	slots chan struct{} // holds a value for each call

	mu    sync.Mutex
	calls map[string]chan struct{} // by instance; closed when the call is over
}

func (s *codeSlots) init(slots int) {
	s.slots, s.calls = make(chan struct{}, slots), make(map[string]chan struct{})
}

// acquire waits until a call for an instance may begin, and returns what ends it. Only one call for
// an instance runs at a time.
func (s *codeSlots) acquire(ctx, partition context.Context, id string) (release func(), err error) {
	call := make(chan struct{})
	for {
		other := s.add(id, call)
		if other == nil {
			break
		}
		if err := await(ctx, partition, other); err != nil {
			return nil, err
		}
	}
	select {
	case s.slots <- struct{}{}:
		return func() {
			s.remove(id, call)
			<-s.slots
		}, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-partition.Done():
		err = ErrStopped
	}
	s.remove(id, call)
	return nil, err
}

// add adds the call for an instance, unless there is another, which it returns.
func (s *codeSlots) add(id string, call chan struct{}) (other <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if present := s.calls[id]; present != nil {
		return present
	}
	s.calls[id] = call
	return nil
}

func (s *codeSlots) remove(id string, call chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
	close(call)
}

// await waits until a call is over.
func await(ctx, partition context.Context, call <-chan struct{}) error {
	select {
	case <-call:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-partition.Done():
		return ErrStopped
	}
}

// QueryEnded answers a query of an instance that has ended: it replays the last execution, and asks
// its handlers. If ctx ends first, the answer is the error of ctx; the goroutine that replays ends
// when the code returns. The answer is [ErrNotFound] if the instance was purged, and ok is false if
// the instance runs.
func (p *Partition) QueryEnded(ctx context.Context, id string, q *Query) (answer Answer, ok bool) {
	if meta, exists := p.journal.Instance(id); exists && meta.Status == journalpb.Status_STATUS_RUNNING {
		return Answer{}, false
	}
	release, err := p.system.endedQueries.acquire(ctx, p.context, id)
	if err != nil {
		return Answer{Err: err}, true
	}
	meta, exists := p.journal.Instance(id)
	if !exists || meta.Status == journalpb.Status_STATUS_RUNNING {
		release()
		return Answer{Err: ErrNotFound}, !exists
	}
	r := &endedReplay{partition: p, meta: meta, query: q, answers: make(chan Answer, 1)}
	go func() {
		defer release()
		r.run()
	}()
	select {
	case answer = <-r.answers:
		return answer, true
	case <-ctx.Done():
		answer.Err = ctx.Err()
	case <-p.context.Done():
		answer.Err = ErrStopped
	}
	r.monitor.Abandon()
	return answer, true
}

// An endedReplay is the replay of an ended instance for a query.
type endedReplay struct {
	partition *Partition
	meta      *journalpb.Instance
	query     *Query
	monitor   engine.Monitor
	answers   chan Answer // has room for one
}

// run sends the answer, and then ends the coroutines.
func (r *endedReplay) run() {
	defer r.recoverPanic()
	config := &r.partition.system.config
	warning := time.AfterFunc(config.HungAfter, func() {
		r.partition.logger.Warn("replay for a query of an ended instance takes long: its code may be blocked, and it holds one of the slots for such queries",
			"instance", r.meta.Instance, "execution", r.meta.Execution, "query", r.query.Name, "slots", endedQueriesMax)
	})
	defer warning.Stop()
	x := engine.NewExecution(r.meta.Instance, r.meta.Execution, config.Registry, config.Logger)
	defer x.Evict()
	x.SetMonitor(&r.monitor)
	r.answers <- r.ask(x)
}

// ask replays the execution and calls the handler.
func (r *endedReplay) ask(x *engine.Execution) (answer Answer) {
	journal := r.partition.journal
	if answer.Err = x.Replay(journal.Events(r.meta.Instance, r.meta.Execution, 1)); answer.Err == nil {
		answer.Output, answer.Err = x.Query(r.query.Name, r.query.Input)
	}
	if _, exists := journal.Instance(r.meta.Instance); !exists {
		return Answer{Err: ErrNotFound}
	}
	var mismatch *replay.Mismatch
	if errors.As(answer.Err, &mismatch) {
		answer.Err = fmt.Errorf("tenuto: the code does not fit the history of the ended instance: %w", mismatch.WithoutPayloads())
	}
	return answer
}

// recoverPanic answers with a panic of the engine.
func (r *endedReplay) recoverPanic() {
	value := recover()
	if value == nil {
		return
	}
	r.partition.system.counters.faults.Add(1)
	fault := &FaultError{Instance: r.meta.Instance, Value: value, Stack: string(debug.Stack())}
	r.partition.logger.Error("fault in query of ended instance", "instance", r.meta.Instance, "fault", value, "stack", fault.Stack)
	select {
	case r.answers <- Answer{Err: fault}:
	default: // it is answered
	}
}
