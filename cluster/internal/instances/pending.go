package instances

import (
	"context"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Pending returns the open operations of an instance, on the leader.
func (re *Reads) Pending(ctx context.Context, p *actors.Partition, instance string) (*clusterpb.Response, error) {
	if err := re.Barrier(ctx); err != nil {
		return nil, err
	}
	if _, ok := re.Journal.Instance(instance); !ok {
		return nil, actors.ErrNotFound
	}
	result := new(clusterpb.PendingResult)
	for open := range re.Journal.InstanceOperations(instance) {
		event, err := re.Journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			return nil, err
		}
		result.Operations = append(result.Operations, &clusterpb.OpenOperation{
			Operation: open,
			Name:      scheduledName(event),
			Since:     event.Timestamp,
			State:     string(p.ActivityState(open.Ref)),
			Receiver:  event.GetMessageSent().GetInstance(),
		})
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Pending{Pending: result}}, nil
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
