package prometheus

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	double = replay.Activity[int, int]("double")
	twice  = replay.Orchestration[int, int]("twice")
)

func startNode(t *testing.T, config cluster.Config) *cluster.Node {
	t.Helper()
	config.Definitions = []replay.Definition{
		double.Bind(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		twice.Bind(func(ctx *replay.Context, n int) (int, error) { return double.Call(ctx, n) }),
	}
	node, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	return node
}

func scrape(handler http.Handler) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	return recorder
}

func TestHandler_ShowsMetricsUntilNodeClosed(t *testing.T) {
	node := startNode(t, cluster.Config{InMemory: true})
	handler := Handler(node)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := cluster.Call(ctx, node.Client(), twice, "order-17", 1); err != nil {
		t.Fatal(err)
	}
	text := ""
	for !strings.Contains(text, "tenuto_orchestrations_ended_total") {
		if ctx.Err() != nil {
			t.Fatalf("the end was not counted:\n%s", text)
		}
		text = scrape(handler).Body.String()
	}
	for _, want := range []string{
		`tenuto_orchestrations_started_total{tenuto_node="node",tenuto_orchestration="twice"} 1`,
		`tenuto_activity_attempt_duration_seconds_count{tenuto_activity="double",tenuto_node="node",tenuto_outcome="completed"} 1`,
		`tenuto_raft_role{tenuto_node="node",tenuto_role="leader"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not in the text: %s\n%s", want, text)
		}
	}
	if strings.Contains(text, "order-17") {
		t.Error("an instance ID is among the metrics")
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if text := scrape(handler).Body.String(); strings.Contains(text, "tenuto_turns") {
		t.Errorf("metrics of a closed node:\n%s", text)
	}
}

func TestHandler_ClosedNodeAnswers503(t *testing.T) {
	node := startNode(t, cluster.Config{InMemory: true})
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if response := scrape(Handler(node)); response.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, want %d", response.Code, http.StatusServiceUnavailable)
	}
}
