package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func wait(ctx context.Context, client *cluster.Client, id string, answer *evidence.Answer) error {
	status, err := client.Wait(ctx, id)
	if err != nil {
		return err
	}
	answer.State = recordedState(status.State)
	if status.State != cluster.Completed {
		return nil
	}
	return status.Output(&answer.Output)
}

// readOptions returns the read options of a request.
func readOptions(request evidence.Request) (options []replay.Option) {
	if request.Stale {
		options = append(options, cluster.Stale())
	}
	return options
}

// read reads the history of an instance with one execution.
func read(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	recorded, err := client.History(ctx, request.Instance, readOptions(request)...)
	if err != nil {
		return err
	}
	answer.AppliedIndex = recorded.AppliedIndex
	answer.State = string(cluster.Running)
	for _, event := range recorded.Events {
		switch event.Type {
		case history.ExternalEvent:
			answer.AcceptedIDs = append(answer.AcceptedIDs, event.RequestID())
		case history.OrchestrationTerminated:
			answer.State = string(cluster.Terminated)
		}
	}
	return nil
}

// recordedState returns the state of an instance without what only the leader knows: a hung
// instance is a running one.
func recordedState(state cluster.State) string {
	if state == cluster.Hung {
		state = cluster.Running
	}
	return string(state)
}

func get(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	status, err := client.Get(ctx, request.Instance, readOptions(request)...)
	if err != nil {
		return err
	}
	answer.AppliedIndex, answer.State = status.AppliedIndex, recordedState(status.State)
	answer.Execution, answer.LastEventID = status.Execution, status.LastEventID
	return nil
}

// list lists the instances whose IDs have the request's prefix, page by page.
func list(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	for after := ""; ; {
		page, err := client.List(ctx, cluster.Filter{IDPrefix: request.Instance}, after, listPage, readOptions(request)...)
		if err != nil {
			return err
		}
		for _, status := range page.Instances {
			answer.ListedIDs = append(answer.ListedIDs, status.InstanceID)
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// listPage is small, so that lists have several pages.
const listPage = 3

// watch collects the events of an instance from a position until the instance ends or ctx ends. The
// end of ctx is not an error if the watch has returned an event.
func watch(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	from := history.Position{Execution: request.From.Execution, EventID: request.From.EventID}
	for event, err := range client.Watch(ctx, request.Instance, from) {
		if err != nil {
			if ctx.Err() != nil && len(answer.WatchedEvents) > 0 {
				return nil
			}
			return err
		}
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(eventpb.Message(event))
		if err != nil {
			return err
		}
		answer.WatchedEvents = append(answer.WatchedEvents, evidence.WatchedEvent{
			Execution: event.Execution, EventID: event.EventID, Digest: Digest(encoded),
		})
		next := event.Next()
		answer.Next = evidence.Position{Execution: next.Execution, EventID: next.EventID}
	}
	answer.State = evidence.Ended
	return nil
}

// Digest returns the SHA-256 digest of events, each preceded by its length.
func Digest(events ...[]byte) string {
	hash := sha256.New()
	for _, encoded := range events {
		_, _ = hash.Write(binary.AppendUvarint(nil, uint64(len(encoded))))
		_, _ = hash.Write(encoded)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// query asks an entity for its sum.
func query(ctx context.Context, client *cluster.Client, request evidence.Request, answer *evidence.Answer) error {
	value, err := cluster.Query(ctx, client, request.Instance, sum, struct{}{})
	if err != nil {
		return err
	}
	answer.Output, err = json.Marshal(value)
	return err
}
