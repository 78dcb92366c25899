package host

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Answer carries a request out through a node's client.
func Answer(ctx context.Context, client *cluster.Client, request evidence.Request) evidence.Answer {
	answer := evidence.Answer{Outcome: evidence.Acked}
	if err := ask(ctx, client, request, &answer); err != nil {
		answer = evidence.Answer{Message: err.Error()}
		answer.Outcome, answer.Code = outcomeOf(err)
	}
	return answer
}

func ask(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	id := request.Instance
	switch request.Kind {
	case evidence.Start:
		orchestration := replay.Orchestration[json.RawMessage, json.RawMessage](request.Name)
		_, err := cluster.StartRun(ctx, client, orchestration, id, request.Input, cluster.RequestID(request.RequestID))
		return err
	case evidence.Send:
		event := replay.Event[json.RawMessage](request.Name)
		return cluster.Send(ctx, client, id, event, request.Input, cluster.EventID(request.RequestID))
	case evidence.Update:
		update := replay.Update[json.RawMessage, json.RawMessage](request.Name)
		var err error
		answer.Output, err = cluster.CallUpdate(ctx, client, id, update, request.Input, cluster.UpdateID(request.RequestID))
		return err
	case evidence.Terminate:
		return client.Terminate(ctx, id, "chaos")
	case evidence.Purge:
		// That it has removed none may mean that a try before has, whose answer
		// was lost.
		_, err := client.Purge(ctx, id)
		return err
	case evidence.Wait:
		return wait(ctx, client, id, answer)
	case evidence.Read:
		return read(ctx, client, request, answer)
	}
	return errors.New("no such kind of call: " + string(request.Kind))
}

func wait(ctx context.Context, client *cluster.Client, id string, answer *evidence.Answer) error {
	status, err := client.Wait(ctx, id)
	if err != nil {
		return err
	}
	answer.State = string(status.State)
	if status.State != cluster.Completed {
		return nil
	}
	return status.Output(&answer.Output)
}

// read tells of an instance that has one execution what its history says.
func read(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	var options []cluster.ReadOption
	if request.Stale {
		options = append(options, cluster.Stale())
	}
	history, err := client.History(ctx, request.Instance, options...)
	if err != nil {
		return err
	}
	answer.AppliedIndex = history.AppliedIndex
	answer.State = string(cluster.Running)
	for _, event := range history.Events {
		if external := event.GetExternalEvent(); external != nil {
			answer.Accepted = append(answer.Accepted, external.RequestId)
		}
		if event.Arm() == journalpb.ArmOrchestrationTerminated {
			answer.State = string(cluster.Terminated)
		}
	}
	return nil
}

var refusals = map[string]error{
	evidence.NotFound: cluster.ErrNotFound,
	evidence.Exists:   cluster.ErrInstanceExists,
	evidence.Ended:    cluster.ErrEnded,
	evidence.Busy:     cluster.ErrBusy,
}

// outcomeOf says what an error means, as the API promises.
func outcomeOf(err error) (evidence.Outcome, string) {
	var unavailable *cluster.UnavailableError
	if errors.As(err, &unavailable) {
		if unavailable.NotExecuted {
			return evidence.NotExecuted, ""
		}
		return evidence.Unknown, ""
	}
	for code, refusal := range refusals {
		if errors.Is(err, refusal) {
			return evidence.Refused, code
		}
	}
	var input *cluster.InputError
	var early *replay.NoUpdateError
	switch {
	case errors.As(err, &early):
		return evidence.Refused, evidence.Early
	case errors.As(err, &input), errors.Is(err, cluster.ErrNoCode):
		return evidence.Refused, evidence.Other
	case errors.Is(err, cluster.ErrClosed):
		return evidence.NotExecuted, ""
	}
	return evidence.Unknown, ""
}
