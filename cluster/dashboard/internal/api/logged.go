package api

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// reasonMax bounds a reason, in bytes, as the cluster does for those that histories keep.
const reasonMax = 4096

// logged makes a change that no history records, and logs who made it and why. It also logs a
// change that failed, because the outcome may be unknown or a part of it may be done.
func (r *request) logged(ctx context.Context, action cluster.Action, reason string, change func(context.Context) error, object ...any) error {
	if len(reason) > reasonMax {
		return &replay.InvalidError{Field: "reason", Reason: fmt.Sprintf("has %d bytes: at most %d are allowed", len(reason), reasonMax)}
	}
	err := change(operate.WithReason(ctx, reason))
	attributes := append([]any{"action", string(action), "principal", r.user, "reason", reason}, object...)
	if err != nil {
		attributes = append(attributes, "error", err)
	}
	r.api.config.Logger.Info("change by a user of the dashboard", attributes...)
	return err
}

func (a *changeAPI) retryInstance(ctx context.Context, r *request, body *reasonBody) (*accepted, error) {
	id := r.PathValue("id")
	return &accepted{}, r.logged(ctx, cluster.ActionRetry, body.Reason, func(ctx context.Context) error {
		return a.config.Client.Retry(ctx, id)
	}, "instance", id)
}

type purgeAnswer struct {
	Purged int `json:"purged"`
}

func (a *changeAPI) purgeInstance(ctx context.Context, r *request, body *reasonBody) (*purgeAnswer, error) {
	id, answer := r.PathValue("id"), &purgeAnswer{}
	err := r.logged(ctx, cluster.ActionPurge, body.Reason, func(ctx context.Context) (err error) {
		answer.Purged, err = a.config.Client.Purge(ctx, id)
		return err
	}, "instance", id)
	return answer, err
}

// pauseActivity serves pausing or resuming an activity, which run does.
func (a *changeAPI) pauseActivity(action cluster.Action, run func(ctx context.Context, c *cluster.Client, activity, reason string) error) service {
	return takes(func(ctx context.Context, r *request, body *reasonBody) (*accepted, error) {
		name := r.PathValue("name")
		return &accepted{}, r.logged(ctx, action, body.Reason, func(ctx context.Context) error {
			return run(ctx, a.config.Client, name, body.Reason)
		}, "activity", name)
	})
}

func (a *clusterAPI) removeNode(ctx context.Context, r *request, body *reasonBody) (*accepted, error) {
	node := r.PathValue("id")
	return &accepted{}, r.logged(ctx, cluster.ActionRemoveMember, body.Reason, func(ctx context.Context) error {
		return a.client.RemoveNode(ctx, node)
	}, "node", node)
}
