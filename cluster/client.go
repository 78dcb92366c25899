package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Client starts instances, sends them events and asks about them, through the
// node that made it. Its methods may be called concurrently. The typed
// functions [Call], [StartRun] and [Send] are built on it.
//
// Every call is repeated until a leader answers; a context without a deadline
// bounds that by Config.CallTimeout. The error is then an [*UnavailableError].
type Client struct{ node *Node }

// idPattern is the alphabet and length of instance IDs.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9._:@/+-]{1,128}$`)

func checkID(id string) error {
	if !idPattern.MatchString(id) {
		return &InputError{"instance ID", fmt.Sprintf("%.140q is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -", id)}
	}
	return nil
}

// start starts an instance and returns the execution with which its run begins.
func (c *Client) start(ctx context.Context, id, name string, input *journalpb.Payload, options []StartOption) (uint64, error) {
	start := &clusterpb.StartRequest{Name: name, Input: input}
	for _, option := range options {
		option(start)
	}
	if err := firstError(checkID(id), checkStart(start)); err != nil {
		return 0, err
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Start{Start: start}}
	start.RequestId, request.Again = requestIDOr(start.RequestId)
	if start.Send != nil {
		start.Send.RequestId = start.RequestId
	}
	response, err := c.node.call(ctx, request)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", id, err)
	}
	return response.GetStart().GetFirstExecution(), nil
}

// requestIDOr returns the request ID and true if it was chosen by the user, or
// else a new one.
func requestIDOr(chosen string) (id string, again bool) {
	if chosen != "" {
		return chosen, true
	}
	return rand.Text(), false
}

// send sends an event.
func (c *Client) send(ctx context.Context, id string, send *clusterpb.SendRequest) error {
	if err := firstError(checkID(id), checkSend(send)); err != nil {
		return err
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Send{Send: send}}
	send.RequestId, request.Again = requestIDOr(send.RequestId)
	if _, err := c.node.call(ctx, request); err != nil {
		return fmt.Errorf("send %q to %s: %w", send.Name, id, err)
	}
	return nil
}

// Get returns the state of an instance. The error is [ErrNotFound] when there is
// none of that ID.
func (c *Client) Get(ctx context.Context, id string, options ...ReadOption) (*Status, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	response, err := c.read(ctx, request, options)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", id, err)
	}
	status := newStatus(response.GetGet().GetStatus())
	status.AppliedIndex = response.GetAppliedIndex()
	return status, nil
}

// History returns the history of an instance's latest execution. The error is
// [ErrNotFound] when there is no instance of that ID.
func (c *Client) History(ctx context.Context, id string, options ...ReadOption) (*History, error) {
	return c.HistoryOf(ctx, id, 0, options...)
}

// HistoryOf returns the history of one execution of an instance, counted from
// 1; 0 means the latest. The error is [ErrNotFound] when there is none.
func (c *Client) HistoryOf(ctx context.Context, id string, execution uint64, options ...ReadOption) (*History, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.read(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_History{
		History: &clusterpb.HistoryRequest{Execution: execution},
	}}, options)
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", id, err)
	}
	result := response.GetHistory()
	history := &History{InstanceID: id, Execution: result.GetExecution(), AppliedIndex: response.GetAppliedIndex()}
	for _, encoded := range result.GetEvents() {
		event := new(journalpb.Event)
		if err := proto.Unmarshal(encoded, event); err != nil {
			return nil, fmt.Errorf("history of %s: decode event: %w", id, err)
		}
		history.Events = append(history.Events, event)
	}
	return history, nil
}

// Wait returns when the latest run of an instance has ended: its status then.
//
// Errors: [ErrNotFound] when there is no instance of that ID, or it was purged;
// [*InputError]; [*UnavailableError]; [ErrClosed]; ctx's; or why the node has
// stepped aside.
func (c *Client) Wait(ctx context.Context, id string) (*Status, error) {
	status, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, id, status.FirstExecution)
}

// wait waits for the end of the run that began with that execution, on this
// node's own replica: what it shows as ended is committed.
func (c *Client) wait(ctx context.Context, id string, firstExecution uint64) (*Status, error) {
	changed, cancel := c.node.journal.Watch(id)
	defer cancel()
	var run *journalpb.Instance // as it was when it was seen first
	for {
		known, ok := c.node.journal.Instance(id)
		var status *Status
		var err error
		switch {
		case run != nil && (!ok || another(known, run)):
			err = errPurged
		case ok && known.FirstExecution >= firstExecution:
			run = known
			status, err = c.ended(known, firstExecution)
		default:
			err = c.awaitArrival(ctx, id, firstExecution, changed)
		}
		if err == nil && status == nil && run != nil {
			err = c.node.awaitChange(ctx, changed)
		}
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", id, err)
		}
		if status != nil {
			return status, nil
		}
	}
}

// catchUp is for how long a replica is thought to be behind, before the leader
// is asked for a run that is not here.
const catchUp = 250 * time.Millisecond

// awaitArrival waits until something is heard of a run that is not on this
// replica: it is on its way here, or was purged.
func (c *Client) awaitArrival(ctx context.Context, id string, firstExecution uint64, changed <-chan struct{}) error {
	soon, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	if err := c.node.awaitChange(soon, changed); err == nil || soon.Err() == nil || ctx.Err() != nil {
		return err
	}
	status, err := c.Get(ctx, id)
	if errors.Is(err, ErrNotFound) || err == nil && status.FirstExecution < firstExecution {
		return errPurged
	}
	// It exists, or there is no leader to tell; this replica will.
	return c.node.awaitChange(ctx, changed)
}

// ended returns the status of a run that has ended, nil while it has not.
func (c *Client) ended(known *journalpb.Instance, firstExecution uint64) (*Status, error) {
	status := indexed(known)
	var err error
	switch {
	case known.FirstExecution > firstExecution:
		status, err = c.earlierEnd(known, firstExecution)
	case known.Status != journalpb.Status_STATUS_RUNNING:
		err = c.node.fill(nil, known, status)
	default:
		return nil, nil
	}
	switch {
	case isNotFound(err):
		return nil, errPurged
	case err != nil:
		return nil, fmt.Errorf("read its end: %w", err)
	}
	return newStatus(status), nil
}

// earlierEnd returns how a run ended that another has followed under the same
// ID.
func (c *Client) earlierEnd(known *journalpb.Instance, firstExecution uint64) (*clusterpb.Status, error) {
	status := &clusterpb.Status{Instance: known.Instance, FirstExecution: firstExecution}
	for execution := firstExecution; execution < known.FirstExecution; execution++ {
		status.Execution = execution
		var last *journalpb.Event
		for event, err := range c.node.journal.Events(known.Instance, execution, 1) {
			if err != nil {
				return nil, err
			}
			fillEvent(event, status)
			last = event
		}
		if last.GetOrchestrationContinuedAsNew() == nil {
			fillEnd(last, status)
			break
		}
	}
	return status, nil
}

// fillEvent adds what an event says of the run to which it belongs.
func fillEvent(event *journalpb.Event, status *clusterpb.Status) {
	status.LastEventId, status.UpdatedAt = event.EventId, event.Timestamp
	if set := event.GetStatusSet(); set != nil {
		status.Published = set.Value
	}
	started := event.GetOrchestrationStarted()
	if started == nil {
		return
	}
	status.Name, status.Version, status.Parent, status.Tags = started.Name, started.Version, started.Parent, started.Tags
	status.Published = started.Status
	if status.Execution == status.FirstExecution {
		status.CreatedAt = event.Timestamp
	}
}
