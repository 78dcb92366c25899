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

// A StartOption changes how an instance is started.
type StartOption func(*clusterpb.StartRequest)

// Attach makes it no error that an instance of that ID exists, running or
// ended: its run is the one that is returned.
func Attach() StartOption { return func(r *clusterpb.StartRequest) { r.Attach = true } }

// RequestID names the start: a start with the ID of an instance that was begun
// by the same request is the same start, and no error. Defaults to a random one
// for each call.
func RequestID(id string) StartOption { return func(r *clusterpb.StartRequest) { r.RequestId = id } }

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
	if err := checkID(id); err != nil {
		return nil, err
	}
	response, err := c.node.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_History{History: new(clusterpb.HistoryRequest)}})
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
	for {
		known, ok := c.node.journal.Instance(id)
		if ok && known.FirstExecution == firstExecution && known.Status != journalpb.Status_STATUS_RUNNING {
			return c.end(known)
		}
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
	status := &clusterpb.Status{
		Instance:       known.Instance,
		Execution:      known.Execution,
		FirstExecution: known.FirstExecution,
		Name:           known.Name,
		Version:        known.Version,
		LastEventId:    known.LastEventId,
		CreatedAt:      known.CreatedAt,
		UpdatedAt:      known.UpdatedAt,
		Parent:         known.Parent,
	}
	fillEnd(last, status)
	return newStatus(status), nil
}
