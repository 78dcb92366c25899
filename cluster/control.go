package cluster

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Cancel asks an instance to end. Its pending awaits return [replay.ErrCanceled], and its code may
// clean up. The instance ends canceled if its code returns that error. Cancel returns after the
// request is committed. A second request has no effect. If the instance is stalled or waits for
// code, the request is recorded when it continues; the same holds for Suspend and Resume.
//
// Errors: [ErrNotFound], [ErrEnded], [*InputError], [*UnavailableError].
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "cancel", clusterpb.ControlRequest_KIND_CANCEL, reason)
}

// Terminate ends an instance at once without running its code, even if it is stalled or waits for
// code. Its open operations are canceled; children follow their close policy. Errors are those of
// [Client.Cancel].
func (c *Client) Terminate(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "terminate", clusterpb.ControlRequest_KIND_TERMINATE, reason)
}

// Suspend stops the code of an instance until [Client.Resume]. Inputs and completions are still
// recorded, and take effect after Resume. Errors are those of [Client.Cancel].
func (c *Client) Suspend(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "suspend", clusterpb.ControlRequest_KIND_SUSPEND, reason)
}

// Resume lets a suspended instance go on. Errors are those of [Client.Cancel].
func (c *Client) Resume(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "resume", clusterpb.ControlRequest_KIND_RESUME, reason)
}

// Retry makes a stalled instance try again. Use it after its code was fixed on a running node, or
// its history turned out to be correct. A new leader tries again by itself. Errors are those of
// [Client.Cancel] without [ErrEnded]; and [ErrNotStalled], with the state, if the instance is
// neither stalled nor waiting for code.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.control(ctx, id, "retry", clusterpb.ControlRequest_KIND_RETRY, "")
}

func (c *Client) control(ctx context.Context, id, verb string, kind clusterpb.ControlRequest_Kind, reason string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := checkText("reason", reason, 0, reasonMax); err != nil {
		return err
	}
	_, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{
		Kind: kind, Reason: reason, RequestId: rand.Text(),
	}}})
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, id, err)
	}
	return nil
}

// reasonMax bounds the reason of a control request, in bytes.
const reasonMax = 4096

func (g *partition) control(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.ControlRequest) (*clusterpb.Response, error) {
	done := &clusterpb.Response{Result: &clusterpb.Response_Control{Control: new(clusterpb.ControlResult)}}
	if r.Kind == clusterpb.ControlRequest_KIND_RETRY {
		if err := g.barrier(ctx); err != nil { // a retry records nothing that would prove leadership
			return nil, err
		}
		if err := g.retry(p, request); err != nil {
			return nil, err
		}
		return done, nil
	}
	event := controlEvent(r)
	if event == nil {
		return nil, fmt.Errorf("%w: unknown control request %d", ErrProtocol, r.Kind)
	}
	message := actors.Message{Message: replay.Message{Event: event}}
	if r.Kind == clusterpb.ControlRequest_KIND_TERMINATE {
		return done, g.terminate(ctx, p, request, r.Reason, message)
	}
	_, _, err := g.deliver(p, request, r.RequestId, message).await(ctx)
	if err := g.ignoreIfRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return done, nil
}

// retry makes a stalled instance try again. It accepts a repeated call for an instance that is not
// stalled: an earlier attempt may have succeeded.
func (g *partition) retry(p *actors.Partition, request *clusterpb.Request) error {
	known, ok := g.journal.Instance(request.Instance)
	if !ok {
		return ErrNotFound
	}
	if state := g.stateOf(p, known); state != Stalled && state != WaitingForCode && !request.Retried {
		return fmt.Errorf("%w: it is %s", ErrNotStalled, state)
	}
	p.Retry(request.Instance)
	return nil
}

// terminate ends an instance. A termination has no request ID; a repeated call must not end a run
// that began after the call was first sent.
func (g *partition) terminate(ctx context.Context, p *actors.Partition, request *clusterpb.Request, reason string, m actors.Message) error {
	if request.FirstIndex != nil {
		if err := g.checkSameRun(request.Instance, "", request.GetFirstIndex()); err != nil {
			return err
		}
	}
	_, err := await(ctx, deliverToInstance(p, request.Instance, m))
	return g.ignoreIfTerminated(request, reason, err)
}

// controlEvent returns the event of a control request, nil for an unknown kind.
func controlEvent(r *clusterpb.ControlRequest) *journalpb.Event {
	switch r.Kind {
	case clusterpb.ControlRequest_KIND_CANCEL:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
			OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.ControlRequest_KIND_TERMINATE:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: r.Reason},
		}}
	case clusterpb.ControlRequest_KIND_SUSPEND:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
			OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.ControlRequest_KIND_RESUME:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
			OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: r.Reason, RequestId: r.RequestId},
		}}
	}
	return nil
}
