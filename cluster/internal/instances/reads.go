package instances

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// ListMax bounds the instances in one page of a list.
const ListMax = 1000

// Reads answers reads from this node's replica. The actors given to a method are nil where this node
// does not lead.
type Reads struct{ Partition }

// NewReads returns the reads of a partition.
func NewReads(g Partition) *Reads { return &Reads{g} }

// IsNotFound reports whether the journal does not have what was asked for.
func IsNotFound(err error) bool { return errors.Is(err, state.ErrNotFound) }

// History returns events of an execution, in a page if the request asks for pages.
func (re *Reads) History(ctx context.Context, instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
	if err := re.Answers.Reserve(ctx, r.Paged); err != nil {
		return nil, err
	}
	known, ok := re.Journal.Instance(instance)
	if !ok || r.Execution > known.Execution { // Events rejects an older one that is gone
		return nil, actors.ErrNotFound
	}
	result := &clusterpb.HistoryResult{Execution: r.Execution}
	if result.Execution == 0 {
		result.Execution = known.Execution
	}
	size := 0
	for event, err := range re.Journal.Events(instance, result.Execution, max(r.FromEventId, 1)) {
		if err != nil {
			return nil, err
		}
		if r.Paged && size >= admission.HistoryPageBytes {
			result.More = true
			break
		}
		encoded, err := proto.Marshal(event)
		if err != nil {
			return nil, err
		}
		result.Events = append(result.Events, encoded)
		size += len(encoded)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_History{History: result}}, nil
}

// executionsMax bounds how many executions [Client.Executions] returns.
const executionsMax = 1000

// Executions returns the latest executions of an instance, at most executionsMax.
func (re *Reads) Executions(p *actors.Partition, instance string) (*clusterpb.Response, error) {
	known, ok := re.Journal.Instance(instance)
	if !ok {
		return nil, actors.ErrNotFound
	}
	result := new(clusterpb.ExecutionsResult)
	for number := max(known.Execution, executionsMax) - executionsMax + 1; number <= known.Execution; number++ {
		execution, err := re.execution(p, known, number)
		if err != nil {
			return nil, err
		}
		result.Executions = append(result.Executions, execution)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Executions{Executions: result}}, nil
}

func (re *Reads) execution(p *actors.Partition, known *journalpb.Instance, number uint64) (*clusterpb.Execution, error) {
	first, err := re.Journal.Event(known.Instance, number, 1)
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
		execution.State = string(re.StateOf(p, known))
		return execution, nil
	}
	last, err := re.lastEventOf(known.Instance, number, first)
	if err != nil {
		return nil, err
	}
	end := new(clusterpb.Status)
	FillEnd(last, end)
	execution.State, execution.Events, execution.UpdatedAt = end.State, last.EventId, last.Timestamp
	execution.Retried = last.GetOrchestrationContinuedAsNew().GetRetried()
	return execution, nil
}

// lastEventOf returns the last event of an execution that has ended. It uses an exponential search,
// because reading a long history is slow.
func (re *Reads) lastEventOf(instance string, execution uint64, first *journalpb.Event) (*journalpb.Event, error) {
	last, behind := first, uint64(0)
	for step := uint64(1); behind == 0 || last.EventId+1 < behind; {
		probe := last.EventId + step
		if behind > 0 {
			probe = (last.EventId + behind) / 2
		}
		event, err := re.Journal.Event(instance, execution, probe)
		switch {
		case err == nil:
			last, step = event, 2*step
		case IsNotFound(err):
			behind = probe
		default:
			return nil, err
		}
	}
	return last, nil
}

// List returns a page of the instances that match, or counts them.
func (re *Reads) List(ctx context.Context, p *actors.Partition, r *clusterpb.ListRequest) (*clusterpb.Response, error) {
	result := new(clusterpb.ListResult)
	for known := range re.Journal.Instances() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if known.Instance <= r.After && r.After != "" || !matches(known, r) {
			continue
		}
		state := re.StateOf(p, known)
		if len(r.States) > 0 && !slices.Contains(r.States, string(state)) {
			continue
		}
		result.Count++
		if r.Count {
			continue
		}
		if len(result.Instances) == int(min(r.Limit, ListMax)) {
			result.More = true
			break
		}
		status := IndexedStatus(known)
		status.State = string(state)
		result.Instances = append(result.Instances, status)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_List{List: result}}, nil
}

func matches(known *journalpb.Instance, r *clusterpb.ListRequest) bool {
	for key, value := range r.Tags {
		if have, ok := known.Tags[key]; !ok || have != value {
			return false
		}
	}
	if len(r.Attributes) > 0 && !hasAttributes(known, r.Attributes) {
		return false
	}
	return (r.Name == "" || known.Name == r.Name) &&
		(r.Version == "" || known.Version == r.Version) &&
		(r.Parent == "" || known.Parent.GetInstance() == r.Parent) &&
		(r.CreatedFrom == 0 || known.CreatedAt >= r.CreatedFrom) &&
		(r.CreatedBefore == 0 || known.CreatedAt < r.CreatedBefore) &&
		strings.HasPrefix(known.Instance, r.IdPrefix)
}

// hasAttributes reports whether an instance has each of the attributes with that text.
func hasAttributes(known *journalpb.Instance, wanted map[string]string) bool {
	found := 0
	for _, attribute := range known.Attributes {
		if text, ok := wanted[attribute.Name]; ok && engine.AttributeText(attribute.Value) == text {
			found++
		}
	}
	return found == len(wanted)
}

// Values returns the values of a key-value map of an instance.
func (re *Reads) Values(instance string, r *clusterpb.ValuesRequest) (*clusterpb.Response, error) {
	if _, ok := re.Journal.Instance(instance); !ok {
		return nil, actors.ErrNotFound
	}
	values, err := re.Journal.Values(instance, r.Map)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Values{Values: &clusterpb.ValuesResult{Values: values}}}, nil
}
