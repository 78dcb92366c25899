package api

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// reasonBody is the body of a change that takes a reason alone.
type reasonBody struct {
	Reason string `json:"reason"`
}

// accepted is the answer of a change without a result.
type accepted struct{}

// change serves a change of an instance that takes a reason.
func change(run func(ctx context.Context, c *cluster.Client, id, reason string) error) service {
	return takes(func(ctx context.Context, r *request, body *reasonBody) (*accepted, error) {
		return &accepted{}, run(operate.WithReason(ctx, body.Reason), r.api.config.Client, r.PathValue("id"), body.Reason)
	})
}

// orNull returns a JSON value, null if it is absent.
func orNull(value json.RawMessage) json.RawMessage {
	if len(value) == 0 {
		return json.RawMessage("null")
	}
	return value
}

// startBody is the body of a start.
type startBody struct {
	Name      string            `json:"name"`
	ID        string            `json:"id"`
	Version   string            `json:"version"`
	Input     json.RawMessage   `json:"input"`
	Tags      map[string]string `json:"tags"`
	Summary   string            `json:"summary"`
	RequestID string            `json:"request_id"`
	StartAt   time.Time         `json:"start_at"`
	Deadline  time.Time         `json:"deadline"`
	Attach    bool              `json:"attach"`
	Reuse     string            `json:"reuse"` // "", "ended", "failed" or "terminate"
	Reason    string            `json:"reason"`
}

type startAnswer struct {
	ID       string `json:"id"`
	Attached bool   `json:"attached,omitempty"` // to an existing run
}

func (b *startBody) options() (options []replay.Option, err error) {
	add := func(given bool, option func() replay.Option) {
		if given {
			options = append(options, option())
		}
	}
	add(b.Version != "", func() replay.Option { return replay.Version(b.Version) })
	add(b.Summary != "", func() replay.Option { return replay.Summary(b.Summary) })
	add(b.RequestID != "", func() replay.Option { return cluster.RequestID(b.RequestID) })
	add(len(b.Tags) > 0, func() replay.Option { return cluster.Tags(b.Tags) })
	add(!b.StartAt.IsZero(), func() replay.Option { return cluster.StartAt(b.StartAt) })
	add(!b.Deadline.IsZero(), func() replay.Option { return cluster.Deadline(b.Deadline) })
	add(b.Attach, cluster.Attach)
	switch b.Reuse {
	case "":
	case "ended":
		options = append(options, cluster.ReuseWhenEnded())
	case "failed":
		options = append(options, cluster.ReuseWhenFailed())
	case "terminate":
		options = append(options, cluster.TerminateExisting())
	default:
		return nil, &replay.InvalidError{Field: "reuse", Reason: `must be "", "ended", "failed" or "terminate"`}
	}
	return options, nil
}

func (a *changeAPI) startInstance(ctx context.Context, r *request, body *startBody) (*startAnswer, error) {
	options, err := body.options()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(body.Name, schedules.ReservedPrefix) { // a job acts: its rights are those of its action
		return nil, &replay.InvalidError{Field: "name", Reason: "begins with " + strconv.Quote(schedules.ReservedPrefix) + ", which is reserved"}
	}
	if err := r.authorize(cluster.ActionStart, body.ID); err != nil {
		return nil, err
	}
	if body.Reuse == "terminate" {
		if err := r.authorize(cluster.ActionTerminate, body.ID); err != nil {
			return nil, err
		}
	}
	handle := replay.Orchestration[json.RawMessage, json.RawMessage](body.Name)
	run, err := cluster.StartRun(operate.WithReason(ctx, body.Reason), a.config.Client, handle, body.ID, orNull(body.Input), options...)
	if err != nil {
		return nil, err
	}
	return &startAnswer{run.ID, run.Attached}, nil
}

// eventBody is the body of an event.
type eventBody struct {
	Data      json.RawMessage `json:"data"`
	RequestID string          `json:"request_id"`
	Reason    string          `json:"reason"`
}

// updateBody is the body of an update.
type updateBody struct {
	Input     json.RawMessage `json:"input"`
	RequestID string          `json:"request_id"`
	Reason    string          `json:"reason"`
}

// requestID returns the option for a request ID, none for "".
func requestID(id string) (options []replay.Option) {
	if id != "" {
		options = append(options, cluster.RequestID(id))
	}
	return options
}

func (a *changeAPI) sendEvent(ctx context.Context, r *request, body *eventBody) (*accepted, error) {
	event := replay.Event[json.RawMessage](r.PathValue("name"))
	ctx = operate.WithReason(ctx, body.Reason)
	return &accepted{}, cluster.Send(ctx, a.config.Client, r.PathValue("id"), event, orNull(body.Data), requestID(body.RequestID)...)
}

// outputAnswer is what the code has answered.
type outputAnswer struct {
	Output *payload `json:"output"`
}

func (a *changeAPI) updateInstance(ctx context.Context, r *request, body *updateBody) (*outputAnswer, error) {
	name := r.PathValue("name")
	handle := replay.Update[json.RawMessage, json.RawMessage](name)
	ctx = operate.WithReason(ctx, body.Reason)
	output, err := cluster.CallUpdate(ctx, a.config.Client, r.PathValue("id"), handle, orNull(body.Input), requestID(body.RequestID)...)
	if err != nil {
		return nil, err
	}
	return &outputAnswer{a.valueOf(replay.PayloadInfo{Kind: "update", Name: name, Part: "result"}, output)}, nil
}

// copyBody is the body of a rerun, a rewind or a fork.
type copyBody struct {
	EventID    jsonNumber      `json:"event_id"` // the last event to keep
	Execution  uint64          `json:"execution"`
	ID         string          `json:"id"`    // of a fork; "": a random one
	Input      json.RawMessage `json:"input"` // of a rerun; absent: that of the run
	DropEvents bool            `json:"drop_events"`
	RequestID  string          `json:"request_id"`
	Reason     string          `json:"reason"`
}

// jsonNumber is a number, or a text of one as forms have it.
type jsonNumber uint64

// UnmarshalJSON implements [json.Unmarshaler].
func (n *jsonNumber) UnmarshalJSON(text []byte) error {
	var quoted string
	if json.Unmarshal(text, &quoted) == nil {
		text = []byte(quoted)
	}
	v, err := strconv.ParseUint(string(text), 10, 64)
	*n = jsonNumber(v)
	return err
}

type copyAnswer struct {
	ID        string `json:"id"`
	Execution uint64 `json:"execution"`
}

// copyInstance serves a rerun, a rewind or a fork.
func (a *changeAPI) copyInstance(action cluster.Action, copy func(ctx context.Context, id string, body *copyBody, options []operate.CopyOption) (*operate.Run, error)) service {
	return takes(func(ctx context.Context, r *request, body *copyBody) (*copyAnswer, error) {
		var options []operate.CopyOption
		if body.Execution != 0 {
			options = append(options, operate.OfExecution(body.Execution))
		}
		if body.DropEvents {
			options = append(options, operate.DropEvents())
		}
		if body.RequestID != "" {
			options = append(options, operate.CopyRequestID(body.RequestID))
		}
		if len(body.Input) > 0 {
			options = append(options, operate.OtherInput(body.Input))
		}
		if err := r.authorizeTarget(action, body.ID); err != nil {
			return nil, err
		}
		run, err := copy(ctx, r.PathValue("id"), body, options)
		if err != nil {
			return nil, err
		}
		return &copyAnswer{run.InstanceID, run.Execution}, nil
	})
}

// authorizeTarget returns an error if the user may not begin a run with the ID of a fork, as nodes
// ask for the calls of remote clients. "" stands for a random ID.
func (r *request) authorizeTarget(action cluster.Action, id string) error {
	if action != operate.ActionFork || id == "" {
		return nil
	}
	return r.authorize(action, id)
}

func (a *changeAPI) rerun(ctx context.Context, id string, body *copyBody, options []operate.CopyOption) (*operate.Run, error) {
	return operate.Rerun(ctx, a.config.Client, id, body.Reason, options...)
}

func (a *changeAPI) rewind(ctx context.Context, id string, body *copyBody, options []operate.CopyOption) (*operate.Run, error) {
	return operate.Rewind(ctx, a.config.Client, id, operate.ToEvent(uint64(body.EventID)), body.Reason, options...)
}

func (a *changeAPI) fork(ctx context.Context, id string, body *copyBody, options []operate.CopyOption) (*operate.Run, error) {
	return operate.Fork(ctx, a.config.Client, id, body.ID, operate.ToEvent(uint64(body.EventID)), body.Reason, options...)
}
