package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// completeBody is the body of a completion by an operator.
type completeBody struct {
	Reason string          `json:"reason"`
	Output json.RawMessage `json:"output"`
}

// failBody is the body of a failure by an operator.
type failBody struct {
	Reason string     `json:"reason"`
	Error  *errorView `json:"error"`
}

// adjustBody is the body of an adjustment. Timeouts of 0 stay as they are.
type adjustBody struct {
	Reason          string     `json:"reason"`
	StartToClose    float64    `json:"start_to_close_seconds"`
	ScheduleToClose float64    `json:"schedule_to_close_seconds"`
	ScheduleToStart float64    `json:"schedule_to_start_seconds"`
	Heartbeat       float64    `json:"heartbeat_seconds"`
	CancelGrace     float64    `json:"cancel_grace_seconds"`
	Retry           *retryBody `json:"retry"`
}

type retryBody struct {
	MaxAttempts     int     `json:"max_attempts"`
	InitialInterval float64 `json:"initial_interval_seconds"`
	Backoff         float64 `json:"backoff"`
	MaxInterval     float64 `json:"max_interval_seconds"`
}

func secondsOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// options returns the options of an adjustment.
func (b *adjustBody) options() (options []replay.Option) {
	for _, timeout := range []struct {
		seconds float64
		option  func(time.Duration) replay.Option
	}{
		{b.StartToClose, func(d time.Duration) replay.Option { return replay.StartToClose(d) }},
		{b.ScheduleToClose, func(d time.Duration) replay.Option { return replay.ScheduleToClose(d) }},
		{b.ScheduleToStart, func(d time.Duration) replay.Option { return replay.ScheduleToStart(d) }},
		{b.Heartbeat, func(d time.Duration) replay.Option { return replay.HeartbeatTimeout(d) }},
		{b.CancelGrace, func(d time.Duration) replay.Option { return replay.CancelGrace(d) }},
	} {
		if timeout.seconds != 0 {
			options = append(options, timeout.option(secondsOf(timeout.seconds)))
		}
	}
	if p := b.Retry; p != nil {
		options = append(options, replay.Retry(replay.RetryPolicy{
			MaxAttempts: p.MaxAttempts, InitialInterval: secondsOf(p.InitialInterval), Backoff: p.Backoff, MaxInterval: secondsOf(p.MaxInterval),
		}))
	}
	return options
}

// control serves an action on an open operation.
func control[B any](run func(ctx context.Context, op operate.Operation, body *B) error) service {
	return takes(func(ctx context.Context, r *request, body *B) (*accepted, error) {
		op := operate.Operation{InstanceID: r.PathValue("id")}
		var err error
		if op.Execution, err = pathNumber(r, "execution"); err != nil {
			return nil, err
		}
		if op.EventID, err = pathNumber(r, "event"); err != nil {
			return nil, err
		}
		return &accepted{}, run(ctx, op, body)
	})
}

func pathNumber(r *request, name string) (uint64, error) {
	var n jsonNumber
	if err := n.UnmarshalJSON([]byte(r.PathValue(name))); err != nil {
		return 0, &replay.InvalidError{Field: name, Reason: "must be a number"}
	}
	return uint64(n), nil
}

// simpleControl serves an action that takes a reason alone.
func (a *changeAPI) simpleControl(run func(ctx context.Context, c *cluster.Client, op operate.Operation, reason string) error) service {
	return control(func(ctx context.Context, op operate.Operation, body *reasonBody) error {
		return run(ctx, a.config.Client, op, body.Reason)
	})
}

func (a *changeAPI) complete(ctx context.Context, op operate.Operation, body *completeBody) error {
	return operate.Complete(ctx, a.config.Client, op, orNull(body.Output), body.Reason)
}

func (a *changeAPI) fail(ctx context.Context, op operate.Operation, body *failBody) error {
	if body.Error == nil || body.Error.Message == "" {
		return &replay.InvalidError{Field: "error.message", Reason: "must not be empty"}
	}
	failure := replay.NewError(body.Error.Code, body.Error.Message)
	return operate.Fail(ctx, a.config.Client, op, failure, body.Reason)
}

func (a *changeAPI) adjust(ctx context.Context, op operate.Operation, body *adjustBody) error {
	return operate.Adjust(ctx, a.config.Client, op, body.Reason, body.options()...)
}
