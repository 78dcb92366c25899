package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Query is a question to an instance. It is not recorded.
type Query struct {
	Name  string
	Input *journalpb.Payload
}

// endedQueriesMax bounds how many ended instances are replayed for queries at once, on a node.
const endedQueriesMax = 16

// IsAnsweredAfterEnd reports whether an ended instance can answer the query. An ended instance has
// no coroutines and validates no updates.
func (q *Query) IsAnsweredAfterEnd() bool {
	return q != nil && q.Name != engine.StackQuery && !strings.HasPrefix(q.Name, engine.UpdatePrefix)
}

// QueryEnded answers a query of an instance that has ended: it replays the last execution, and asks
// its handlers. If ctx ends first, the answer is the error of ctx; the goroutine that replays ends
// when the code returns. The answer is [ErrNotFound] if the instance was purged, and ok is false if
// the instance runs.
func (p *Partition) QueryEnded(ctx context.Context, id string, q *Query) (answer Answer, ok bool) {
	meta, exists := p.journal.Instance(id)
	switch {
	case !exists:
		return Answer{Err: ErrNotFound}, true
	case meta.Status == journalpb.Status_STATUS_RUNNING:
		return Answer{}, false
	}
	select {
	case p.system.endedQueries <- struct{}{}:
	case <-ctx.Done():
		return Answer{Err: ctx.Err()}, true
	case <-p.context.Done():
		return Answer{Err: ErrStopped}, true
	}
	answers, monitor := make(chan Answer, 1), new(engine.Monitor)
	go func() {
		defer func() { <-p.system.endedQueries }()
		p.replayForQuery(meta, q, monitor, answers)
	}()
	select {
	case answer = <-answers:
		return answer, true
	case <-ctx.Done():
		answer.Err = ctx.Err()
		p.logger.Warn("query of ended instance timed out: its replay still runs and holds one of the slots for such queries", "instance", id, "execution", meta.Execution, "query", q.Name)
	case <-p.context.Done():
		answer.Err = ErrStopped
	}
	monitor.Abandon()
	return answer, true
}

// replayForQuery sends the answer to the query of an ended instance, and ends the coroutines.
func (p *Partition) replayForQuery(meta *journalpb.Instance, q *Query, monitor *engine.Monitor, answers chan<- Answer) {
	defer func() {
		if value := recover(); value != nil {
			p.system.counters.faults.Add(1)
			fault := &FaultError{Instance: meta.Instance, Value: value, Stack: string(debug.Stack())}
			p.logger.Error("fault in query of ended instance", "instance", meta.Instance, "fault", value, "stack", fault.Stack)
			select {
			case answers <- Answer{Err: fault}:
			default: // it is answered
			}
		}
	}()
	x := engine.NewExecution(meta.Instance, meta.Execution, p.system.config.Registry, p.system.config.Logger)
	defer x.Evict()
	x.SetMonitor(monitor)
	var answer Answer
	if answer.Err = x.Replay(p.journal.Events(meta.Instance, meta.Execution, 1)); answer.Err == nil {
		answer.Output, answer.Err = x.Query(q.Name, q.Input)
	}
	if _, exists := p.journal.Instance(meta.Instance); !exists {
		answer = Answer{Err: ErrNotFound}
	}
	var mismatch *replay.Mismatch
	if errors.As(answer.Err, &mismatch) {
		answer.Err = fmt.Errorf("tenuto: the code does not fit the history of the ended instance: %w", mismatch.WithoutPayloads())
	}
	answers <- answer
}
