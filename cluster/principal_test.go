package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// recordedPrincipals returns the types and principals of the events of an instance that have one.
func recordedPrincipals(t testing.TB, client *Client, id string) (list []string) {
	t.Helper()
	recorded, err := client.History(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range recorded.Events {
		if event.Principal != "" {
			list = append(list, fmt.Sprintf("%s %s", event.Type, event.Principal))
		}
	}
	return list
}

func operateRequest(id string, kind clusterpb.OperateRequest_Kind, event uint64) *clusterpb.Request {
	return &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Operate{Operate: &clusterpb.OperateRequest{Kind: kind, EventId: event, RequestId: "r"}}}
}

// The leader records the name in a client's certificate, whatever the client states, and the user
// whom it states. Authorize sees the actions.
func TestPrincipal_OfRemoteClients(t *testing.T) {
	trusted := newAuthority(t)
	var mu sync.Mutex
	var asked []Action
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, _ Principal, action Action, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, action)
			if action == "fire now" {
				return errors.New("not today")
			}
			return nil
		}
	})
	client := dialSecured(t, trusted, trusted.Client("gw"), nodes...)
	ctx := testContext(t)
	internals, err := client.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, waiter, "i", "x"); err != nil {
		t.Fatal(err)
	}
	if err := Send(access.WithUser(ctx, "alice"), client, "i", ignored, ""); err != nil {
		t.Fatal(err)
	}
	forged := &clusterpb.Request{Instance: "i", Principal: "client root", Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{
		Kind: clusterpb.ControlRequest_KIND_SUSPEND, RequestId: "s",
	}}}
	if _, err := internals.Call(ctx, forged); err != nil {
		t.Fatal(err)
	}
	if _, err := internals.Call(ctx, operateRequest("i", clusterpb.OperateRequest_KIND_FIRE_NOW, 2)); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("an action that is not authorized: %v", err)
	}
	if err := client.Terminate(ctx, "i", "done"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		string(history.OrchestrationStarted) + " client gw", "ExternalEvent client gw for alice", "OrchestrationSuspended client gw", "OrchestrationTerminated client gw",
	}
	if got := recordedPrincipals(t, nodes[0].Client(), "i"); !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(asked, "fire now") {
		t.Errorf("Authorize was asked about %q", asked)
	}
}

// A fork needs the right for the source and for the new instance.
func TestAuthorize_ForkNamesBothInstances(t *testing.T) {
	trusted := newAuthority(t)
	var mu sync.Mutex
	var asked []string
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, _ Principal, action Action, instance string) error {
			mu.Lock()
			defer mu.Unlock()
			if action == "fork" {
				asked = append(asked, instance)
			}
			if instance == "forbidden" {
				return errors.New("not yours")
			}
			return nil
		}
	})
	client := dialSecured(t, trusted, trusted.Client("gw"), nodes...)
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, waiter, "i", "x"); err != nil {
		t.Fatal(err)
	}
	fork := func(target string) error {
		_, err := internalsOf(t, client).Call(ctx, &clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Copy{Copy: &clusterpb.CopyRequest{
			Kind: clusterpb.CopyRequest_KIND_FORK, EventId: 1, Target: target, RequestId: "r" + target,
		}}})
		return err
	}
	if err := fork("forbidden"); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a forbidden target: %v", err)
	}
	if err := fork("permitted"); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	pairs := slices.Collect(slices.Chunk(asked, 2))
	pairs = slices.CompactFunc(pairs, slices.Equal) // each leader that is asked asks, too
	if want := [][]string{{"i", "forbidden"}, {"i", "permitted"}}; !slices.EqualFunc(pairs, want, slices.Equal) {
		t.Errorf("Authorize was asked about %q, want %q", pairs, want)
	}
}

// A start that a node forwards in a batch keeps its principal; without a user nothing is recorded.
func TestPrincipal_OfNodeClients(t *testing.T) {
	nodes := startPeers(t, 3)
	for i, node := range nodes {
		id := fmt.Sprint("i", i)
		if _, err := StartRun(access.WithUser(testContext(t), "alice"), node.Client(), waiter, id, "x"); err != nil {
			t.Fatal(err)
		}
		if err := Send(testContext(t), node.Client(), id, ignored, ""); err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("OrchestrationStarted node %s for alice", node.ID())}
		if got := recordedPrincipals(t, node.Client(), id); !slices.Equal(got, want) {
			t.Errorf("%q; want %q", got, want)
		}
	}
}

// Authorize decides for the users of a node's own program, as principals of their own kind. A
// remote client knows no rights of users.
func TestAuthorize_UsersOfNode(t *testing.T) {
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, instance string) error {
			if caller == (Principal{"user", "alice"}) && action == ActionCancel && instance == "i" || caller.Kind == PrincipalClient {
				return nil
			}
			return errors.New("not today")
		}
	})
	internals, err := nodes[0].Client().Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	if err := internals.Authorize(ctx, "alice", string(ActionCancel), "i"); err != nil {
		t.Errorf("what alice may do: %v", err)
	}
	for _, refused := range [][3]string{{"alice", "purge", "i"}, {"alice", "cancel", "j"}, {"bob", "cancel", "i"}} {
		if err := internals.Authorize(ctx, refused[0], refused[1], refused[2]); !errors.Is(err, ErrNotAuthorized) {
			t.Errorf("%q: %v; want ErrNotAuthorized", refused, err)
		}
	}
	if err := internals.Authorize(ctx, "al\nice", "cancel", "i"); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("a name with a line break: %v; want an InvalidError", err)
	}
	remote, err := dialSecured(t, trusted, trusted.Client("alice"), nodes...).Internal(access.Key{})
	if err != nil || remote.Authorize != nil {
		t.Errorf("a remote client decides about users (%v)", err)
	}
}

// A node without Authorize permits its users everything.
func TestAuthorize_UnsetPermitsUsers(t *testing.T) {
	internals, err := startNode(t, Config{InMemory: true}).Client().Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	if err := internals.Authorize(testContext(t), "alice", string(ActionPurge), "i"); err != nil {
		t.Error(err)
	}
}

// A node without Listen needs no TLS to ask about the users of its own program.
func TestAuthorize_UsersOfNodeWithoutListen(t *testing.T) {
	door, err := startNode(t, Config{InMemory: true, Authorize: func(_ context.Context, _ Principal, action Action, _ string) error {
		if action == ActionPurge {
			return errors.New("not today")
		}
		return nil
	}}).Client().Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	if err := door.Authorize(testContext(t), "alice", string(ActionPurge), "i"); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("purge: %v; want ErrNotAuthorized", err)
	}
	if err := door.Authorize(testContext(t), "alice", string(ActionCancel), "i"); err != nil {
		t.Errorf("cancel: %v", err)
	}
}
