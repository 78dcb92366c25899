package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// executionsMax bounds how many executions [Client.Executions] returns.
const executionsMax = 1000

// An Execution is one execution of an instance: the part of a run up to the next continue-as-new.
type Execution struct {
	Number  uint64
	Version string
	// State is [ContinuedAsNew] for every execution of a run but its last.
	State State
	// Events is the number of events in its history.
	Events uint64
	// StartedAt and UpdatedAt are when its first and its last event were recorded.
	StartedAt time.Time
	UpdatedAt time.Time
}

// Executions returns the executions of an instance, including those of earlier runs under its ID,
// oldest first; of more than 1,000, the latest. It returns [ErrNotFound] if the instance does not
// exist.
func (c *Client) Executions(ctx context.Context, id string, options ...ReadOption) ([]Execution, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.read(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Executions{
		Executions: new(clusterpb.ExecutionsRequest),
	}}, options)
	if err != nil {
		return nil, fmt.Errorf("executions of %s: %w", id, err)
	}
	var executions []Execution
	for _, wire := range response.GetExecutions().GetExecutions() {
		executions = append(executions, Execution{
			Number:    wire.Execution,
			Version:   wire.Version,
			State:     State(wire.State),
			Events:    wire.Events,
			StartedAt: time.Unix(0, wire.StartedAt),
			UpdatedAt: time.Unix(0, wire.UpdatedAt),
		})
	}
	return executions, nil
}

func (g *partition) executions(p *actors.Partition, instance string) (*clusterpb.Response, error) {
	known, ok := g.journal.Instance(instance)
	if !ok {
		return nil, ErrNotFound
	}
	result := new(clusterpb.ExecutionsResult)
	for number := max(known.Execution, executionsMax) - executionsMax + 1; number <= known.Execution; number++ {
		execution, err := g.execution(p, known, number)
		if err != nil {
			return nil, err
		}
		result.Executions = append(result.Executions, execution)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Executions{Executions: result}}, nil
}

func (g *partition) execution(p *actors.Partition, known *journalpb.Instance, number uint64) (*clusterpb.Execution, error) {
	first, err := g.journal.Event(known.Instance, number, 1)
	if err != nil {
		return nil, err
	}
	execution := &clusterpb.Execution{
		Execution: number,
		Version:   first.GetOrchestrationStarted().GetVersion(),
		StartedAt: first.Timestamp,
		Events:    known.LastEventId,
		UpdatedAt: known.UpdatedAt,
	}
	if number == known.Execution {
		execution.State = string(g.stateOf(p, known))
		return execution, nil
	}
	last, err := g.lastEventOf(known.Instance, number, first)
	if err != nil {
		return nil, err
	}
	end := new(clusterpb.Status)
	fillEnd(last, end)
	execution.State, execution.Events, execution.UpdatedAt = end.State, last.EventId, last.Timestamp
	return execution, nil
}

// lastEventOf returns the last event of an execution that has ended. It uses an exponential search,
// because reading a long history is slow.
func (g *partition) lastEventOf(instance string, execution uint64, first *journalpb.Event) (*journalpb.Event, error) {
	last, behind := first, uint64(0)
	for step := uint64(1); behind == 0 || last.EventId+1 < behind; {
		probe := last.EventId + step
		if behind > 0 {
			probe = (last.EventId + behind) / 2
		}
		event, err := g.journal.Event(instance, execution, probe)
		switch {
		case err == nil:
			last, step = event, 2*step
		case isNotFound(err):
			behind = probe
		default:
			return nil, err
		}
	}
	return last, nil
}
