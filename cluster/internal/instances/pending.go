package instances

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Pending returns the open operations of an instance and its buffered events, on the leader.
func (re *Reads) Pending(ctx context.Context, p *actors.Partition, instance string) (*clusterpb.Response, error) {
	if err := re.Barrier(ctx); err != nil {
		return nil, err
	}
	if _, ok := re.Journal.Instance(instance); !ok {
		return nil, actors.ErrNotFound
	}
	result, deadlineShown := new(clusterpb.PendingResult), false
	for open := range re.Journal.InstanceOperations(instance) {
		event, err := re.Journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			return nil, err
		}
		name := scheduledName(event)
		if !deadlineShown && re.isDeadline(open.Ref, event) {
			name, deadlineShown = deadlineName, true
		}
		attempts := p.AttemptsOf(open.Ref)
		var paused *journalpb.PausedActivity
		if scheduled := event.GetActivityScheduled(); scheduled != nil {
			paused = re.PauseOf(scheduled.Name)
		}
		result.Operations = append(result.Operations, &clusterpb.OpenOperation{
			Paused:    paused,
			Operation: open,
			Name:      name,
			Since:     event.Timestamp,
			State:     string(attempts.State),
			Receiver:  event.GetMessageSent().GetInstance(),

			AttemptStartedAt: attempts.StartedAt,
		})
	}
	result.Operations = append(result.Operations, re.bufferedEvents(instance)...)
	return &clusterpb.Response{Result: &clusterpb.Response_Pending{Pending: result}}, nil
}

// deadlineName is the name that Pending gives to the timer of a run's deadline.
const deadlineName = "deadline"

// isDeadline reports whether an event created the timer of the run's deadline, or one of the code
// for the same time. The first of them is that of the deadline: it starts before the code.
func (re *Reads) isDeadline(ref *journalpb.OperationRef, event *journalpb.Event) bool {
	created := event.GetTimerCreated()
	if created == nil {
		return false
	}
	deadline, err := re.deadline(ref)
	return err == nil && deadline != 0 && created.FireAt == deadline
}

// deadline returns the deadline of an execution, Unix nanoseconds: that after the last copy, if it
// begins with one. It is 0 if there is none.
func (re *Reads) deadline(ref *journalpb.OperationRef) (int64, error) {
	first, err := re.Journal.Event(ref.Instance, ref.Execution, 1)
	if err != nil {
		return 0, err
	}
	copied, err := re.copyOf(ref.Instance, ref.Execution, first)
	if set := copied.GetHistoryCopied().GetDeadline(); set != 0 {
		return set, nil
	}
	return first.GetOrchestrationStarted().GetDeadline(), err
}

// copyOf returns the event that ends the copy with which an execution begins, nil if it does not
// begin with one. first is its first event.
func (re *Reads) copyOf(instance string, execution uint64, first *journalpb.Event) (*journalpb.Event, error) {
	parts := first.GetOrchestrationStarted().GetCopied()
	if len(parts) == 0 {
		return nil, nil
	}
	return re.Journal.Event(instance, execution, parts[len(parts)-1].UpTo+1)
}

// bufferedEvents returns an entry for each name of which an instance has external events that its
// code has not subscribed to, in the order of the names.
func (re *Reads) bufferedEvents(instance string) (entries []*clusterpb.OpenOperation) {
	known, _ := re.Journal.Instance(instance)
	buffered := re.Journal.BufferedEvents(instance)
	for _, name := range slices.Sorted(maps.Keys(buffered)) {
		if strings.HasPrefix(name, engine.UpdatePrefix) {
			continue
		}
		entries = append(entries, &clusterpb.OpenOperation{
			Operation: &journalpb.Operation{
				Kind: journalpb.TypeExternalEvent,
				Ref:  &journalpb.OperationRef{Instance: instance, Execution: known.GetExecution(), Incarnation: known.GetIncarnation()},
			},
			Name:     name,
			Buffered: uint64(buffered[name]),
		})
	}
	return entries
}

func scheduledName(event *journalpb.Event) string {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		return body.ActivityScheduled.Name
	case *journalpb.Event_ExternalSubscribed:
		return body.ExternalSubscribed.Name
	case *journalpb.Event_SubOrchestrationScheduled:
		return body.SubOrchestrationScheduled.Name
	case *journalpb.Event_MessageSent:
		return body.MessageSent.Event.GetName()
	}
	return ""
}
