package instances

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// ListMax bounds the instances in one page of a list.
const ListMax = 1000

// ListDefault is how many instances a page has at most if the request does not say it.
const ListDefault = 100

// Reads answers reads from this node's replica. The actors given to a method are nil where this
// node does not lead.
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
	for encoded, err := range re.Journal.EncodedEvents(instance, result.Execution, max(r.FromEventId, 1)) {
		if err != nil {
			return nil, err
		}
		if r.Paged && size >= admission.HistoryPageBytes {
			result.More = true
			break
		}
		result.Events = append(result.Events, encoded)
		size += len(encoded)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_History{History: result}}, nil
}

// executionsMax bounds how many executions [Client.Executions] returns.
const executionsMax = 1000

// Executions returns the latest executions of an instance, at most executionsMax.
func (re *Reads) Executions(instance string) (*clusterpb.Response, error) {
	known, ok := re.Journal.Instance(instance)
	if !ok {
		return nil, actors.ErrNotFound
	}
	result := new(clusterpb.ExecutionsResult)
	for number := max(known.Execution, executionsMax) - executionsMax + 1; number <= known.Execution; number++ {
		execution, err := re.execution(known, number)
		if err != nil {
			return nil, err
		}
		result.Executions = append(result.Executions, execution)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Executions{Executions: result}}, nil
}

func (re *Reads) execution(known *journalpb.Instance, number uint64) (*clusterpb.Execution, error) {
	first, err := re.Journal.Event(known.Instance, number, 1)
	if err != nil {
		return nil, err
	}
	copied, err := re.copyOf(known.Instance, number, first)
	if err != nil {
		return nil, err
	}
	execution := &clusterpb.Execution{
		Execution: number,
		Version:   first.GetOrchestrationStarted().GetVersion(),
		StartedAt: max(first.Timestamp, copied.GetTimestamp()),
		Events:    known.LastEventId,
		UpdatedAt: known.UpdatedAt,
	}
	if number == known.Execution {
		execution.State = string(StateOf(known))
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
func (re *Reads) List(ctx context.Context, r *clusterpb.ListRequest) (*clusterpb.Response, error) {
	q, err := QueryOf(r)
	if err != nil {
		return nil, err
	}
	result := new(clusterpb.ListResult)
	if r.Count {
		err = re.count(ctx, &q, r, result)
	} else {
		err = re.listPage(ctx, &q, r, result)
	}
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_List{List: result}}, nil
}

// listPage adds a page of instances to a result.
func (re *Reads) listPage(ctx context.Context, q *index.Query, r *clusterpb.ListRequest, result *clusterpb.ListResult) error {
	err := fillPage(q, r, result, func(after *index.Cursor, limit int) (*state.QueryPage, error) {
		return re.Journal.Query(ctx, q, after, limit)
	})
	markLineage(re.Journal.Lineages(), result.Instances...)
	return err
}

// fillPage adds what query returns to a result. A caller of an earlier build takes a page that is
// not full for the last one of its partition: for such a caller it goes on until the page is full,
// also in bytes, or no instances follow.
func fillPage(q *index.Query, r *clusterpb.ListRequest, result *clusterpb.ListResult, query func(*index.Cursor, int) (*state.QueryPage, error)) error {
	bytes := 0
	for after := CursorOf(r); ; {
		page, err := query(after, LimitOf(r)-len(result.Instances))
		if err != nil {
			return err
		}
		for i, row := range page.Rows {
			result.Instances = append(result.Instances, indexedStatusOf(page.Instances[i], row))
			if q.Order != index.ByID {
				result.Keys = append(result.Keys, q.CursorOf(row).Key)
			}
		}
		result.More, result.Next, result.NextKey = page.More, page.Next.ID, page.Next.Key
		bytes += page.Bytes
		if !page.More || len(result.Instances) >= LimitOf(r) || r.AcceptsShort || bytes >= index.PageBytesMax {
			return nil
		}
		after = &page.Next
	}
}

// indexedStatusOf returns the part of a status that the index holds, with the state.
func indexedStatusOf(known *journalpb.Instance, row *index.Row) *clusterpb.Status {
	status := IndexedStatus(known)
	status.State = row.State.String()
	return status
}

// count adds the number of instances that match to a result, and the groups that the request asks
// for.
func (re *Reads) count(ctx context.Context, q *index.Query, r *clusterpb.ListRequest, result *clusterpb.ListResult) error {
	by, err := GroupingsOf(r.GroupBy)
	if err != nil {
		return err
	}
	groups, err := re.Journal.CountBy(ctx, q, by...)
	if errors.Is(err, index.ErrTooManyGroups) {
		return tooManyGroups(r)
	}
	if err != nil {
		return err
	}
	for _, g := range groups {
		result.Count += g.Count
		if len(by) > 0 {
			result.Groups = append(result.Groups, &clusterpb.InstanceGroup{Values: g.Values, Count: g.Count})
		}
	}
	return nil
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
