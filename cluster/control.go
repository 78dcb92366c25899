package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Cancel asks an instance to end. Its pending awaits return [replay.ErrCanceled], and its code may
// clean up. The instance ends canceled if its code returns that error. Cancel returns after the
// request is committed. A second request has no effect. If the instance is stalled or waits for
// code, the request is recorded when it continues; the same holds for Suspend and Resume.
//
// Errors: [ErrNotFound], [ErrEnded], [*replay.InvalidError], [*UnavailableError].
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "cancel", clusterpb.ControlRequest_KIND_CANCEL, reason)
}

// Terminate ends an instance at once without running its code, even if it is stalled or waits for
// code. Its open operations are canceled; children follow their close policy. Errors are those of
// [Client.Cancel].
func (c *Client) Terminate(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "terminate", clusterpb.ControlRequest_KIND_TERMINATE, reason)
}

// Suspend stops the code of an instance until [Client.Resume]. Inputs and completions are still
// recorded, and take effect after Resume. Errors are those of [Client.Cancel].
func (c *Client) Suspend(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "suspend", clusterpb.ControlRequest_KIND_SUSPEND, reason)
}

// Resume continues a suspended instance. Errors are those of [Client.Cancel].
func (c *Client) Resume(ctx context.Context, id, reason string) error {
	return c.control(ctx, id, "resume", clusterpb.ControlRequest_KIND_RESUME, reason)
}

// Retry makes a stalled instance try again. Use it after its code was fixed on a running node. A
// new leader tries again by itself. Errors are those of [Client.Cancel] without [ErrEnded]; and
// [ErrNotStalled], with the state, if the instance is neither stalled nor waiting for code.
func (c *Client) Retry(ctx context.Context, id string) error {
	return c.control(ctx, id, "retry", clusterpb.ControlRequest_KIND_RETRY, "")
}

func (c *Client) control(ctx context.Context, id, verb string, kind clusterpb.ControlRequest_Kind, reason string) error {
	if err := firstError(checkID(id), checkText("reason", reason, 0, reasonMax)); err != nil {
		return ofInstance(verb, id, err)
	}
	_, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{
		Kind: kind, Reason: reason, RequestId: rand.Text(),
	}}})
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, id, err)
	}
	return nil
}

// userMax bounds the name of a user on whose behalf a call is made, in bytes.
const userMax = 256

func checkUser(name string) error {
	if strings.ContainsFunc(name, unicode.IsControl) {
		return invalidArgument("user", fmt.Sprintf("%.140q has control characters", name))
	}
	return checkText("user", name, 1, userMax)
}

// checkPrincipal checks what a request states of its sender.
func checkPrincipal(request *clusterpb.Request) error {
	if request.User != "" {
		if err := checkUser(request.User); err != nil {
			return err
		}
	}
	return firstError(checkText("principal", request.Principal, 0, 2*userMax), checkText("reason", request.Reason, 0, reasonMax))
}

// recordsPrincipal reports whether the history, or the settings, show who has made a request, or
// the leader must know.
func recordsPrincipal(request *clusterpb.Request) bool {
	switch request.Call.(type) {
	case *clusterpb.Request_Start, *clusterpb.Request_Send, *clusterpb.Request_Control, *clusterpb.Request_Update,
		*clusterpb.Request_Complete, *clusterpb.Request_Operate, *clusterpb.Request_PauseActivity, *clusterpb.Request_Copy,
		*clusterpb.Request_TransferLeadership, *clusterpb.Request_SetRole, *clusterpb.Request_Finalize, *clusterpb.Request_SignToken,
		*clusterpb.Request_AcceptReplica:
		return true
	}
	return false
}

// statePrincipal sets who has made a request that this node has received from another program. A
// node states for its own clients who they are; a client's certificate says who it is.
func statePrincipal(request *clusterpb.Request, caller Principal) {
	switch {
	case caller.Kind == PrincipalClient, caller.Kind == PrincipalNode && request.Node == "":
		request.Principal = caller.String()
	case request.User != "":
		request.Principal = cmp.Or(request.Principal, caller.String())
	}
	onBehalfOfUser(request)
}

// onBehalfOfUser adds the user to the principal of a request.
func onBehalfOfUser(request *clusterpb.Request) {
	if request.User != "" {
		request.Principal, request.User = request.Principal+" for "+request.User, ""
	}
}

// bulkControl is what the activities of bulk jobs use.
var bulkControl = bulk.Control{
	Internals: func(ctx context.Context) (access.Internals, error) {
		client, _ := ClientFrom(ctx)
		return client.Internal(access.Key{})
	},
	List: func(ctx context.Context, query bulk.Query, after string, limit int) (found []bulk.Target, next string, err error) {
		client, _ := ClientFrom(ctx)
		filter, err := filterOf(query)
		if err != nil {
			return nil, "", err
		}
		page, err := client.List(ctx, filter, after, limit)
		if err != nil {
			return nil, "", err
		}
		for _, instance := range page.Instances {
			if bulk.Selects(filter.Name, instance.Name) {
				found = append(found, bulk.Target{
					ID: instance.InstanceID, Incarnation: instance.run.incarnation, Execution: instance.Execution, Event: instance.LastEventID,
				})
			}
		}
		return found, page.Next, nil
	},
	Newest: func(ctx context.Context) (time.Time, error) {
		client, _ := ClientFrom(ctx)
		for after := ""; ; {
			page, err := client.List(ctx, Filter{Order: "created", Descending: true}, after, 1)
			switch {
			case err != nil:
				return time.Time{}, err
			case len(page.Instances) > 0:
				return page.Instances[0].CreatedAt, nil
			case page.Next == "":
				return time.Time{}, nil
			}
			after = page.Next // a page may be empty although more follow
		}
	},
	Count: func(ctx context.Context, query bulk.Query) (n int, estimated bool, err error) {
		client, _ := ClientFrom(ctx)
		filter, err := filterOf(query)
		if err != nil {
			return 0, false, err
		}
		groups, err := client.CountBy(ctx, filter, []string{"name"})
		if errors.As(err, new(*replay.InvalidError)) { // too many groups, unless the filter is not valid
			n, err = client.Count(ctx, filter)
			return n, true, err
		}
		for _, group := range groups {
			if bulk.Selects(filter.Name, group.Values[0]) {
				n += int(group.Count)
			}
		}
		return n, false, err
	},
	Code: func(err error) string {
		switch {
		case err == nil:
			return ""
		case errors.Is(err, ErrClosed):
			return "closed"
		}
		return toFailure(err).GetCode()
	},
}

// filterOf returns the filter of a bulk job: by ID, because that order stays while instances
// change.
func filterOf(query bulk.Query) (filter Filter, err error) {
	decoder := json.NewDecoder(bytes.NewReader(query.Filter))
	decoder.DisallowUnknownFields() // a field of a newer build would select fewer instances
	if err := decoder.Decode(&filter); err != nil {
		return Filter{}, invalidArgument("filter", "is not valid: "+err.Error())
	}
	if filter.Order != "" || filter.Descending {
		return Filter{}, invalidArgument("filter", "has an order")
	}
	if before := filter.CreatedBefore; before.IsZero() || before.After(query.CreatedBefore) {
		filter.CreatedBefore = query.CreatedBefore
	}
	return filter, nil
}

// operateActions are the actions of the requests of package operate, which has constants for them.
var operateActions = map[clusterpb.OperateRequest_Kind][]Action{
	clusterpb.OperateRequest_KIND_RETRY_NOW: {"retry now"},
	clusterpb.OperateRequest_KIND_HOLD:      {"hold"},
	clusterpb.OperateRequest_KIND_RELEASE:   {"release"},
	clusterpb.OperateRequest_KIND_ADJUST:    {"adjust"},
	clusterpb.OperateRequest_KIND_COMPLETE:  {"complete operation"},
	clusterpb.OperateRequest_KIND_FAIL:      {"fail operation"},
	clusterpb.OperateRequest_KIND_FIRE_NOW:  {"fire now"},
}

// copyActions are those of the requests that begin a run with a copied history.
var copyActions = map[clusterpb.CopyRequest_Kind][]Action{
	clusterpb.CopyRequest_KIND_RERUN:  {"rerun"},
	clusterpb.CopyRequest_KIND_REWIND: {"rewind"},
	clusterpb.CopyRequest_KIND_FORK:   {"fork"},
}

// checkCopy returns an error for a request that no correct client sends.
func checkCopy(r *clusterpb.CopyRequest, most payloadLimit) error {
	err := firstError(
		checkText("reason", r.GetReason(), 0, reasonMax),
		checkText("request ID", r.GetRequestId(), 1, actors.RequestIDMax),
		most.check("input", r.GetInput()),
	)
	fork := r.GetKind() == clusterpb.CopyRequest_KIND_FORK
	switch {
	case err != nil:
		return err
	case r.GetCall() != "" && checkName("point", r.GetCall()) != nil:
		return checkName("point", r.GetCall())
	case r.GetTarget() != "" && !fork:
		return invalidArgument("new ID", "is only for a fork")
	case r.GetTarget() != "" && checkID(r.GetTarget()) != nil:
		return checkID(r.GetTarget())
	case r.GetKind() == clusterpb.CopyRequest_KIND_RERUN && (r.GetEventId() > 1 || r.GetCall() != ""):
		return invalidArgument("point", "is not for a rerun")
	case r.GetKind() != clusterpb.CopyRequest_KIND_RERUN && (r.GetEventId() > 0) == (r.GetCall() != ""):
		return invalidArgument("point", "must be an event or a call")
	case (r.GetCall() != "") != (r.GetCallNumber() > 0):
		return invalidArgument("point", "is a call whose number is not 1 or more")
	case r.GetInput() != nil && (!fork || r.GetEventId() != 1):
		return invalidArgument("input", "can be replaced only by a fork from event 1")
	}
	return nil
}

// checkOperate returns an error for a request that no correct client sends.
func checkOperate(r *clusterpb.OperateRequest, most payloadLimit) error {
	err := firstError(
		checkText("reason", r.GetReason(), 0, reasonMax),
		checkText("request ID", r.GetRequestId(), 1, actors.RequestIDMax),
		most.check("result", r.GetResult()),
		most.checkSize("error", proto.Size(r.GetError())),
		engine.CheckActivityOptions(r.GetOptions()),
	)
	fails := r.GetKind() == clusterpb.OperateRequest_KIND_FAIL
	switch {
	case err != nil:
		return err
	case r.GetEventId() == 0:
		return invalidArgument("operation", "has no event ID")
	case fails != (r.GetError() != nil):
		return invalidArgument("error", "must be set to fail an operation, and only then")
	case r.GetOptions().GetTag() != "" || len(r.GetOptions().GetHeaders()) > 0:
		return invalidArgument("option Tag", "cannot be adjusted")
	}
	return nil
}

// reasonMax bounds the reason of a control request, in bytes.
const reasonMax = 4096
