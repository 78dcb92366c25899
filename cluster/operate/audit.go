package operate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// An AuditFilter selects actions. The zero value selects all of all instances.
type AuditFilter struct {
	// Instances selects the instances whose histories are read. Those of the orders "ended" and
	// "timer" are only instances that have ended or have a timer.
	Instances cluster.Filter
	// Principal selects the actions of one principal, as recorded: "client gw for alice". ""
	// selects all, also those of an unknown principal.
	Principal string
	// From and Before select actions recorded in that interval of cluster time, which includes From
	// and excludes Before. The zero time is no bound.
	From, Before time.Time
}

// A Record is an action that a history shows: an event that was caused from outside.
type Record struct {
	InstanceID string
	// Event has the principal, the reason and the time. Its payloads are as recorded: see
	// [history.Event.Open].
	Event history.Event
	// Operation is the EventID of the scheduling event of the operation that was acted on; 0 if the
	// action concerned the whole instance, or was an event, also one that completed a subscription.
	Operation uint64
}

// auditPage is how many instances one request lists.
const auditPage = 200

// Audit yields the actions that match a filter: instance by instance in the order of IDs, or of
// creation if filter.Instances asks for that, those of an instance in the order of its history. (In
// another order an instance that changes meanwhile could be read again and again.) It yields
// every event with a principal or a reason of an operator, and every cancellation, suspension,
// resumption and copy of a history by a client, but no copied events. It does not find actions in
// purged histories, or pauses of activities, for which see [Pauses]. Of an instance with more than
// 1,000 executions only the latest 1,000 are read.
//
// The cost is that of reading all histories of the matching instances, in pages, one instance after
// another: no index has the actions. So narrow Instances, for example by CreatedFrom or IDPrefix of
// [cluster.Filter]. Instances that were last changed before From are not read. The caller needs the
// rights [cluster.ActionList], [cluster.ActionGet] and [cluster.ActionHistory].
//
// An error ends the sequence, and comes with the zero Record. [cluster.Stale] reads from one node's
// replica, at no cost for the leader.
func Audit(ctx context.Context, client *cluster.Client, filter AuditFilter, options ...replay.Option) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		internals, err := client.Internal(access.Key{})
		if err != nil {
			yield(Record{}, fmt.Errorf("audit: %w", err))
			return
		}
		a := &audit{ctx: ctx, client: client, internals: internals, filter: filter, options: options, yield: yield}
		if err := a.run(); err != nil && !errors.Is(err, errStopped) {
			yield(Record{}, fmt.Errorf("audit: %w", err))
		}
	}
}

// errStopped ends an audit whose caller wants no more records.
var errStopped = errors.New("no more records are wanted")

// An audit is one call of Audit.
type audit struct {
	ctx       context.Context
	client    *cluster.Client
	internals access.Internals
	filter    AuditFilter
	options   []replay.Option
	yield     func(Record, error) bool
}

// inFixedOrder returns a filter that selects the same instances, in an order in which none of them
// moves. The order by timer remains if the filter selects other open operations: it says what else
// is required.
func inFixedOrder(f cluster.Filter) cluster.Filter {
	switch {
	case f.Order == "ended" && f.EndedFrom.IsZero():
		f.EndedFrom = time.Unix(0, 1) // selects only instances that have ended
	case f.Order == "timer" && f.WaitingKind == "" && f.WaitingName == "" && f.WaitingFrom.IsZero() && f.WaitingBefore.IsZero():
		f.WaitingKind = "timer"
	case f.Order == "timer", f.Order == "created":
		return f
	}
	f.Order = ""
	return f
}

func (a *audit) run() error {
	selected := inFixedOrder(a.filter.Instances)
	for after := ""; ; {
		page, err := a.client.List(a.ctx, selected, after, auditPage, a.options...)
		if err != nil {
			return err
		}
		for _, instance := range page.Instances {
			if !a.filter.From.IsZero() && instance.UpdatedAt.Before(a.filter.From) {
				continue
			}
			if err := a.readInstance(instance.InstanceID); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// readInstance reads all executions of an instance. One that was purged meanwhile has no records.
func (a *audit) readInstance(id string) error {
	executions, err := a.client.Executions(a.ctx, id, a.options...)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return err
	}
	for _, execution := range executions {
		copied := uint64(0) // the last copied event: the source has the records
		_, err := a.internals.Events(a.ctx, id, execution.Number, func(event *journalpb.Event) error {
			for _, part := range event.GetOrchestrationStarted().GetCopied() {
				copied = part.UpTo
			}
			if event.EventId > copied && a.selects(event) && !a.yield(Record{id, eventpb.New(execution.Number, event), operationOf(event)}, nil) {
				return errStopped
			}
			return nil
		}, a.options...)
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
	}
	return nil
}

func (a *audit) selects(event *journalpb.Event) bool {
	at := time.Unix(0, event.Timestamp)
	switch {
	case event.Origin == nil && !isControl(event):
		return false
	case a.filter.Principal != "" && event.GetOrigin().GetPrincipal() != a.filter.Principal:
		return false
	}
	return !at.Before(a.filter.From) && (a.filter.Before.IsZero() || at.Before(a.filter.Before))
}

// isControl reports whether a client has acted on the whole instance. A cancellation by a parent
// has no request ID.
func isControl(event *journalpb.Event) bool {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationCancelRequested:
		return body.OrchestrationCancelRequested.RequestId != ""
	case *journalpb.Event_OrchestrationSuspended, *journalpb.Event_OrchestrationResumed, *journalpb.Event_HistoryCopied:
		return true
	}
	return false
}

func operationOf(event *journalpb.Event) uint64 {
	if action := event.GetOperationControlled(); action != nil {
		return action.EventId
	}
	return event.SourceEventId
}
