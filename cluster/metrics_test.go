package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// collectMetrics returns the metrics of a provider by name.
func collectMetrics(t *testing.T, reader sdk.Reader) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]metricdata.Metrics)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// sumMetric adds up the points of an instrument whose attributes include all of these values.
func sumMetric(m metricdata.Metrics, values ...string) (sum float64) {
	has := func(set attribute.Set) bool {
		text := set.Encoded(attribute.DefaultEncoder())
		for _, value := range values {
			if !strings.Contains(text, "="+value) {
				return false
			}
		}
		return true
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if has(p.Attributes) {
				sum += float64(p.Value)
			}
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			if has(p.Attributes) {
				sum += p.Value
			}
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			if has(p.Attributes) {
				sum += p.Value
			}
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			if has(p.Attributes) {
				sum += float64(p.Count)
			}
		}
	}
	return sum
}

func TestMetrics_MatchWorkload(t *testing.T) {
	reader := sdk.NewManualReader()
	body := func(_ context.Context, n int) (int, error) {
		if n == 1 {
			return 0, replay.NonRetryable(errTest)
		}
		return 2 * n, nil
	}
	nap := replay.Orchestration[int, int]("nap")
	node := startNode(t, Config{
		Partitions: 1,
		Dir:        t.TempDir(), MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader)),
		Definitions: append(definitionsWith(body), nap.Bind(func(ctx *replay.Context, n int) (int, error) {
			return n, ctx.Sleep(time.Millisecond)
		})),
	})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, fiveActivities, "a", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, client, doubled, "b", 1); !errors.Is(err, errTest) && err == nil {
		t.Fatal("the activity was to fail")
	}
	if _, err := Call(ctx, client, nap, "c", 1); err != nil {
		t.Fatal(err)
	}
	// The end can be read before the observer has seen its turn.
	eventually(t, "every end is counted", func() bool { return sumMetric(collectMetrics(t, reader)["tenuto.orchestrations.ended"]) == 3 })
	all := collectMetrics(t, reader)
	for _, want := range []struct {
		name   string
		values []string
		least  float64
		most   float64
	}{
		{"tenuto.orchestrations.started", []string{"fifth"}, 1, 1},
		{"tenuto.orchestrations.started", nil, 3, 3},
		{"tenuto.orchestrations.ended", []string{"completed"}, 2, 2},
		{"tenuto.orchestrations.ended", []string{"doubled", "failed"}, 1, 1},
		{"tenuto.instances", []string{"completed"}, 1, 2},
		{"tenuto.activity.attempt.duration", []string{"double", "completed"}, 5, 5},
		{"tenuto.activity.attempt.duration", []string{"double", "failed"}, 1, 1},
		{"tenuto.activity.delay", []string{"double"}, 6, 6},
		{"tenuto.activity.attempts", []string{"here"}, 6, 6},
		{"tenuto.timer.lateness", nil, 1, 1},
		{"tenuto.turns", nil, 9, 30},
		{"tenuto.turn.events", nil, 20, 40},
		{"tenuto.raft.role", []string{"leader"}, 1, 1},
		{"tenuto.raft.term", nil, 1, 1000},
		{"tenuto.node.ready", nil, 1, 1},
		{"tenuto.journal.entry.records", nil, 5, 1000},
		{"tenuto.journal.log.write.duration", nil, 5, 1000},
		{"tenuto.journal.log.written", nil, 100, 1e6},
	} {
		if got := sumMetric(all[want.name], want.values...); got < want.least || got > want.most {
			t.Errorf("%s %v: got %v, want %v to %v", want.name, want.values, got, want.least, want.most)
		}
	}
	for name, m := range all {
		if sumMetric(m, node.ID()) != sumMetric(m) {
			t.Errorf("%s has points that do not name the node", name)
		}
	}
}

func TestMetrics_CountRejectionsAndEvictions(t *testing.T) {
	node := startNode(t, Config{InMemory: true, ResidentMax: 1, Definitions: definitions()})
	ctx := testContext(t)
	stats := func() actors.Stats { return node.system.Stats(node.partitions[0].actorPartition.Load()) }
	for i, id := range []string{"a", "b", "c"} {
		if _, err := StartRun(ctx, node.Client(), waiter, id, ""); err != nil {
			t.Fatal(err)
		}
		awaitIdle(t, node)
		eventually(t, "the one before has left", func() bool { return stats().Evictions == uint64(i) })
	}
	if err := Send(ctx, node.Client(), "a", word, "x"); err != nil {
		t.Fatal(err)
	}
	if got := stats().Activations; got != 1 {
		t.Errorf("activations: got %d, want 1", got)
	}
}

func TestMetrics_RecordingDoesNotAllocate(t *testing.T) {
	node := startNode(t, Config{
		InMemory: true, Definitions: definitions(), MeterProvider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader())),
	})
	attempt := &replay.Attempt{Name: "double", Number: 1}
	events := []*journalpb.Event{{EventId: 2, Body: &journalpb.Event_TimerCreated{}}}
	observer := telemetry.NewObserver(node.metrics, nil)
	allocations := func() float64 {
		return testing.AllocsPerRun(100, func() {
			observer.Attempted(attempt, 2*time.Millisecond, time.Millisecond, actors.AttemptCompleted)
			observer.Committed("a", 1, events)
			observer.TimerFired(time.Millisecond)
		})
	}
	least := allocations()
	for range 20 { // those of the node's other goroutines count, too
		least = min(least, allocations())
	}
	if least > 0 {
		t.Errorf("%v allocations", least)
	}
}

// BenchmarkMetricsOfHello5 measures the cost of recording one orchestration with five activities.
// Compare it with BenchmarkApply_FiveActivityRuns of package actors.
func BenchmarkMetricsOfHello5(b *testing.B) {
	for name, config := range map[string]Config{
		"none":     {},
		"provider": {MeterProvider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))},
	} {
		b.Run(name, func(b *testing.B) {
			config.InMemory, config.Definitions = true, definitions()
			node := startNode(b, config)
			if _, err := Call(testContext(b), node.Client(), fiveActivities, "a", 1); err != nil {
				b.Fatal(err)
			}
			attempt := &replay.Attempt{Name: "double", Number: 1}
			first := []*journalpb.Event{{EventId: 1, Body: &journalpb.Event_OrchestrationStarted{
				OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "fifth"},
			}}}
			turn := []*journalpb.Event{{EventId: 2, Body: &journalpb.Event_ActivityCompleted{}}}
			last := []*journalpb.Event{{EventId: 12, Body: &journalpb.Event_OrchestrationCompleted{}}}
			observer := telemetry.NewObserver(node.metrics, nil)
			b.ReportAllocs()
			for b.Loop() {
				observer.Committed("a", 1, first)
				for range 5 {
					observer.Attempted(attempt, 2*time.Millisecond, time.Millisecond, actors.AttemptCompleted)
				}
				for range 4 {
					observer.Committed("a", 1, turn)
				}
				observer.Committed("a", 1, last)
			}
		})
	}
}
