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

// A Worker is the body of the activity: it tells the ledger what it does.
type Worker struct {
	Node string
	Life int
	// How many Raft groups there are; 0 means one.
	Groups int
	// Tell is the way to the ledger.
	Tell func(context.Context, evidence.Effect) error
	// Self is the node on which it works, set as soon as it is started.
	Self atomic.Pointer[cluster.Node]
}

// Definitions returns the code of all workloads.
func (w *Worker) Definitions() []replay.Definition {
	return append(Orchestrations(), work.Bind(w.work), approve.Bind(w.askForApproval), idle.Bind(beIdle))
}

// effectOf is what an attempt tells when it begins.
func (w *Worker) effectOf(ctx context.Context, task evidence.Task) evidence.Effect {
	attempt := replay.ActivityInfo(ctx)
	return evidence.Effect{
		Instance: attempt.Instance, Execution: attempt.Execution, EventID: attempt.EventID,
		Attempt: attempt.Number, Node: w.Node, Life: w.Life, Task: task,
		Unseen: w.unseen(ctx, attempt),
	}
}

func (w *Worker) work(ctx context.Context, task evidence.Task) (evidence.Done, error) {
	effect := w.effectOf(ctx, task)
	if err := w.Tell(ctx, effect); err != nil {
		return evidence.Done{}, err
	}
	select {
	case <-time.After(task.Pause):
	case <-ctx.Done():
		return evidence.Done{}, context.Cause(ctx)
	}
	effect.Unseen, effect.Finished = false, true
	effect.Done = evidence.Done{Value: task.Value + 1, Nonce: rand.Text()}
	return effect.Done, w.Tell(ctx, effect)
}

// unseenShare: of so many calls one looks whether its schedule is applied here,
// because that reads the whole history.
const unseenShare = 3

// unseen tells whether this node leads the instance's group and has not applied the
// event that schedules the attempt: its effect would begin before it is committed.
// (A node that does not lead, or did not yet, may well be behind.)
func (w *Worker) unseen(ctx context.Context, attempt *replay.Attempt) bool {
	node := w.Self.Load()
	if node == nil || attempt.EventID%unseenShare != 0 || !w.leads(node, attempt.Instance) {
		return false
	}
	history, err := node.Client().HistoryOf(ctx, attempt.Instance, attempt.Execution, cluster.Stale())
	if err != nil {
		return errors.Is(err, cluster.ErrNotFound) && w.leads(node, attempt.Instance)
	}
	return history.Events[len(history.Events)-1].EventId < attempt.EventID && w.leads(node, attempt.Instance)
}

// leads tells whether a node leads the group of an instance.
func (w *Worker) leads(node *cluster.Node, instance string) bool {
	return groupsOf(node)[slots.Group(instance, w.Groups)].Leading
}

// ledgerAt returns the way to the ledger at a socket.
func ledgerAt(socket string) func(context.Context, evidence.Effect) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
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
			return fmt.Errorf("tell the ledger: %w", err)
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusNoContent {
			return fmt.Errorf("tell the ledger: %s", response.Status)
		}
		return nil
	}
}
