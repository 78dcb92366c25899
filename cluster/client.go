package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"regexp"

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
	if err := checkID(id); err != nil {
		return 0, err
	}
	request := &clusterpb.StartRequest{Name: name, Input: input, RequestId: rand.Text()}
	for _, option := range options {
		option(request)
	}
	response, err := c.node.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Start{Start: request}})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", id, err)
	}
	return response.GetStart().GetFirstExecution(), nil
}

// send sends an event.
func (c *Client) send(ctx context.Context, id, name string, data *journalpb.Payload) error {
	if err := checkID(id); err != nil {
		return err
	}
	_, err := c.node.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{
		Name: name, Data: data, RequestId: rand.Text(),
	}}})
	if err != nil {
		return fmt.Errorf("send %q to %s: %w", name, id, err)
	}
	return nil
}

// Get returns the state of an instance. The error is [ErrNotFound] when there is
// none of that ID.
func (c *Client) Get(ctx context.Context, id string) (*Status, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.node.call(ctx, getRequest(id))
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", id, err)
	}
	return newStatus(response.GetGet().GetStatus()), nil
}

func getRequest(id string) *clusterpb.Request {
	return &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
}

// History returns the history of an instance's latest execution. The error is
// [ErrNotFound] when there is no instance of that ID.
func (c *Client) History(ctx context.Context, id string) (*History, error) {
	return c.HistoryOf(ctx, id, 0)
}

// HistoryOf returns the history of one execution of an instance, counted from
// 1; 0 means the latest. The error is [ErrNotFound] when there is none.
func (c *Client) HistoryOf(ctx context.Context, id string, execution uint64) (*History, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.node.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_History{
		History: &clusterpb.HistoryRequest{Execution: execution},
	}})
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", id, err)
	}
	result := response.GetHistory()
	history := &History{InstanceID: id, Execution: result.GetExecution()}
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
// The error is [ErrNotFound] when there is no instance of that ID, or ctx's.
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
	for begun := false; ; {
		known, ok := c.node.journal.Instance(id)
		switch {
		case ok && known.FirstExecution > firstExecution:
			return c.earlierEnd(known, firstExecution)
		case ok && known.FirstExecution == firstExecution && known.Status != journalpb.Status_STATUS_RUNNING:
			return c.end(known)
		case !ok && begun:
			return nil, fmt.Errorf("wait for %s: %w: it was purged", id, ErrNotFound)
		}
		begun = begun || ok
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", id, ctx.Err())
		case <-c.node.closing:
			return nil, fmt.Errorf("wait for %s: %w", id, ErrClosed)
		case <-c.node.journal.Failed():
			return nil, fmt.Errorf("wait for %s: %w", id, c.node.journal.Err())
		}
	}
}

func (c *Client) end(known *journalpb.Instance) (*Status, error) {
	last, err := c.node.journal.Event(known.Instance, known.Execution, known.LastEventId)
	if err != nil {
		return nil, fmt.Errorf("read end of %s: %w", known.Instance, err)
	}
	status := indexed(known)
	fillEnd(last, status)
	return newStatus(status), c.node.fillPublished(known, status)
}

// earlierEnd returns how a run ended that another has followed under the same
// ID.
func (c *Client) earlierEnd(known *journalpb.Instance, firstExecution uint64) (*Status, error) {
	status := &clusterpb.Status{Instance: known.Instance, FirstExecution: firstExecution}
	for execution := firstExecution; execution < known.Execution; execution++ {
		var last *journalpb.Event
		for event, err := range c.node.journal.Events(known.Instance, execution, 1) {
			if err != nil {
				return nil, fmt.Errorf("read end of %s: %w", known.Instance, err)
			}
			if started := event.GetOrchestrationStarted(); started != nil {
				status.Name, status.Version, status.Parent, status.Tags = started.Name, started.Version, started.Parent, started.Tags
				status.CreatedAt = event.Timestamp
			}
			last = event
		}
		if last.GetOrchestrationContinuedAsNew() == nil {
			status.Execution, status.LastEventId, status.UpdatedAt = execution, last.GetEventId(), last.GetTimestamp()
			fillEnd(last, status)
			break
		}
	}
	return newStatus(status), nil
}
