// Command worker is an application whose activities run in other processes than its nodes.
//
//	go run ./examples/worker -listen 127.0.0.1:7700   # a node, which starts an album every second
//	go run ./examples/worker -join 127.0.0.1:7700     # a worker; start some, stop and kill them
//
// # When to use it
//
// When activities need more processors, memory or other hardware than the nodes have, or must be
// scaled without another replica of the state.
//
// # What to look at
//
//   - A worker is a client: cluster.Dial with DialConfig.Definitions. It has no directory and no
//     vote.
//   - Node and worker get the same list of definitions. A worker runs only the activities among it.
//   - Config.LeaderExempt keeps activities off the node while a worker serves them. Without a
//     worker they run on the node.
//   - Interrupt stops a worker with Client.Close: it takes no more photos, and has DrainTimeout to
//     end those that it has begun. After kill -9 the photos begin again on others within a second.
//
// # When not to use it
//
// If the nodes have processors left: every node runs activities for the leader. A worker costs each
// of its activities a round trip.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

func main() {
	listen := flag.String("listen", "", "run a node at this address")
	join := flag.String("join", "", "run a worker of the node at this address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	switch {
	case *listen != "":
		err = runNode(ctx, *listen, os.Stdout)
	case *join != "":
		err = runWorker(ctx, *join, fmt.Sprintf("worker %d", os.Getpid()))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Develop renders one photo; Album renders several at once and returns what rendered them.
var (
	Develop = replay.Activity[string, string]("develop")
	Album   = replay.Orchestration[[]string, []string]("album")
)

// definitions returns the code of nodes and workers. name says where it runs.
func definitions(name string) []replay.Definition {
	return []replay.Definition{
		Develop.Bind(func(ctx context.Context, _ string) (string, error) {
			select {
			case <-time.After(500 * time.Millisecond):
				return name, nil
			case <-ctx.Done(): // this process stops: another worker begins the photo again
				return "", context.Cause(ctx)
			}
		}),
		Album.Bind(func(ctx *replay.Context, photos []string) ([]string, error) {
			return replay.Map(ctx, len(photos), photos, func(ctx *replay.Context, photo string) (string, error) { return Develop.Call(ctx, photo) })
		}),
	}
}

// runWorker runs activities until ctx ends.
func runWorker(ctx context.Context, node, name string) error {
	client, err := cluster.Dial(ctx, cluster.DialConfig{
		Addresses: []string{node}, Definitions: definitions(name), ActivitiesMax: 4, DrainTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return client.Close()
}

// runNode runs a node until ctx ends, and prints where the photos of its albums are developed.
func runNode(ctx context.Context, listen string, out io.Writer) error {
	node, err := cluster.Start(ctx, cluster.Config{Listen: listen, InMemory: true, LeaderExempt: true, Definitions: definitions("node")})
	if err != nil {
		return err
	}
	defer node.Close()
	photos := []string{"lake", "wood", "town", "moor"}
	for n := 1; ctx.Err() == nil; n++ {
		places, err := cluster.Call(ctx, node.Client(), Album, fmt.Sprintf("album-%d", n), photos)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "album %d was developed by %q\n", n, places)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}
