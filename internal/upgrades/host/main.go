// Command host is the program that the tests of upgrades run. It is built from two versions of this
// repository, so it uses only what both have. It is a node, or a client that keeps a cluster busy;
// it ends when its standard input does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// settings are those of a process, in JSON, in the environment variable TENUTO_UPGRADES_HOST.
type settings struct {
	ID, Address, Dir string
	Peers            []cluster.Peer
	// Load makes it a client: the addresses of the nodes. First is the first number that it adds.
	Load  []string
	First int
}

// acknowledged is what a client prints at its end: what the cluster has confirmed to it.
type acknowledged struct {
	Errands []string // IDs of instances that have ended as they should
	Added   []int    // numbers that the counter has
}

var (
	step   = replay.Activity[string, string]("step")
	errand = replay.Orchestration[string, string]("errand")
	part   = replay.Orchestration[string, string]("part")
	added  = replay.Event[int]("added")
	// counter collects numbers until it gets a negative one, and returns them.
	counter = replay.Orchestration[[]int, []int]("counter")
)

const (
	counterID = "counter"
	// continueEvery is how many numbers an execution of the counter takes.
	continueEvery = 50
)

func main() {
	var s settings
	err := json.Unmarshal([]byte(os.Getenv("TENUTO_UPGRADES_HOST")), &s)
	switch {
	case err != nil:
	case len(s.Load) > 0:
		err = runLoad(s)
	default:
		err = runNode(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "host:", err)
		os.Exit(1)
	}
}

func runNode(s settings) error {
	// With frequent snapshots and few entries kept, a node that was down gets a snapshot of a
	// leader of the other build, and each reads the checkpoints of the other.
	ctx := harness.NewContext(context.Background(), harness.Overrides{
		SnapshotThreshold: 100, SnapshotInterval: 100 * time.Millisecond, TrailingLogs: 10,
	})
	node, err := cluster.Start(ctx, cluster.Config{
		NodeID: s.ID, Listen: s.Address, Dir: s.Dir, Peers: s.Peers, Partitions: 2,
		Definitions: []replay.Definition{
			step.Bind(func(_ context.Context, name string) (string, error) { return name + ".", nil }),
			errand.Bind(runErrand), part.Bind(runPart), counter.Bind(count),
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	fmt.Println("started")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	select {
	case <-node.Failed():
		return errors.Join(node.Err(), node.Close())
	case <-ended:
		return node.Stop(ctx)
	}
}

// runErrand has an activity, a timer, a child and another activity.
func runErrand(ctx *replay.Context, name string) (string, error) {
	first, err := step.Call(ctx, name)
	if err != nil {
		return "", err
	}
	if err := ctx.Sleep(20 * time.Millisecond); err != nil {
		return "", err
	}
	second, err := part.Call(ctx, first)
	if err != nil {
		return "", err
	}
	return step.Call(ctx, second)
}

func runPart(ctx *replay.Context, name string) (string, error) { return step.Call(ctx, name) }

// count is the counter. It continues as new with what it has.
func count(ctx *replay.Context, numbers []int) ([]int, error) {
	has := make(map[int]bool, len(numbers))
	for _, n := range numbers {
		has[n] = true
	}
	for range continueEvery {
		n, err := added.Wait(ctx)
		switch {
		case err != nil:
			return nil, err
		case n < 0:
			return numbers, nil
		case !has[n]:
			has[n] = true
			numbers = append(numbers, n)
		}
	}
	return nil, counter.ContinueAsNew(ctx, numbers)
}

// runLoad keeps a cluster busy until standard input ends.
func runLoad(s settings) error {
	ctx := context.Background()
	client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: s.Load})
	if err != nil {
		return err
	}
	defer client.Close()
	stopped, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	var done acknowledged
	var mu sync.Mutex
	var workers sync.WaitGroup
	var failed []error
	run := func(one func(i int) error) {
		workers.Go(func() {
			for i := 0; stopped.Err() == nil; i++ {
				if err := one(i); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	for w := range 3 {
		run(func(i int) error {
			id := fmt.Sprintf("%s-%d-%d", s.ID, w, i)
			got, err := repeat(func() (string, error) { return cluster.Call(ctx, client, errand, id, id, cluster.Attach()) })
			if err == nil && got != id+"..." {
				err = fmt.Errorf("it has returned %q", got)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			done.Errands = append(done.Errands, id)
			fmt.Fprintf(os.Stderr, "errands: %d\n", len(done.Errands))
			return nil
		})
	}
	rate := time.NewTicker(50 * time.Millisecond) // so that the counter stays small
	defer rate.Stop()
	run(func(i int) error {
		<-rate.C
		_, err := repeat(func() (*cluster.Run[[]int], error) {
			return cluster.SendOrStart(ctx, client, counter, counterID, nil, added, s.First+i)
		})
		if err != nil {
			return fmt.Errorf("add %d: %w", s.First+i, err)
		}
		mu.Lock()
		defer mu.Unlock()
		done.Added = append(done.Added, s.First+i)
		return nil
	})
	workers.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(done)
}

// repeatMax bounds how long a call is repeated. A leader change takes less than a second.
const repeatMax = 2 * time.Minute

// repeat repeats a call while the cluster does not answer.
func repeat[T any](call func() (T, error)) (T, error) {
	for began := time.Now(); ; {
		answer, err := call()
		var unavailable *cluster.UnavailableError
		if !errors.As(err, &unavailable) || time.Since(began) > repeatMax {
			return answer, err
		}
	}
}
