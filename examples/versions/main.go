// Command versions changes an orchestration under running instances, twice, and
// shows what becomes of those that began before. A node starts with the code as it
// was and stops again; one with a patch goes on; one with a second version follows.
//
//	go run ./examples/versions            # in a temporary directory
//	go run ./examples/versions -dir data
//
// # When to use it
//
// Whenever code of which instances are under way is to do something else. An
// instance is brought back to memory by running its code again over its history,
// and code that asks for something else than the history has is found and stopped
// (the instance is stalled; nothing is added to its history). There are two ways to change it:
//
//   - A patch, for a change in few places. replay.Patched is true for who comes to
//     this place for the first time and false for who has passed it, and stays so
//     for that execution. One function carries both branches.
//   - A version, for a rewrite. Both bodies are bound to the same name. An instance
//     keeps the version that it was started with; a new one gets the highest.
//
// # What to look at
//
//   - shipping.go: before is what the code was, patched carries both branches,
//     rewritten is version 2. Each of the three orders ends with the code that it
//     began with, as far as one can tell.
//   - testdata has histories that were exported when the code was "before": one of an
//     order that is done and one of an order that waits. replaytest.Replay runs the
//     code of today over them. Keep some of each version in use, from production
//     (the client's History, package history), and no change that breaks running
//     instances passes its tests.
//   - The test that puts the new step in without a patch, and is told so: what the
//     history has, what the code asked for, and in which line.
//
// # How it ends
//
// When no instance is left that began before the patch (Client.Count by name and
// state), the old branch goes, and replay.Retired takes the place of Patched; when
// none is left that has the patch in its history, so does that. A version goes when
// Client.Count with Filter.Version finds none that runs.
//
// # When not to use it
//
// The bodies of activities may be changed at any time: histories have only what
// went in and out. So may messages, logs and everything that makes no durable call.
// New fields in inputs and results are no new version either: they are JSON, and
// what is missing is zero. And loops that continue as new take new code by
// themselves, at the next turn.
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
)

func main() {
	dir := flag.String("dir", "", "where the journal lives; in a temporary directory without it")
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
	releases := [][]replay.Definition{first(out), second(out), third(out)}
	for i, release := range releases {
		fmt.Fprintln(out, "release", i+1)
		last := i == len(releases)-1
		if err := serve(ctx, dir, release, fmt.Sprintf("order-%d", i+1), last); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a node with the code of one release. It starts an order, which waits
// until it is packed; the last release packs them all.
func serve(ctx context.Context, dir string, release []replay.Definition, order string, last bool) error {
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, Definitions: release})
	if err != nil {
		return err
	}
	client := node.Client()
	_, err = cluster.StartRun(ctx, client, Shipping, order, Order{ID: order}, cluster.ReuseWhenEnded(), cluster.Attach())
	if err == nil {
		err = waiting(ctx, client, order)
	}
	if err == nil && last {
		err = pack(ctx, client)
	}
	return errors.Join(err, node.Stop(context.WithoutCancel(ctx)))
}

// waiting returns when an order waits to be packed.
func waiting(ctx context.Context, client *cluster.Client, order string) error {
	for recorded, err := range client.Watch(ctx, order, cluster.Position{}) {
		if err != nil || recorded.Event.GetExternalSubscribed() != nil {
			return err
		}
	}
	return nil
}

// pack tells all orders, one after the other, and waits until they are shipped.
func pack(ctx context.Context, client *cluster.Client) error {
	page, err := client.List(ctx, cluster.Filter{Name: Shipping.Name(), States: []cluster.State{cluster.Running}}, "", 0)
	if err != nil {
		return err
	}
	for _, order := range page.Instances {
		if err := cluster.Send(ctx, client, order.InstanceID, Packed, "box 7"); err != nil {
			return err
		}
		ended, err := client.Wait(ctx, order.InstanceID)
		if err != nil {
			return err
		}
		if ended.Err != nil {
			return ended.Err
		}
	}
	return nil
}
