package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Run is a run of an instance. O is the type of its result.
type Run[O any] struct {
	ID     string
	client *Client
	run    runRef
}

// StartRun starts an instance of an orchestration under an ID and returns when the start is
// committed. The ID has 1 to 128 characters, each one of A-Z a-z 0-9 . _ : @ / + -.
//
// Errors: [ErrInstanceExists], unless [Attach] is given; [ErrNoCode]; [*InputError];
// [*UnavailableError].
func StartRun[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...StartOption) (*Run[O], error) {
	payload, err := client.encode(replay.PayloadInfo{Kind: "orchestration", Name: orchestration.Name(), Part: "input"}, input)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	run, err := client.start(ctx, id, orchestration.Name(), payload, options)
	if err != nil {
		return nil, err
	}
	return &Run[O]{ID: id, client: client, run: run}, nil
}

// Call starts an instance of an orchestration and waits for its result. Errors are those of
// [StartRun] and [Run.Wait].
func Call[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...StartOption) (O, error) {
	run, err := StartRun(ctx, client, orchestration, id, input, options...)
	if err != nil {
		var zero O
		return zero, err
	}
	return run.Wait(ctx)
}

// Wait returns the result of the run when its end is committed. The error is a [*RunError] if the
// run did not complete, or one of [Client.Wait].
func (r *Run[O]) Wait(ctx context.Context) (O, error) {
	var output O
	if r == nil {
		return output, &InputError{"run", "is nil"}
	}
	status, err := r.client.wait(ctx, r.ID, r.run)
	if err != nil {
		return output, err
	}
	if status.State != Completed {
		return output, &RunError{ID: r.ID, State: status.State, Err: status.Err}
	}
	if err := status.Output(&output); err != nil {
		return output, fmt.Errorf("wait for %s: %w", r.ID, err)
	}
	return output, nil
}

// Send sends an event to an instance and returns when it is committed. Events that the code does
// not wait for yet are kept, in order.
//
// Errors: [ErrNotFound], [ErrEnded], [ErrBusy], [ErrRequestIDReused], [*InputError],
// [*UnavailableError].
func Send[T any](ctx context.Context, client *Client, id string, event replay.EventHandle[T], data T, options ...SendOption) error {
	payload, err := client.encode(replay.PayloadInfo{Kind: "event", Name: event.Name(), Part: "data"}, data)
	if err != nil {
		return fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	send := &clusterpb.SendRequest{Name: event.Name(), Data: payload}
	if err := applyOptions(send, options); err != nil {
		return fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	return client.send(ctx, id, send)
}

// A SendOption changes how an event is sent.
type SendOption func(*clusterpb.SendRequest)

// EventID sets the ID of the event. Of several events that are sent to a run under one ID, only the
// first is recorded; to send the others is not an error. An ID has at most 128 bytes. Events,
// updates and [SendOrStart] must not share an ID. Defaults to a random ID for each call.
//
// An event is rejected with [ErrRequestIDReused] if its execution has recorded the ID for an event
// of another name or for an update. If an earlier execution has recorded the ID, or the run has
// ended, the event is not recorded, and that is not an error.
//
// This holds for all calls with the same ID, from any program. An execution keeps the IDs of all
// its own inputs (events, updates, cancellations, suspensions, resumptions) and at least the latest
// 256 of the earlier executions of its run. An event under an older ID is recorded again. So is an
// event that is sent to a later run. Retries of one call by this package have no such limit: the
// event is recorded once, or the error says that the outcome is unknown; see [UnavailableError].
func EventID(id string) SendOption { return func(r *clusterpb.SendRequest) { r.RequestId = id } }

// A RunError reports that a run ended without completing. Its fields:
//
//	ID    string
//	State State // Failed, Canceled or Terminated
//	Err   error // of the orchestration; replay.ErrCanceled or replay.ErrTerminated with the reason
type RunError = actors.RunError

// SendOrStart sends an event to an instance. If there is none with that ID (or, with a reuse
// option, if its run has ended), it starts the instance first. Start and event are committed
// together, and [RequestID] names both. Errors are those of [StartRun] and [Send].
func SendOrStart[I, O, T any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, event replay.EventHandle[T], data T, options ...StartOption) (*Run[O], error) {
	payload, err := client.encode(replay.PayloadInfo{Kind: "event", Name: event.Name(), Part: "data"}, data)
	if err != nil {
		return nil, fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	send := &clusterpb.SendRequest{Name: event.Name(), Data: payload}
	options = append(slices.Clone(options), Attach(), func(r *clusterpb.StartRequest) { r.Send = send })
	return StartRun(ctx, client, orchestration, id, input, options...)
}

// A StartOption changes how an instance is started.
type StartOption func(*clusterpb.StartRequest)

// Attach returns the run of an existing instance with that ID, running or ended, instead of an
// error.
func Attach() StartOption { return func(r *clusterpb.StartRequest) { r.Attach = true } }

// RequestID sets the request ID of the start. A repeated start, with the same instance ID and
// request ID, returns the run that the first one began, without an error. A start is recognized
// until its run is purged, or until a later run begins more than 1,000 executions after it. An ID
// has at most 128 bytes. Defaults to a random ID for each call.
func RequestID(id string) StartOption { return func(r *clusterpb.StartRequest) { r.RequestId = id } }

// ReuseWhenEnded allows the ID of an ended instance: a new run begins under it, with the next
// execution number. Defaults to not allowing it.
func ReuseWhenEnded() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_ENDED }
}

// ReuseWhenFailed is [ReuseWhenEnded] for an instance that has ended without completing.
func ReuseWhenFailed() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_FAILED }
}

// StartVersion sets the version of the orchestration to run. Defaults to the leader's pinned
// version, or else to its highest.
func StartVersion(version string) StartOption {
	return func(r *clusterpb.StartRequest) { r.Version = version }
}

// StartAt delays the code until a time. Times before 1678 or after 2262 count as the first or last
// moment of these years. The instance exists at once. The time is compared with the cluster time:
// see cluster/docs/time.md.
func StartAt(at time.Time) StartOption {
	return func(r *clusterpb.StartRequest) { r.StartAt = clampedUnixNanos(at) }
}

// Tags adds tags by which instances can be listed: at most 64, with keys of 1 to 128 bytes and
// values of at most 1,024 bytes.
func Tags(tags map[string]string) StartOption {
	return func(r *clusterpb.StartRequest) {
		if r.Tags == nil {
			r.Tags = make(map[string]string)
		}
		maps.Copy(r.Tags, tags)
	}
}
