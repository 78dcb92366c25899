package cluster

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Cancel asks an instance to end. Its pending awaits return [replay.ErrCanceled], and its code may
// clean up. The instance ends canceled if its code returns that error. Cancel returns after the
// request is committed. A second request has no effect. If the instance is stalled or waits for
// code, the request is recorded when it continues; the same holds for Suspend and Resume.
//
// Errors: [ErrNotFound], [ErrEnded], [*replay.InvalidError], [*UnavailableError].
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

// Resume continues a suspended instance. Errors are those of [Client.Cancel].
func (c *Client) Resume(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "resume", clusterpb.ControlRequest_KIND_RESUME, reason)
}

// Retry makes a stalled instance try again. Use it after its code was fixed on a running node. A
// new leader tries again by itself. Errors are those of [Client.Cancel] without [ErrEnded]; and
// [ErrNotStalled], with the state, if the instance is neither stalled nor waiting for code.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.control(ctx, id, "retry", clusterpb.ControlRequest_KIND_RETRY, "")
}

func (c *Client) control(ctx context.Context, id, verb string, kind clusterpb.ControlRequest_Kind, reason string) error {
	if err := firstError(checkID(id), checkText("reason", reason, 0, reasonMax)); err != nil {
		return ofInstance(verb, id, err)
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
