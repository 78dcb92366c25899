package cluster

import (
	"fmt"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tenuto-dev/tenuto/replay"
)

// Five instances stall. The node is restarted with the same wrong code, and no input arrives; then
// with matching code.
func TestStalledInstance_VisibleUnderAnyLeader(t *testing.T) {
	const many = 5
	dir, ctx := t.TempDir(), testContext(t)
	reordered := func(other bool) []replay.Definition {
		return append(definitions()[:0:0], canaryOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
			if other {
				if err := replay.SetStatus(ctx, text); err != nil {
					return "", err
				}
			}
			return canaryEvent.Wait(ctx)
		}))
	}
	start := func(other bool) (*Node, sdk.Reader) {
		reader := sdk.NewManualReader()
		return startNode(t, Config{
			Dir: dir, Partitions: 1, Definitions: reordered(other), MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader)),
		}), reader
	}
	stalled := func(node *Node, options ...replay.Option) int {
		n, err := node.Client().Count(ctx, Filter{States: []State{Stalled}}, options...)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	node, _ := start(false)
	eventually(t, "conditions may be recorded", func() bool { return node.partitions[0].journal.Protocol() == protocolVersion })
	for i := range many {
		if _, err := StartRun(ctx, node.Client(), canaryOrchestration, fmt.Sprint("s-", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node, _ = start(true)
	for i := range many {
		go func() { _ = Send(ctx, node.Client(), fmt.Sprint("s-", i), canaryEvent, "waits") }()
	}
	eventually(t, "all have stalled", func() bool {
		n := 0
		for range node.partitions[0].journal.WithCondition() {
			n++
		}
		return n == many && stalled(node) == many
	})
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node, reader := start(true)
	if got, local := stalled(node), stalled(node, Stale()); got != many || local != many {
		t.Errorf("after a restart %d are stalled, by this replica %d; want %d", got, local, many)
	}
	if got := sumMetric(collectMetrics(t, reader)["tenuto.instances"], "stalled"); got != many {
		t.Errorf("the metric says %v", got)
	}
	status, err := node.Client().Get(ctx, "s-0")
	if err != nil || status.State != Stalled || status.Mismatch == nil || status.Mismatch.EventID != 2 {
		t.Errorf("%+v, %v", status, err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node, _ = start(false)
	eventually(t, "nothing is stalled where the code fits", func() bool { return stalled(node) == 0 })
}
