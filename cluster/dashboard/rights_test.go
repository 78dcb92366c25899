package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/internal/keytest"
	"github.com/tenuto-dev/tenuto/replay"
)

var echo = replay.Orchestration[string, string]("echo")

// nodeKeys are the keys of one node, with an authority of its own.
type nodeKeys struct{ keys *cluster.Keys }

func (n nodeKeys) Keys() (*cluster.Keys, error) { return n.keys, nil }

func newNodeKeys(t *testing.T) nodeKeys {
	t.Helper()
	authority := keytest.NewAuthority(t)
	return nodeKeys{&cluster.Keys{Certificate: authority.Node("n1"), Roots: authority.Roots()}}
}

// rightsServer serves the dashboard of a node whose user may do what permits says.
func rightsServer(t *testing.T, permits func(action cluster.Action, instance string) bool, options dashboard.Options) (*cluster.Client, *httptest.Server) {
	t.Helper()
	node, err := cluster.Start(t.Context(), cluster.Config{
		NodeID: "n1", InMemory: true, TLS: newNodeKeys(t),
		Definitions: []replay.Definition{echo.Bind(func(_ *replay.Context, text string) (string, error) { return text, nil })},
		Authorize: func(_ context.Context, caller cluster.Principal, action cluster.Action, instance string) error {
			if caller.Kind == operate.PrincipalUser && permits(action, instance) {
				return nil
			}
			return errors.New("not permitted")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	options.Principal = func(*http.Request) (string, error) { return "mallory", nil }
	server := httptest.NewServer(dashboard.Handler(node.Client(), options))
	t.Cleanup(server.Close)
	return node.Client(), server
}

func completeRun(t *testing.T, client *cluster.Client, id string) {
	t.Helper()
	if _, err := cluster.Call(t.Context(), client, echo, id, "x"); err != nil {
		t.Fatal(err)
	}
}

// A bulk job needs the right of its action. A start does not ask for it, so it cannot begin a job.
func TestRights_StartBeginsNoJob(t *testing.T) {
	client, server := rightsServer(t, func(action cluster.Action, _ string) bool { return action != cluster.ActionPurge }, dashboard.Options{})
	completeRun(t, client, "victim")
	if status, text := request(t, server, "POST", "/api/bulk", `{"filter":"name=echo","action":"purge"}`); status != http.StatusForbidden {
		t.Errorf("bulk: %d %s; want 403", status, text)
	}
	job := `{"name":"tenuto.bulk","id":"j","input":{"Job":{"Filter":{"Name":"echo"},"Action":"purge","Reason":"r"}}}`
	if status, text := request(t, server, "POST", "/api/instances", job); status != http.StatusBadRequest || !strings.Contains(text, `"field":"name"`) {
		t.Errorf("start: %d %s; want 400 for the name", status, text)
	}
	if _, err := client.Get(t.Context(), "j"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("the job: %v; want ErrNotFound", err)
	}
}

// A fork needs the right to both IDs.
func TestRights_ForkAsksForItsTarget(t *testing.T) {
	client, server := rightsServer(t, func(_ cluster.Action, instance string) bool { return strings.HasPrefix(instance, "mallory-") }, dashboard.Options{})
	completeRun(t, client, "mallory-1")
	fork := `{"event_id":1,"id":%q}`
	if status, text := request(t, server, "POST", "/api/instances/mallory-1/fork", fmt.Sprintf(fork, "alice-1")); status != http.StatusForbidden {
		t.Errorf("fork to the ID of another user: %d %s; want 403", status, text)
	}
	if _, err := client.Get(t.Context(), "alice-1"); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("the run of the other user: %v; want ErrNotFound", err)
	}
	if status, text := request(t, server, "POST", "/api/instances/mallory-1/fork", fmt.Sprintf(fork, "mallory-2")); status != http.StatusOK {
		t.Errorf("fork to an own ID: %d %s; want 200", status, text)
	}
}

// The ID of a node, or of a parent, is not the ID of the instance that an action concerns.
func TestRights_GeneralActionsHaveNoInstance(t *testing.T) {
	_, server := rightsServer(t, func(_ cluster.Action, instance string) bool { return strings.HasPrefix(instance, "mallory-") }, dashboard.Options{})
	for _, call := range [][2]string{{"POST", "/api/cluster/nodes/mallory-1/remove"}, {"GET", "/api/instances/mallory-1/children"}} {
		if status, text := request(t, server, call[0], call[1], "{}"); status != http.StatusForbidden {
			t.Errorf("%s: %d %s; want 403", call, status, text)
		}
	}
}

// A list of jobs or schedules shows of each no more than the user may ask it.
func TestRights_ListsHideWhatQueriesShow(t *testing.T) {
	client, server := rightsServer(t, func(action cluster.Action, instance string) bool {
		return action != cluster.ActionQuery || instance == "open"
	}, dashboard.Options{})
	for _, id := range []string{"open", "secret"} {
		if err := schedule.Create(t.Context(), client, id, schedule.Spec{Cron: []string{"@daily"}}, echo, "input of "+id); err != nil {
			t.Fatal(err)
		}
	}
	status, text := request(t, server, "GET", "/api/schedules", "")
	if status != http.StatusOK || !strings.Contains(text, "input of open") || !strings.Contains(text, `"id":"secret"`) || strings.Contains(text, "input of secret") {
		t.Errorf("%d %s", status, text)
	}
}

// The members are not shown to a user without the right to see them, neither at once nor live,
// though another user follows the overview with them.
func TestRights_OverviewTopicHidesMembers(t *testing.T) {
	var sees atomic.Bool
	_, server := rightsServer(t, func(action cluster.Action, _ string) bool { return action == cluster.ActionList || sees.Load() }, dashboard.Options{})
	sees.Store(true)
	if text := firstState(t, server); !strings.Contains(text, `"address"`) {
		t.Errorf("the overview of a user with the right: %s; want the members", text)
	}
	sees.Store(false)
	if text := firstState(t, server); strings.Contains(text, `"address"`) {
		t.Errorf("the overview of a user without the right: %s", text)
	}
}

// firstState follows the overview until the test ends, and returns its first state.
func firstState(t *testing.T, server *httptest.Server) string {
	t.Helper()
	return openStream(t, server, "/api/events?topics=overview").await("overview-state", "")
}
