package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/jsontext"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A Client calls a cluster through its node ([Node.Client]) or over the network ([Dial]). Its
// methods may be called concurrently. The typed functions [Call], [StartRun] and [Send] are built
// on it.
//
// Every call is retried until a leader answers or the context ends; without a deadline, for
// Config.CallTimeout. If no leader answers in that time, the error is an [*UnavailableError].
type Client struct {
	transport caller
	converter engine.PayloadConverter
	options   callOptions
}

// callOptions apply to every call of a client.
type callOptions struct {
	interceptors   []replay.ClientInterceptor
	baggageHeaders []string
}

// intercepted runs a call inside the interceptors of a client. A client without interceptors does
// not use it, which saves the memory of its closures.
func intercepted[R any](ctx context.Context, o *callOptions, of replay.ClientCall, call func(ctx context.Context) (R, error)) (R, error) {
	var result, none R
	err := engine.Intercept(ctx, len(o.interceptors), func(i int, ctx context.Context, next func(context.Context) error) error {
		return o.interceptors[i](ctx, of, next)
	}, func(ctx context.Context) error {
		answer, err := call(ctx)
		result = answer
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}

// setHeaders sets what the context of an input carries: its headers, the user on whose behalf it is
// made, and why.
func (o *callOptions) setHeaders(ctx context.Context, request *clusterpb.Request) (err error) {
	ctx = telemetry.WithHeaders(ctx, o.baggageHeaders)
	if user := access.UserOf(ctx); user != "" && recordsPrincipal(request) {
		if err := checkUser(user); err != nil {
			return err
		}
		request.User = user
	}
	if reason := access.ReasonOf(ctx); reason != "" && recordsPrincipal(request) {
		if err := checkText("reason", reason, 0, reasonMax); err != nil {
			return err
		}
		request.Reason = reason
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		if call.Start.Headers, err = engine.HeadersOf(ctx); call.Start.Send != nil {
			call.Start.Send.Headers = call.Start.Headers
		}
		if call.Start.BeginWith != nil {
			call.Start.BeginWith.Headers = call.Start.Headers
		}
	case *clusterpb.Request_Send:
		call.Send.Headers, err = engine.HeadersOf(ctx)
	case *clusterpb.Request_Update:
		call.Update.Headers, err = engine.HeadersOf(ctx)
	}
	return err
}

// describeCall returns the description of a request that the interceptors of a client get.
func describeCall(request *clusterpb.Request) replay.ClientCall {
	described := replay.ClientCall{Instance: request.Instance}
	if actions := actionsOf(request); len(actions) > 0 {
		described.Kind = string(actions[0])
	}
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		described.Name = call.Start.Name
	case *clusterpb.Request_Send:
		described.Name = call.Send.Name
	case *clusterpb.Request_Update:
		described.Name = call.Update.Name
	case *clusterpb.Request_Query:
		described.Name = call.Query.Name
	}
	return described
}

// Close closes a client made by [Dial]: waiting calls return [ErrClosed]. If the client runs
// activities, Close first takes no more and waits up to DialConfig.DrainTimeout for those that run.
// Then it ends their contexts, tells the leaders to begin them again on other workers, and waits up
// to DialConfig.StopGrace for their functions to return. Close has no effect on the client of a
// node. It may be called twice.
func (c *Client) Close() error {
	if err := c.check(context.Background()); err != nil {
		return err
	}
	return c.transport.release()
}

// Internal is for packages of this module, such as cluster/operate: no other can make the key.
func (c *Client) Internal(access.Key) (access.Internals, error) {
	if err := c.check(context.Background()); err != nil {
		return access.Internals{}, err
	}
	internals := access.Internals{
		Call:  c.call,
		Check: func(request *clusterpb.Request) error { return checkRequest(request, math.MaxInt) },
		Events: func(ctx context.Context, instance string, execution uint64, pass func(*journalpb.Event) error, options ...replay.Option) (uint64, error) {
			if err := checkID(instance); err != nil {
				return 0, err
			}
			number, _, err := c.readHistory(ctx, instance, execution, options, pass)
			return number, err
		},
		Encode:    c.encode,
		Converter: c.converter,
		Reports: func(ctx context.Context) ([]access.NodeReport, error) {
			return reportsOfNodes(ctx, c.transport)
		},
		NodeAddresses: c.transport.nodeAddresses,
		AskNode: func(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
			if err := checkRequest(request, math.MaxInt); err != nil {
				return nil, err
			}
			return c.transport.askNode(ctx, node, address, request)
		},
	}
	switch transport := c.transport.(type) {
	case *router:
		internals.Authorize, internals.Completions = transport.authorizeUser, nodeCompletions(transport.node)
		internals.Backups = planOf(transport.node)
	case *remoteTransport:
		internals.Completions = clientCompletions(c, transport.payloadMax)
	}
	return internals, nil
}

// A caller is how a client reaches the cluster.
type caller interface {
	// call sends a request to the leader and returns its response.
	call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error)
	// readStale sends a read to one node, which answers from the state it has applied.
	readStale(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error)
	// await returns the status of a run after the run has ended.
	await(ctx context.Context, id string, run runRef) (*clusterpb.Status, error)
	// follow passes the events of a run to pass, from a position on, until pass returns false or
	// the run has ended.
	follow(ctx context.Context, id string, from history.Position, pass func(recordedEvent) bool) error
	// nodeAddresses returns the addresses of the members, by their IDs.
	nodeAddresses(ctx context.Context) (map[string]string, error)
	// askNode sends a request once to a node, which answers it itself.
	askNode(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error)
	release() error
}

func checkID(id string) error { return engine.CheckInstanceID(id) }

// ofInstance returns the error of a call for an instance, whose ID may be invalid and long; nil if
// err is nil.
func ofInstance(call, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %.140s: %w", call, id, err)
}

// start starts an instance and returns the run that it began, or that it attached to.
func (c *Client) start(ctx context.Context, id string, start *clusterpb.StartRequest) (*clusterpb.StartResult, error) {
	if err := firstError(c.check(ctx), checkID(id), checkStart(start)); err != nil {
		return nil, ofInstance("start", id, err)
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Start{Start: start}}
	start.RequestId, request.Retried = requestIDOrNew(start.RequestId)
	if start.Send != nil {
		start.Send.RequestId = start.RequestId
	}
	if start.BeginWith != nil {
		start.BeginWith.RequestId = start.RequestId
	}
	ctx, traced := c.traceStart(ctx, id, start)
	response, err := c.call(ctx, request)
	traced(err)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", id, err)
	}
	return response.GetStart(), nil
}

// requestIDOrNew returns the request ID and true if the user has chosen one, or else a new ID and
// false.
func requestIDOrNew(chosen string) (id string, again bool) {
	if chosen != "" {
		return chosen, true
	}
	return rand.Text(), false
}

func (c *Client) send(ctx context.Context, id string, send *clusterpb.SendRequest) error {
	if err := firstError(checkID(id), checkSend(send)); err != nil {
		return fmt.Errorf("send %.140q to %.140s: %w", send.Name, id, err)
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Send{Send: send}}
	send.RequestId, request.Retried = requestIDOrNew(send.RequestId)
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("send %q to %s: %w", send.Name, id, err)
	}
	return nil
}

// Get returns the status of an instance. It returns [ErrNotFound] if the instance does not exist.
func (c *Client) Get(ctx context.Context, id string, options ...replay.Option) (*Status, error) {
	if err := checkID(id); err != nil {
		return nil, ofInstance("get", id, err)
	}
	request := &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	response, err := c.read(ctx, request, options)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", id, err)
	}
	status := newStatus(response.GetGet().GetStatus(), c.converter)
	status.AppliedIndex = response.GetAppliedIndex()
	return status, nil
}

// History returns the history of the latest execution of an instance, with payloads decoded by the
// client's codec. It returns [ErrNotFound] if the instance does not exist.
func (c *Client) History(ctx context.Context, id string, options ...replay.Option) (*History, error) {
	return c.HistoryOf(ctx, id, 0, options...)
}

// HistoryOf is [Client.History] for one execution of an instance. Executions count from 1; 0 means
// the latest. It returns [ErrNotFound] if there is no such execution.
func (c *Client) HistoryOf(ctx context.Context, id string, execution uint64, options ...replay.Option) (*History, error) {
	if err := checkID(id); err != nil {
		return nil, ofInstance("history of", id, err)
	}
	var events []*journalpb.Event
	number, index, err := c.readHistory(ctx, id, execution, options, func(event *journalpb.Event) error {
		opened, err := c.converter.OpenEvent(event)
		if err != nil {
			return fmt.Errorf("event %d: %w", event.EventId, err)
		}
		events = append(events, opened)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", id, err)
	}
	return &History{InstanceID: id, Execution: number, Events: eventpb.NewList(number, events), AppliedIndex: index}, nil
}

// readHistory reads the history of an execution in pages, so that no node holds a long history in
// memory. It returns the number of the execution and the applied index of the last page.
func (c *Client) readHistory(ctx context.Context, id string, execution uint64, options []replay.Option, pass func(*journalpb.Event) error) (number, index uint64, err error) {
	var chosen readOptions
	if err := firstError(c.check(ctx), engine.ApplyOptions(options, &chosen, "a read")); err != nil {
		return 0, 0, err
	}
	last, err := intercepted(ctx, &c.options, replay.ClientCall{Kind: string(ActionHistory), Instance: id}, func(ctx context.Context) (*clusterpb.Response, error) {
		return readPages(ctx, c, id, execution, chosen, pass)
	})
	return last.GetHistory().GetExecution(), last.GetAppliedIndex(), err
}

// readPages reads the pages of a history and returns the last one.
func readPages(ctx context.Context, c *Client, id string, execution uint64, chosen readOptions, pass func(*journalpb.Event) error) (*clusterpb.Response, error) {
	asked := &clusterpb.HistoryRequest{Execution: execution, Paged: true}
	for {
		response, err := sendRead(ctx, c, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_History{History: asked}}, chosen.stale)
		if err != nil {
			return nil, err
		}
		page, last := response.GetHistory(), uint64(0)
		for _, encoded := range page.GetEvents() {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(encoded, event); err != nil {
				return nil, fmt.Errorf("decode event: %w", err)
			}
			last = event.EventId
			if err := pass(event); err != nil {
				return nil, err
			}
		}
		if !page.GetMore() {
			return response, nil
		}
		asked = &clusterpb.HistoryRequest{Execution: page.Execution, FromEventId: last + 1, Paged: true}
	}
}

// Wait waits until the latest run of an instance has ended and returns its status.
//
// Errors: [ErrNotFound] if the instance does not exist or was purged; [*replay.InvalidError];
// [*UnavailableError]; [ErrClosed]; the error of ctx; or the reason why the node has failed.
func (c *Client) Wait(ctx context.Context, id string) (*Status, error) {
	status, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, id, status.run)
}

func (c *Client) wait(ctx context.Context, id string, run runRef) (*Status, error) {
	if err := c.check(ctx); err != nil {
		return nil, fmt.Errorf("wait for %s: %w", id, err)
	}
	status, err := awaitEnd(ctx, c, id, run)
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", id, err)
	}
	return newStatus(status, c.converter), nil
}

func awaitEnd(ctx context.Context, c *Client, id string, run runRef) (*clusterpb.Status, error) {
	if len(c.options.interceptors) == 0 {
		return c.transport.await(ctx, id, run)
	}
	return intercepted(ctx, &c.options, replay.ClientCall{Kind: "wait", Instance: id}, func(ctx context.Context) (*clusterpb.Status, error) {
		return c.transport.await(ctx, id, run)
	})
}

// check returns an error if the client or the context is nil.
func (c *Client) check(ctx context.Context) error {
	switch {
	case c == nil || c.transport == nil:
		return invalidArgument("client", "is nil: use Node.Client or Dial")
	case ctx == nil:
		return invalidArgument("context", "is nil")
	}
	return nil
}

func (c *Client) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	if len(c.options.interceptors) == 0 {
		return sendCall(ctx, c, request)
	}
	return intercepted(ctx, &c.options, describeCall(request), func(ctx context.Context) (*clusterpb.Response, error) {
		return sendCall(ctx, c, request)
	})
}

// sendCall sends a request to the leader, with the headers of ctx and without the interceptors.
func sendCall(ctx context.Context, c *Client, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := c.options.setHeaders(ctx, request); err != nil {
		return nil, err
	}
	return sendOpen(ctx, request, c.transport.call)
}

// sendOpen sends a request, unless ctx has ended.
func sendOpen(ctx context.Context, request *clusterpb.Request, send func(context.Context, *clusterpb.Request) (*clusterpb.Response, error)) (*clusterpb.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, &UnavailableError{NotExecuted: true, Err: err, notCalled: true}
	}
	response, err := send(ctx, request)
	if unavailable, ok := errors.AsType[*UnavailableError](err); ok && kindOf(request).isRead() {
		unavailable.read = true
	}
	return response, err
}

// encode converts an argument to a payload. It rejects text that is not UTF-8, which encoding/json
// would silently change.
func (c *Client) encode(of replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	if c == nil {
		return nil, c.check(context.Background())
	}
	if path, text, found := jsontext.Invalid(of.Part, value); found {
		return nil, invalidArgument(path, fmt.Sprintf("%.140q is not UTF-8, which JSON cannot represent: pass it as []byte", text))
	}
	return c.converter.Encode(of, value)
}

// Export writes the history of one execution of an instance in the format of package
// replay/history: JSON with one event per line, which replaytest.Replay replays. Executions count
// from 1; 0 means the latest. Payloads are written as recorded, regardless of the client's codec.
// Nothing is written if the history cannot be read.
//
// Errors: [ErrNotFound] if there is no such execution, [*replay.InvalidError], [*UnavailableError],
// [ErrNotAuthorized]; those of ctx and w.
func (c *Client) Export(ctx context.Context, id string, execution uint64, w io.Writer, options ...replay.Option) error {
	err := checkID(id)
	if err == nil && w == nil {
		err = invalidArgument("writer", "is nil")
	}
	if err != nil {
		return ofInstance("export", id, err)
	}
	var events []*journalpb.Event
	number, _, err := c.readHistory(ctx, id, execution, options, func(event *journalpb.Event) error {
		events = append(events, event)
		return nil
	})
	if err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	if err := history.Write(w, &history.History{Instance: id, Execution: number, Events: eventpb.NewList(number, events)}); err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	return nil
}

type readOptions struct{ stale bool }

// Stale makes a read return what one node has applied so far, which may be old. That is the
// client's own node, or any node that a remote client reaches. The read needs no leader. Get,
// History and List return the index up to which that node has applied, AppliedIndex. For a node's
// client it never decreases while the node runs; for a remote client it never decreases. If the
// node does not lead, an instance that waits for code shows as running or suspended.
//
// Without Stale, reads are linearizable: they show everything that was acknowledged anywhere before
// the call.
func Stale() replay.Option {
	return engine.NewOption("Stale", func(o *readOptions) { o.stale = true })
}

// read sends a read request to the leader or, if the answer may be stale, to one node.
func (c *Client) read(ctx context.Context, request *clusterpb.Request, options []replay.Option) (*clusterpb.Response, error) {
	var chosen readOptions
	if err := firstError(c.check(ctx), engine.ApplyOptions(options, &chosen, "a read")); err != nil {
		return nil, err
	}
	if len(c.options.interceptors) == 0 {
		return sendRead(ctx, c, request, chosen.stale)
	}
	return intercepted(ctx, &c.options, describeCall(request), func(ctx context.Context) (*clusterpb.Response, error) {
		return sendRead(ctx, c, request, chosen.stale)
	})
}

// sendRead is read without the interceptors.
func sendRead(ctx context.Context, c *Client, request *clusterpb.Request, stale bool) (*clusterpb.Response, error) {
	if stale {
		return sendOpen(ctx, request, c.transport.readStale)
	}
	return sendOpen(ctx, request, c.transport.call)
}
