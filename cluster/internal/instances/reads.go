package instances

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// ListMax bounds the instances in one page of a list.
const ListMax = 1000

// Reads answers reads from this node's replica.
type Reads struct{ Partition }

// NewReads returns the reads of a partition.
func NewReads(g Partition) *Reads { return &Reads{g} }

// Read answers from this node's replica. p is nil where this node does not lead.
func (re *Reads) Read(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	index := re.Journal.AppliedIndex() // taken first: the reads show at least this index
	response, err := re.lookUp(ctx, p, request)
	switch {
	case IsNotFound(err): // purged meanwhile
		return nil, actors.ErrNotFound
	case err != nil:
		return nil, err
	}
	response.AppliedIndex = index
	return response, nil
}

func (re *Reads) lookUp(ctx context.Context, p *actors.Partition, request *clusterpb.Request) (*clusterpb.Response, error) {
	switch call := request.Call.(type) {
	case *clusterpb.Request_Get:
		return re.get(p, request.Instance)
	case *clusterpb.Request_History:
		return re.history(ctx, request.Instance, call.History)
	case *clusterpb.Request_List:
		return re.list(ctx, p, call.List)
	case *clusterpb.Request_Executions:
		return re.executions(p, request.Instance)
	case *clusterpb.Request_ListTokens:
		return &clusterpb.Response{Result: &clusterpb.Response_ListTokens{ListTokens: &clusterpb.ListTokensResult{Tokens: re.Journal.Tokens()}}}, nil
	case *clusterpb.Request_Members: // this node became leader during the call
		return re.Members(), nil
	case *clusterpb.Request_CommitIndex:
		return &clusterpb.Response{Result: &clusterpb.Response_CommitIndex{CommitIndex: new(clusterpb.CommitIndexResult)}}, nil
	}
	return nil, fmt.Errorf("%w: this node does not know that kind of read", journal.ErrProtocol)
}

// IsNotFound reports whether the journal does not have what was asked for.
func IsNotFound(err error) bool { return errors.Is(err, state.ErrNotFound) }

func (re *Reads) history(ctx context.Context, instance string, r *clusterpb.HistoryRequest) (*clusterpb.Response, error) {
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

func (re *Reads) executions(p *actors.Partition, instance string) (*clusterpb.Response, error) {
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

func (re *Reads) list(ctx context.Context, p *actors.Partition, r *clusterpb.ListRequest) (*clusterpb.Response, error) {
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
	return (r.Name == "" || known.Name == r.Name) &&
		(r.Version == "" || known.Version == r.Version) &&
		(r.Parent == "" || known.Parent.GetInstance() == r.Parent) &&
		(r.CreatedFrom == 0 || known.CreatedAt >= r.CreatedFrom) &&
		(r.CreatedBefore == 0 || known.CreatedAt < r.CreatedBefore) &&
		strings.HasPrefix(known.Instance, r.IdPrefix)
}
