package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	warehouse = replay.Orchestration[int, string]("warehouse")
	adjust    = replay.Update[adjustment, int]("adjust")
	closeDown = replay.Event[string]("close-down")
	stock     = replay.KV[int]("stock")
	region    = replay.Attribute[string]("region")
	pieces    = replay.Attribute[int]("pieces")
)

type adjustment struct {
	Item string
	By   int
}

// warehouseDefinition binds an orchestration that keeps its stock in a key-value map. It continues
// as new after three updates.
func warehouseDefinition() replay.Definition {
	return warehouse.Bind(func(ctx *replay.Context, total int) (string, error) {
		if err := region.Set(ctx, strings.SplitAfter(ctx.InstanceID(), "-")[0]); err != nil {
			return "", err
		}
		done, updates := false, 0
		if err := adjust.Handle(ctx, nil, func(ctx *replay.Context, change adjustment) (int, error) {
			updates++
			present, _, err := stock.Get(ctx, change.Item)
			if err != nil {
				return 0, err
			}
			total += change.By
			return present + change.By, errors.Join(stock.Set(ctx, change.Item, present+change.By), pieces.Set(ctx, total))
		}); err != nil {
			return "", err
		}
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			reason, err := closeDown.Wait(ctx)
			done = err == nil
			return reason, err
		})
		if err := replay.Await(ctx, func() bool { return done || updates >= 3 }); err != nil {
			return "", err
		}
		if err := replay.AwaitUpdates(ctx); err != nil || done {
			return fmt.Sprint(stock.Keys(ctx)), err
		}
		return "", warehouse.ContinueAsNew(ctx, total)
	})
}

func checkStock(ctx context.Context, t *testing.T, client *Client, id string, want map[string]int, options ...replay.Option) {
	t.Helper()
	if got, err := ReadKV(ctx, client, id, stock, options...); err != nil || !maps.Equal(got, want) {
		t.Errorf("the stock of %s is %v, %v; want %v", id, got, err, want)
	}
}

func TestReadKV_AcrossContinueAsNewRestartAndEnd(t *testing.T) {
	checkGoroutineLeaks(t)
	dir := t.TempDir()
	config := Config{Dir: dir, Definitions: []replay.Definition{warehouseDefinition()}}
	node := startNode(t, config)
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), warehouse, "north-1", 0); err != nil {
		t.Fatal(err)
	}
	checkStock(ctx, t, node.Client(), "north-1", map[string]int{})
	for i := range 7 {
		if _, err := CallUpdate(ctx, node.Client(), "north-1", adjust, adjustment{fmt.Sprint("item", i%2), i}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{"item0": 0 + 2 + 4 + 6, "item1": 1 + 3 + 5}
	checkStock(ctx, t, node.Client(), "north-1", want)
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, config)
	client := node.Client()
	checkStock(ctx, t, client, "north-1", want)
	checkStock(ctx, t, client, "north-1", want, Stale())
	status, err := client.Get(ctx, "north-1")
	if err != nil {
		t.Fatal(err)
	}
	if total, ok := pieces.In(status.Attributes); status.Execution != 3 || !ok || total != 21 {
		t.Errorf("execution %d has the attributes %v, want pieces 21 in execution 3", status.Execution, status.Attributes)
	}
	if err := Send(ctx, client, "north-1", closeDown, "sold"); err != nil {
		t.Fatal(err)
	}
	run, err := StartRun(ctx, client, warehouse, "north-1", 0, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := run.Wait(ctx); err != nil || keys != "[item0 item1]" {
		t.Errorf("the warehouse returned %q, %v", keys, err)
	}
	checkStock(ctx, t, client, "north-1", want)
	var mistyped *replay.PayloadError
	if _, err := ReadKV(ctx, client, "north-1", replay.KV[string]("stock")); !errors.As(err, &mistyped) {
		t.Errorf("numbers read as strings: %v", err)
	}
	if _, err := client.Purge(ctx, "north-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKV(ctx, client, "north-1", stock); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the purge: %v", err)
	}
}

// Leaders of all partitions change between updates; every node knows the attributes.
func TestAttributes_ListedDespiteFailovers(t *testing.T) {
	t.Parallel()
	f := newTestClusterWith(t, 3, func(c *Config) {
		c.Definitions, c.Partitions = []replay.Definition{warehouseDefinition()}, testPartitions
	})
	ctx, client := testContext(t), f.anyNode().Client()
	awaitNewestProtocol(t, f.anyNode())
	for i := range 6 {
		if _, err := StartRun(ctx, client, warehouse, fmt.Sprint([]string{"north-", "south-"}[i%2], i), 0); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 4 {
		f.moveAllLeaders()
		for i := range 6 {
			id := fmt.Sprint([]string{"north-", "south-"}[i%2], i)
			if _, err := CallUpdate(ctx, client, id, adjust, adjustment{"pears", i}); err != nil {
				t.Fatalf("round %d, %s: %v", round, id, err)
			}
		}
	}
	for _, node := range f.all() {
		for filter, want := range map[string]string{
			"region north-": "[north-0 north-2 north-4]", "region east-": "[]", "pieces 4": "[south-1]", "region south- pieces 12": "[south-3]", "pieces 04": "[]",
		} {
			attributes := make(map[string]string)
			for words := strings.Fields(filter); len(words) > 0; words = words[2:] {
				attributes[words[0]] = words[1]
			}
			page, err := node.Client().List(ctx, Filter{Attributes: attributes}, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			ids := []string{}
			for _, status := range page.Instances {
				ids = append(ids, status.InstanceID)
			}
			if fmt.Sprint(ids) != want {
				t.Errorf("%s lists %v for %q, want %s", node.ID(), ids, filter, want)
			}
			if n, err := node.Client().Count(ctx, Filter{Attributes: attributes}); err != nil || n != len(ids) {
				t.Errorf("%s counts %d for %q, %v", node.ID(), n, filter, err)
			}
		}
		checkStock(ctx, t, node.Client(), "south-5", map[string]int{"pears": 20})
	}
}

func TestReadKV_InvalidArguments(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{warehouseDefinition()}})
	ctx, client := testContext(t), node.Client()
	tooMany := make(map[string]string)
	for i := range 33 {
		tooMany[fmt.Sprint(i)] = ""
	}
	_, unnamed := ReadKV(ctx, client, "a", replay.KV[int](""))
	_, noID := ReadKV(ctx, client, "", stock)
	_, unusable := ReadKV(ctx, client, "a", stock, Attach())
	_, longName := client.List(ctx, Filter{Attributes: map[string]string{strings.Repeat("n", 129): ""}}, "", 0)
	_, longText := client.Count(ctx, Filter{Attributes: map[string]string{"n": strings.Repeat("v", 1025)}})
	_, many := client.Count(ctx, Filter{Attributes: tooMany})
	for what, err := range map[string]error{"no name": unnamed, "no ID": noID, "an option": unusable, "a long name": longName, "a long text": longText, "too many": many} {
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ReadKV(ctx, client, "unknown", stock); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown instance: %v", err)
	}
}
