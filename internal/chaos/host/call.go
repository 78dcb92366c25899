package host

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/replay"
)

// Execute executes a request with a node's client.
func Execute(ctx context.Context, client *cluster.Client, request evidence.Request) evidence.Answer {
	ctx, cancel := withLimit(ctx, request.Limit)
	defer cancel()
	answer := evidence.Answer{Outcome: evidence.Acked}
	if err := execute(ctx, client, request, &answer); err != nil {
		answer = evidence.Answer{Message: err.Error()}
		answer.Outcome, answer.Code = outcomeOf(err)
	}
	return answer
}

func execute(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	id := request.Instance
	switch request.Kind {
	case evidence.Start:
		orchestration := replay.Orchestration[json.RawMessage, json.RawMessage](request.Name)
		_, err := cluster.StartRun(ctx, client, orchestration, id, request.Input, cluster.RequestID(request.RequestID))
		return err
	case evidence.Send:
		event := replay.Event[json.RawMessage](request.Name)
		return cluster.Send(ctx, client, id, event, request.Input, cluster.RequestID(request.RequestID))
	case evidence.Update:
		update := replay.Update[json.RawMessage, json.RawMessage](request.Name)
		var err error
		answer.Output, err = cluster.CallUpdate(ctx, client, id, update, request.Input, cluster.RequestID(request.RequestID))
		return err
	case evidence.Terminate:
		return client.Terminate(ctx, id, "chaos")
	case evidence.Purge:
		// If nothing was removed, an earlier try whose answer was lost may have removed it.
		_, err := client.Purge(ctx, id)
		return err
	case evidence.SendOrStart:
		orchestration := replay.Orchestration[json.RawMessage, json.RawMessage](request.Name)
		event := replay.Event[json.RawMessage](Number)
		_, err := cluster.SendOrStart(ctx, client, orchestration, id, request.Input, event, request.Input, cluster.RequestID(request.RequestID))
		return err
	case evidence.Cancel:
		return client.Cancel(ctx, id, "chaos")
	case evidence.Suspend:
		return client.Suspend(ctx, id, "chaos")
	case evidence.Resume:
		return client.Resume(ctx, id, "chaos")
	case evidence.Complete:
		return cluster.CompleteActivity(ctx, client, request.Token, request.Input)
	}
	return executeRead(ctx, client, request, answer)
}

// executeRead executes the kinds of requests that change nothing.
func executeRead(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	switch request.Kind {
	case evidence.Wait:
		return wait(ctx, client, request.Instance, answer)
	case evidence.Read:
		return read(ctx, client, request, answer)
	case evidence.Get:
		return get(ctx, client, request, answer)
	case evidence.List:
		return list(ctx, client, request, answer)
	case evidence.Watch:
		return watch(ctx, client, request, answer)
	case evidence.Query:
		return query(ctx, client, request, answer)
	}
	return errors.New("unknown kind of call: " + string(request.Kind))
}

// withLimit returns the context of a call with Request.Limit applied.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

var rejectionErrors = map[string]error{
	evidence.NotFound: cluster.ErrNotFound,
	evidence.Exists:   cluster.ErrInstanceExists,
	evidence.Ended:    cluster.ErrEnded,
	evidence.Busy:     cluster.ErrBusy,
	evidence.Closed:   cluster.ErrActivityClosed,
}

// outcomeOf returns the outcome and code of an error, as the API documents them.
func outcomeOf(err error) (evidence.Outcome, string) {
	var unavailable *cluster.UnavailableError
	if errors.As(err, &unavailable) {
		if unavailable.NotExecuted {
			return evidence.NotExecuted, ""
		}
		return evidence.Unknown, ""
	}
	for code, rejection := range rejectionErrors {
		if errors.Is(err, rejection) {
			return evidence.Rejected, code
		}
	}
	var none *replay.NotRegisteredError
	switch {
	case errors.As(err, &none) && (none.Kind == "query" || none.Kind == "update"):
		return evidence.Rejected, evidence.NoHandler
	case errors.As(err, &none), errors.As(err, new(*replay.InvalidError)):
		return evidence.Rejected, evidence.Other
	case errors.Is(err, cluster.ErrClosed):
		return evidence.NotExecuted, ""
	}
	return evidence.Unknown, ""
}
