package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const pageSize = 1000

// A ReportRequest selects what to report of instances.
type ReportRequest struct {
	IDs []string // empty: all
	// Read this node's own state, not through the leader.
	Stale bool
	// Return only the digests of histories.
	Digests bool
	// Return only running instances that are meant to end.
	Running bool
}

// Report writes, as JSON, a Replica without instances, which states the applied indexes, and then
// one instance after the other. Instances that were purged meanwhile are omitted.
func Report(ctx context.Context, node *cluster.Node, request ReportRequest, w io.Writer) error {
	client := node.Client()
	var options []replay.Option
	if request.Stale {
		options = append(options, cluster.Stale())
	}
	out := json.NewEncoder(w)
	var head evidence.Replica
	for _, partition := range partitionsOf(node) {
		head.Applied = append(head.Applied, partition.Applied)
	}
	if err := out.Encode(head); err != nil {
		return err
	}
	visit := func(ids []string) error {
		instances, err := instancesOf(ctx, ids, func(ctx context.Context, id string) (*evidence.Instance, error) {
			return instanceOf(ctx, client, id, request.Digests, options)
		})
		for _, instance := range instances {
			err = errors.Join(err, out.Encode(instance))
		}
		return err
	}
	if len(request.IDs) > 0 {
		return visit(request.IDs)
	}
	return eachPage(ctx, client, request.Running, options, visit)
}

// readersMax bounds the concurrent reads of instances. A read through the leader takes a round trip
// between nodes; one at a time, 100,000 of them would take minutes.
const readersMax = 16

// instancesOf reads instances concurrently and returns them in the order of their IDs, without
// those that no longer exist. It returns none if a read fails.
func instancesOf(ctx context.Context, ids []string, read func(ctx context.Context, id string) (*evidence.Instance, error)) ([]*evidence.Instance, error) {
	instances := make([]*evidence.Instance, len(ids))
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(readersMax)
	for i, id := range ids {
		reading.Go(func() (err error) {
			if instances[i], err = read(ctx, id); errors.Is(err, cluster.ErrNotFound) {
				return nil
			}
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(instances, func(instance *evidence.Instance) bool { return instance == nil }), nil
}

// eachPage calls visit with the IDs of all instances, one page at a time.
func eachPage(ctx context.Context, client *cluster.Client, running bool, options []replay.Option, visit func(ids []string) error) error {
	var filter cluster.Filter
	if running {
		filter.States = []cluster.State{cluster.Running, cluster.Hung, cluster.Stalled, cluster.Suspended, cluster.WaitingForCode}
	}
	for after := ""; ; {
		page, err := client.List(ctx, filter, after, pageSize, options...)
		if err != nil {
			return err
		}
		var ids []string
		for _, status := range page.Instances {
			if running && (status.Name == Register || status.Name == Blocked) || status.Name == Open {
				continue // instances of Open are only load and are not reported
			}
			ids = append(ids, status.InstanceID)
		}
		if err := visit(ids); err != nil {
			return err
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

func instanceOf(ctx context.Context, client *cluster.Client, id string, digests bool, options []replay.Option) (*evidence.Instance, error) {
	executions, err := client.Executions(ctx, id, options...)
	if err != nil {
		return nil, err
	}
	instance := &evidence.Instance{ID: id}
	for _, e := range executions {
		history, err := client.HistoryOf(ctx, id, e.Number, options...)
		if err != nil {
			return nil, err
		}
		execution, err := executionOf(history, digests)
		if err != nil {
			return nil, err
		}
		instance.Executions = append(instance.Executions, execution)
		instance.State = recordedState(e.State)
	}
	return instance, nil
}

func executionOf(history *cluster.History, digests bool) (evidence.Execution, error) {
	execution := evidence.Execution{Number: history.Execution, Length: len(history.Events)}
	var all [][]byte
	for _, message := range eventpb.Messages(history.Events) {
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil {
			return execution, err
		}
		all = append(all, encoded)
	}
	if !digests {
		execution.Events = all
	}
	execution.Digest = Digest(all...)
	return execution, nil
}
