package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

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

// The input of an activity gets a field, and its call a timeout, while an instance waits. A node
// with Strict stalls the instance; the next one without it continues.
func TestStrict_RejectsWhatDefaultAccepts(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	shipped := replay.Event[string]("shipped")
	type order struct{ ID string }
	type giftOrder struct {
		ID   string
		Gift bool
	}
	first := func() []replay.Definition {
		pack := replay.Activity[order, string]("pack")
		return []replay.Definition{
			pack.Bind(func(_ context.Context, o order) (string, error) { return o.ID, nil }),
			canaryOrchestration.Bind(func(ctx *replay.Context, id string) (string, error) {
				if _, err := pack.Call(ctx, order{id}); err != nil {
					return "", err
				}
				return shipped.Wait(ctx)
			}),
		}
	}
	second := func() []replay.Definition {
		pack := replay.Activity[giftOrder, string]("pack")
		return []replay.Definition{
			pack.Bind(func(_ context.Context, o giftOrder) (string, error) { return o.ID, nil }),
			canaryOrchestration.Bind(func(ctx *replay.Context, id string) (string, error) {
				if _, err := pack.Call(ctx, giftOrder{ID: id}, replay.StartToClose(time.Minute)); err != nil {
					return "", err
				}
				return shipped.Wait(ctx)
			}),
		}
	}
	node := startNode(t, Config{Dir: dir, Definitions: first()})
	if _, err := StartRun(ctx, node.Client(), canaryOrchestration, "i", "17"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the order is packed", func() bool {
		h, err := node.Client().History(ctx, "i")
		return err == nil && len(h.Events) == 4
	})
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: second(), Strict: true})
	go func() { _ = Send(ctx, node.Client(), "i", shipped, "yes", RequestID("s")) }()
	eventually(t, "the instance is stalled", func() bool {
		status, err := node.Client().Get(ctx, "i")
		return err == nil && status.State == Stalled && status.Mismatch != nil && status.Mismatch.EventID == 2
	})
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: second()})
	if err := Send(ctx, node.Client(), "i", shipped, "yes", RequestID("s")); err != nil {
		t.Fatal(err)
	}
	if status, err := node.Client().Wait(ctx, "i"); err != nil || status.State != Completed {
		t.Errorf("%+v, %v", status, err)
	}
}
