package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Run is a run of an instance. O is the type of its result.
type Run[O any] struct {
	ID string
	// Attached reports that another start had begun the run; see [Attach]. It is false for a
	// repetition of the start that began it.
	Attached bool

	client *Client
	run    runRef
}

// StartRun starts an instance of an orchestration under an ID and returns when the start is
// committed. The ID has 1 to 128 characters, each one of A-Z a-z 0-9 . _ : @ / + -.
//
// The options are [replay.Version], [RequestID], [Attach], [ReuseWhenEnded], [ReuseWhenFailed],
// [TerminateExisting], [StartAt], [Deadline], [replay.Retry], [replay.Summary] and [Tags]. Without
// a version the leader's pinned one runs, or else its highest.
//
// Errors: [ErrInstanceExists], unless [Attach] is given; [ErrRequestIDReused]; a
// [*replay.NotRegisteredError] if the leader has no code for the orchestration;
// [*replay.InvalidError]; [ErrProtocol] (see [Deadline], [replay.Retry]); [*UnavailableError].
//
// The run has the headers of ctx (see [replay.HeaderKey]). With headers, the error of this call and
// of [Send] and [CallUpdate] is ErrProtocol until every member speaks protocol 4.
func StartRun[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...replay.Option) (*Run[O], error) {
	return startRun(ctx, client, orchestration, id, input, new(clusterpb.StartRequest), options)
}

// startRun starts an instance with a request that it completes.
func startRun[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, start *clusterpb.StartRequest, options []replay.Option) (*Run[O], error) {
	if err := completeStart(client, orchestration, id, input, start, options); err != nil {
		return nil, err
	}
	result, err := client.start(ctx, id, start)
	if err != nil {
		return nil, err
	}
	return newRun[O](client, id, result), nil
}

// newRun returns the run that a start has begun or attached to.
func newRun[O any](client *Client, id string, result *clusterpb.StartResult) *Run[O] {
	return &Run[O]{ID: id, Attached: result.GetAttached(), client: client, run: runRef{result.GetFirstExecution(), result.GetIncarnation()}}
}

// completeStart sets in a request what is to be started, with which input and options.
func completeStart[I, O any](client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, start *clusterpb.StartRequest, options []replay.Option) error {
	payload, err := client.encode(replay.PayloadInfo{Kind: "orchestration", Name: orchestration.Name(), Part: "input"}, input)
	if err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	start.Name, start.Input = orchestration.Name(), payload
	if err := applyStartOptions(start, options); err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	return nil
}

// Call starts an instance of an orchestration and waits for its result. Errors are those of
// [StartRun] and [Run.Wait].
func Call[I, O any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...replay.Option) (O, error) {
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
		return output, fmt.Errorf("wait: %w", invalidArgument("run", "is nil"))
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
// not wait for yet are kept, in order. The event has the headers of ctx. The only option is
// [RequestID].
//
// Errors: [ErrNotFound], [ErrEnded], [ErrBusy], [ErrRequestIDReused], [*replay.InvalidError],
// [*UnavailableError], and a [*replay.PayloadError] if the data cannot be encoded or the instance
// refuses it (see [replay.Receives]).
func Send[T any](ctx context.Context, client *Client, id string, event replay.EventHandle[T], data T, options ...replay.Option) error {
	payload, err := client.encode(replay.PayloadInfo{Kind: "event", Name: event.Name(), Part: "data"}, data)
	if err != nil {
		return fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	var chosen actors.InputOptions
	if err := engine.ApplyOptions(options, &chosen, "an event"); err != nil {
		return fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	return client.send(ctx, id, &clusterpb.SendRequest{Name: event.Name(), Data: payload, RequestId: chosen.RequestID})
}

// A RunError reports that a run ended without completing. Its fields:
//
//	ID    string
//	State State // Failed, Canceled or Terminated
//	Err   error // of the orchestration; replay.ErrCanceled or replay.ErrTerminated with the reason
type RunError = actors.RunError

// SendOrStart sends an event to an instance. If there is none with that ID (or, with a reuse
// option, if its run has ended), it starts the instance first. Start and event are committed
// together, and [RequestID] names both. Errors are those of [StartRun] and [Send].
func SendOrStart[I, O, T any](ctx context.Context, client *Client, orchestration replay.OrchestrationHandle[I, O], id string, input I, event replay.EventHandle[T], data T, options ...replay.Option) (*Run[O], error) {
	payload, err := client.encode(replay.PayloadInfo{Kind: "event", Name: event.Name(), Part: "data"}, data)
	if err != nil {
		return nil, fmt.Errorf("send %q to %s: %w", event.Name(), id, err)
	}
	send := &clusterpb.SendRequest{Name: event.Name(), Data: payload}
	return startRun(ctx, client, orchestration, id, input, &clusterpb.StartRequest{Attach: true, Send: send}, options)
}

// UpdateOrStart executes an update as [CallUpdate] does. If there is no instance with that ID (or,
// with a reuse option, if its run has ended), it starts the instance first. Start and update are
// then committed together: the code validates the update when it registers the handler in its first
// step, so that the run cannot end before. [RequestID] names both: the same call, repeated, starts
// no second run and executes the update once. With [StartAt] the code has no handlers yet.
//
// Options and errors are those of [StartRun] and [CallUpdate]. The run is not nil if the error
// comes from the update: it stays, also if the update was rejected or the first step registered no
// handler. [ErrUpdateAborted] also means that the code returned without [replay.AwaitUpdates].
func UpdateOrStart[I, O, UI, UO any](ctx context.Context, client *Client, id string, orchestration replay.OrchestrationHandle[I, O], input I, update replay.UpdateHandle[UI, UO], updateInput UI, options ...replay.Option) (*Run[O], UO, error) {
	var output UO
	payload, err := client.encode(replay.PayloadInfo{Kind: "update", Name: update.Name(), Part: "input"}, updateInput)
	if err == nil {
		err = checkName("update name", update.Name())
	}
	if err != nil {
		return nil, output, fmt.Errorf("update %q of %s: %w", update.Name(), id, err)
	}
	start := &clusterpb.StartRequest{Attach: true, Update: true, BeginWith: &clusterpb.UpdateRequest{Name: update.Name(), Input: payload}}
	if err := completeStart(client, orchestration, id, input, start, options); err != nil {
		return nil, output, err
	}
	var run *Run[O]
	for request := start; ; request = proto.CloneOf(start) {
		result, startErr := client.start(ctx, id, request)
		if startErr != nil {
			return run, output, cmp.Or(err, startErr)
		}
		next := newRun[O](client, id, result)
		if run != nil && next.run == run.run {
			return run, output, err
		}
		run = next
		output, err = callUpdate[UO](ctx, client, id, &clusterpb.UpdateRequest{
			Name: update.Name(), Input: payload, RequestId: start.RequestId, FirstExecution: run.run.first,
		}, true, result.GetUpdate())
		if !errors.Is(err, ErrEnded) || !run.Attached {
			return run, output, err
		}
		// The run has ended since the start attached to it. A reuse option may allow another.
	}
}

// applyStartOptions sets the options of a start in its request.
func applyStartOptions(r *clusterpb.StartRequest, options []replay.Option) error {
	var chosen actors.StartOptions
	if err := engine.ApplyOptions(options, &chosen, "a start"); err != nil {
		return err
	}
	r.Version, r.RequestId, r.Tags, r.Summary = chosen.Version, chosen.RequestID, chosen.Tags, chosen.Summary
	r.StartAt, r.Deadline = chosen.StartAt, chosen.Deadline
	r.Attach = r.Attach || chosen.Attach
	var err error
	if r.Retry, err = engine.RecordedRetry(chosen.Retry); err != nil {
		return err
	}
	switch chosen.Reuse {
	case actors.ReuseEnded:
		r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_ENDED
	case actors.ReuseFailed:
		r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_FAILED
	case actors.ReuseTerminating:
		r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE
	}
	return actors.CheckReuse(chosen.Reuse, r.Attach)
}

// Attach makes a start return the run of an existing instance with that ID, running or ended,
// instead of an error. [Run.Attached] tells which. If it is of another orchestration, the error is
// an [ErrInstanceExists] with both names. [SendOrStart] implies it. Together with
// [ReuseWhenEnded] it ensures that a run is running: the start attaches to a running one, and
// begins another if the last has ended.
func Attach() replay.Option { return actors.Attach() }

// RequestID names a start, an event or an update, so that the call can be repeated and has one
// effect while the ID is known. This holds for all calls with the same ID, from any program. An ID
// has at most 256 bytes. Events, updates and [SendOrStart] must not share one. Defaults to a random
// ID for each call; retries of one call by this package use the same ID. They have one effect,
// whether or not the ID is still known, or the error says that the outcome is unknown (see
// [UnavailableError]).
//
// A start: a repeated start, with the same instance ID and request ID, returns the run that the
// first one began, without an error; with another orchestration or input it is rejected with
// [ErrRequestIDReused]. A start is known until its run is purged, or until a later run
// begins more than 1,000 executions after it.
//
// An event: of several events that are sent to a run under one ID, only the first is recorded; to
// send the others is not an error. An event is rejected with [ErrRequestIDReused] if its execution
// has recorded the ID for an event of another name or for an update. If an earlier execution has
// recorded the ID, or the run has ended, the event is not recorded, and that is not an error.
//
// An update: it is executed once, and every call with its ID gets its result.
//
// An execution keeps the IDs of all its own inputs (events, updates, cancellations, suspensions,
// resumptions) and at least the latest 256 of the earlier executions of its run. An event under an
// older ID is recorded again, and an update executed again. So are those that reach a later run.
func RequestID(id string) replay.Option { return actors.RequestID(id) }

// ReuseWhenEnded allows the ID of an ended instance: a new run begins under it, with the next
// execution number. Defaults to not allowing it.
func ReuseWhenEnded() replay.Option { return actors.ReuseWhenEnded() }

// ReuseWhenFailed is [ReuseWhenEnded] for an instance that has ended without completing.
func ReuseWhenFailed() replay.Option { return actors.ReuseWhenFailed() }

// TerminateExisting is [ReuseWhenEnded] that also replaces a running instance: its run is
// terminated as by [Client.Terminate], then the new run begins. The client needs [ActionTerminate].
// These are two commits: if the call stops in between, the ID has no running instance; repeat the
// call with the same [RequestID]. A running child is not replaced: the error is
// [ErrInstanceExists]. A leader of an earlier build returns that error for every existing instance.
// TerminateExisting cannot be combined with [Attach] or [SendOrStart].
func TerminateExisting() replay.Option { return actors.TerminateExisting() }

// StartAt delays the code until a time. Times before 1678 or after 2262 count as the first or last
// moment of these years. The instance exists at once. The time is compared with the cluster time:
// see cluster/docs/time.md.
func StartAt(at time.Time) replay.Option { return actors.StartAt(at) }

// Deadline requests the cancellation of the run at a cluster time, as [Client.Cancel] does, unless
// its body has ended. A past time, also the zero time, cancels at the first await. An execution
// that continues the run as new keeps the deadline, unless its code has received this cancellation
// before. A start that attaches to an existing run, or repeats a start, does not change its
// deadline. The bounds of the time are those of [StartAt]. [Client.Pending] shows its timer. A
// suspended, stalled or hung instance is canceled when it continues. The error is [ErrProtocol]
// until every member speaks protocol 4.
func Deadline(at time.Time) replay.Option { return actors.Deadline(at) }

// Tags adds tags by which instances can be listed: at most 64, with keys of 1 to 128 bytes and
// values of at most 1,024 bytes.
func Tags(tags map[string]string) replay.Option { return actors.Tags(tags) }
