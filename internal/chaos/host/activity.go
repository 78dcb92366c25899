package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Worker implements the activity of all workloads. It reports each attempt to the ledger.
type Worker struct {
	Node       string
	Generation int
	// The number of partitions; 0 means 1.
	Partitions int
	// Report sends an effect to the ledger.
	Report func(context.Context, evidence.Effect) error
	remote bool // there is no node
	// Self is the node that runs the attempts. It is set after the node has started.
	Self atomic.Pointer[cluster.Node]
}

// Definitions returns the code of all workloads.
func (w *Worker) Definitions() []replay.Definition {
	return append(Orchestrations(), work.Bind(w.work), approve.Bind(w.askForApproval), idle.Bind(runIdle))
}

// effectOf returns what an attempt reports when it starts.
func (w *Worker) effectOf(ctx context.Context, task evidence.Task) evidence.Effect {
	attempt := replay.ActivityInfo(ctx)
	return evidence.Effect{
		Instance: attempt.Instance, Execution: attempt.Execution, EventID: attempt.EventID,
		Attempt: attempt.Number, Node: w.Node, Generation: w.Generation, Task: task, Worker: w.remote,
		ScheduleNotApplied: w.scheduleNotApplied(ctx, attempt),
	}
}

func (w *Worker) work(ctx context.Context, task evidence.Task) (evidence.TaskResult, error) {
	effect := w.effectOf(ctx, task)
	if err := w.Report(ctx, effect); err != nil {
		return evidence.TaskResult{}, err
	}
	select {
	case <-time.After(task.Pause):
	case <-ctx.Done():
		return evidence.TaskResult{}, context.Cause(ctx)
	}
	effect.ScheduleNotApplied, effect.Finished = false, true
	effect.Result = evidence.TaskResult{Value: task.Value + 1, Nonce: rand.Text()}
	return effect.Result, w.Report(ctx, effect)
}

// One attempt in scheduleCheckShare checks that its schedule is applied. Each check reads the whole
// history.
const scheduleCheckShare = 3

// scheduleNotApplied reports whether this node leads the instance's partition and has not applied
// the event that schedules the attempt. The attempt would then have started before its schedule was
// committed. A node that does not lead, or was not leader yet, may be behind.
func (w *Worker) scheduleNotApplied(ctx context.Context, attempt *replay.Attempt) bool {
	node := w.Self.Load()
	if node == nil || attempt.EventID%scheduleCheckShare != 0 || !w.isLeader(node, attempt.Instance) {
		return false
	}
	history, err := node.Client().HistoryOf(ctx, attempt.Instance, attempt.Execution, cluster.Stale())
	if err != nil {
		return errors.Is(err, cluster.ErrNotFound) && w.isLeader(node, attempt.Instance)
	}
	return history.Events[len(history.Events)-1].EventID < attempt.EventID && w.isLeader(node, attempt.Instance)
}

// isLeader reports whether the node leads the instance's partition.
func (w *Worker) isLeader(node *cluster.Node, instance string) bool {
	return partitionsOf(node)[slots.Partition(instance, w.Partitions)].IsLeader
}

// ledgerClient returns a function that reports effects to the ledger at a socket. Each report has
// its own connection. net/http closes a reused one if the context of the report before ends while
// its answer arrives, and the next report then fails with that context's error.
func ledgerClient(socket string) func(context.Context, evidence.Effect) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return func(ctx context.Context, effect evidence.Effect) error {
		body, err := json.Marshal(effect)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ledger", bytes.NewReader(body))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return fmt.Errorf("report to ledger: %w", err)
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusNoContent {
			return fmt.Errorf("report to ledger: %s", response.Status)
		}
		return nil
	}
}
