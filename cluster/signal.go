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

// Cancel asks an instance to cancel: its pending awaits return
// [replay.ErrCanceled], it may clean up, and it ends cancelled if it lets the
// error through. It returns when the request is committed. A second request has
// no effect. Of an instance that is stalled, or waits for code, it is recorded when that goes
// on; so are the signals of Suspend and Resume.
//
// Errors: [ErrNotFound], [ErrEnded], [*InputError], [*UnavailableError].
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	return c.signal(ctx, id, "cancel", clusterpb.SignalRequest_KIND_CANCEL, reason)
}

// Terminate ends an instance at once, without running its code, also one that is
// stalled or waits for code. What it has open is given up; children follow their
// close policy. Errors are those of [Client.Cancel].
func (c *Client) Terminate(ctx context.Context, id, reason string) error {
	return c.signal(ctx, id, "terminate", clusterpb.SignalRequest_KIND_TERMINATE, reason)
}

// Suspend keeps the code of an instance from running until [Client.Resume]:
// inputs and completions are recorded meanwhile and take effect then. Errors are
// those of [Client.Cancel].
func (c *Client) Suspend(ctx context.Context, id, reason string) error {
	return c.signal(ctx, id, "suspend", clusterpb.SignalRequest_KIND_SUSPEND, reason)
}

// Resume lets a suspended instance go on. Errors are those of [Client.Cancel].
func (c *Client) Resume(ctx context.Context, id, reason string) error {
	return c.signal(ctx, id, "resume", clusterpb.SignalRequest_KIND_RESUME, reason)
}

// Retry has a stalled instance try again, after its code was mended on a running
// node or its history turned out to be right after all. A node that begins to lead does the
// same by itself. Errors are those of [Client.Cancel] without [ErrEnded], and [ErrNotStalled],
// with the state, of an instance that is neither stalled nor waits for code.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.signal(ctx, id, "retry", clusterpb.SignalRequest_KIND_RETRY, "")
}

func (c *Client) signal(ctx context.Context, id, verb string, kind clusterpb.SignalRequest_Kind, reason string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := checkText("reason", reason, 0, reasonMax); err != nil {
		return err
	}
	_, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Signal{Signal: &clusterpb.SignalRequest{
		Kind: kind, Reason: reason, RequestId: rand.Text(),
	}}})
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, id, err)
	}
	return nil
}

// reasonMax bounds the reason of a signal, in bytes.
const reasonMax = 4096

func (g *group) signal(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.SignalRequest) (*clusterpb.Response, error) {
	done := &clusterpb.Response{Result: &clusterpb.Response_Signal{Signal: new(clusterpb.SignalResult)}}
	if r.Kind == clusterpb.SignalRequest_KIND_RETRY {
		if err := g.barrier(ctx); err != nil { // nothing is recorded that would show it
			return nil, err
		}
		if err := g.retry(p, request); err != nil {
			return nil, err
		}
		return done, nil
	}
	event := signalEvent(r)
	if event == nil {
		return nil, fmt.Errorf("%w: a signal that this node does not know", ErrProtocol)
	}
	message := actors.Message{Message: replay.Message{Event: event}}
	if r.Kind == clusterpb.SignalRequest_KIND_TERMINATE {
		return done, g.terminate(ctx, p, request, r.Reason, message)
	}
	_, _, err := g.deliver(p, request, r.RequestId, message).await(ctx)
	if err := g.unlessRecorded(ctx, request, r.RequestId, err); err != nil {
		return nil, err
	}
	return done, nil
}

// retry has a stalled instance try again. One that is not stalled may be so because the call
// is made once more.
func (g *group) retry(p *actors.Partition, request *clusterpb.Request) error {
	known, ok := g.journal.Instance(request.Instance)
	if !ok {
		return ErrNotFound
	}
	if state := g.stateOf(p, known); state != Stalled && state != WaitingForCode && !request.Again {
		return fmt.Errorf("%w: it is %s", ErrNotStalled, state)
	}
	p.Retry(request.Instance)
	return nil
}

// terminate ends an instance. A termination has no request ID: what may have ended the run
// before does not end this one.
func (g *group) terminate(ctx context.Context, p *actors.Partition, request *clusterpb.Request, reason string, m actors.Message) error {
	if request.FirstIndex != nil {
		if err := g.sameRun(request.Instance, "", request.GetFirstIndex()); err != nil {
			return err
		}
	}
	_, err := await(ctx, send(p, request.Instance, m))
	return g.unlessTerminated(request, reason, err)
}

// signalEvent returns the event that a signal becomes, nil for one that is not
// known.
func signalEvent(r *clusterpb.SignalRequest) *journalpb.Event {
	switch r.Kind {
	case clusterpb.SignalRequest_KIND_CANCEL:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
			OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.SignalRequest_KIND_TERMINATE:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: r.Reason},
		}}
	case clusterpb.SignalRequest_KIND_SUSPEND:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
			OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: r.Reason, RequestId: r.RequestId},
		}}
	case clusterpb.SignalRequest_KIND_RESUME:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
			OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: r.Reason, RequestId: r.RequestId},
		}}
	}
	return nil
}
