// Command versions changes an orchestration under running instances, twice, and shows how
// earlier instances continue. A node runs with the original code and stops, then one with a
// patch, then one with a second version.
//
//	go run ./examples/versions            # in a temporary directory
//	go run ./examples/versions -dir data
//
// # When to use it
//
// Whenever you change code of running instances. An instance is loaded by running its code
// over its history. If the code requests other operations than the history has, the instance
// stalls and nothing is added to its history. There are two ways to change code:
//
//   - A patch, for a small change. replay.Patched returns true for an execution that reaches this
//     place for the first time, false for one that has passed it, and the same value on every later
//     call and replay. One function contains both branches.
//   - A version, for a rewrite. Both bodies are bound to the same name. An instance keeps the
//     version with which it started. A new one gets the highest.
//
// # What to look at
//
//   - shipping.go: shippingV1 is the original code, shippingPatched contains both branches,
//     shippingV2 is version 2. Each of the three orders ends with the code with which it began.
//   - testdata contains histories recorded with shippingV1: a completed order and a waiting one.
//     replaytest.Replay runs today's code over them. Keep some histories of each version in use,
//     from production (the client's Export). Then the tests detect changes that
//     would stall running instances.
//   - The test that adds the new step without a patch: the failure has the expected event,
//     the operation that the code requested, and the line.
//
// # Removing old code
//
//   - When no instance is left that began before the patch (Client.Count by name and state), remove
//     the old branch and replace replay.Patched by replay.DeprecatePatch. When no instance has the
//     marker of the patch any more, remove that call too.
//   - Remove a version when Client.Count with Filter.Version finds no running instance.
//
// # When not to use it
//
//   - Bodies of activities may change at any time: histories contain only input and output.
//     The same holds for messages, logs and everything without durable calls.
//   - New fields of inputs and results need no version: they are JSON, and missing fields are
//     zero.
//   - Loops that continue as new use new code in their next execution.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func main() {
	dir := flag.String("dir", "", "`directory` of the journal (default: temporary)")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	if dir == "" {
		temporary, err := os.MkdirTemp("", "versions")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temporary)
		dir = temporary
	}
	releases := [][]replay.Definition{firstRelease(out), secondRelease(out), thirdRelease(out)}
	for i, release := range releases {
		fmt.Fprintln(out, "release", i+1)
		last := i == len(releases)-1
		if err := serve(ctx, dir, release, fmt.Sprintf("order-%d", i+1), last); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a node with the code of one release. It starts an order, which waits until it is
// packed. The last release packs all orders.
func serve(ctx context.Context, dir string, release []replay.Definition, order string, last bool) error {
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, Definitions: release})
	if err != nil {
		return err
	}
	client := node.Client()
	_, err = cluster.StartRun(ctx, client, Shipping, order, Order{ID: order}, cluster.ReuseWhenEnded(), cluster.Attach())
	if err == nil {
		err = awaitSubscription(ctx, client, order)
	}
	if err == nil && last {
		err = packAll(ctx, client)
	}
	return errors.Join(err, node.Stop(context.WithoutCancel(ctx)))
}

// awaitSubscription returns when an order waits to be packed.
func awaitSubscription(ctx context.Context, client *cluster.Client, order string) error {
	for event, err := range client.Watch(ctx, order, history.Position{}) {
		if err != nil || event.Type == history.ExternalSubscribed {
			return err
		}
	}
	return nil
}

// packAll packs all orders, one after another, and waits until they are shipped.
func packAll(ctx context.Context, client *cluster.Client) error {
	running := cluster.Filter{Name: Shipping.Name(), States: []cluster.State{cluster.Running}}
	for after := ""; ; {
		page, err := client.List(ctx, running, after, 0)
		if err != nil {
			return err
		}
		for _, order := range page.Instances {
			if err := pack(ctx, client, order.InstanceID); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// pack packs an order and waits until it is shipped.
func pack(ctx context.Context, client *cluster.Client, order string) error {
	if err := cluster.Send(ctx, client, order, Packed, "box 7"); err != nil {
		return err
	}
	ended, err := client.Wait(ctx, order)
	if err != nil {
		return err
	}
	return ended.Err
}
