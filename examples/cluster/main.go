// Command cluster starts three nodes on this machine, each in a process of its own,
// keeps them busy with orchestrations, and lets you kill one of them.
//
//	go run ./examples/cluster
//	go run ./examples/cluster -script "wait; kill leader; wait; restart; wait"
//
// Type while it runs, or let -script type for you:
//
//	kill [leader|n1|n2|n3]   end a process as kill -9 does
//	pause [leader|n1|n2|n3]  stop a process where it is: it answers nobody
//	restart                  start again what was killed, let go on what was paused
//	wait                     until 20 more orchestrations have come to their end
//	quit                     or the end of the input: let all end, and sum up
//
// A line tells each second who leads and how much was done, and one more whenever
// that changes. In the end it says how many orchestrations were started, how many of
// them finished, how many are lost, and the longest time in which none came to its
// end: what a user would have noticed of it all.
//
// # When to use it
//
// Before you believe the README. And as a pattern for an application that must go on
// when a machine is lost: every process has the same list of peers and the same
// code, each has a directory of its own, and whoever calls need not know who leads.
// Two of the three must run for anything to be recorded; five nodes bear the loss of
// two.
//
// # What to look at
//
//   - node.go is all that a node needs: a name, a directory, the peers, the code.
//   - The client (traffic.go) is in a process that is no node: cluster.Dial. It finds
//     the leader, and finds the next one when that is gone. A wait goes on at another
//     node where it was.
//   - Kill the leader: the others notice within half a second and elect one of
//     themselves, which takes up every orchestration where its history ends.
//   - Activities run on all nodes, whoever leads. What ran on the node that was lost
//     is run again on another: at least once, and recorded once.
//   - Kill two: nothing goes on, nothing is lost, and restart is all that it takes.
//   - Pause the leader and let it go on: it finds that it was replaced, and follows.
//
// # When not to use it
//
// Three nodes on one machine survive the loss of a process, not that of the machine
// or of its disk. Where that is enough, or one process is all that there is, one node
// is a complete system, and faster: see examples/hello. Nodes on several machines
// need Config.TLS, which loopback does not.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
)

func main() {
	script := flag.String("script", "", "`commands`, separated by semicolons, instead of those that are typed")
	flag.Parse()
	if node := os.Getenv(nodeVariable); node != "" {
		exit(runNode(node))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // once more ends it at once
	commands := io.Reader(os.Stdin)
	if *script != "" {
		commands = strings.NewReader(strings.ReplaceAll(*script, ";", "\n"))
	}
	exit(run(ctx, commands, os.Stdout))
}

func exit(err error) {
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// run does what it is told until the commands or ctx end, and sums up.
func run(ctx context.Context, commands io.Reader, out io.Writer) error {
	dir, err := os.MkdirTemp("", "tenuto-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	nodes, err := startFleet(dir)
	if err != nil {
		return err
	}
	defer nodes.close()
	// The end of ctx is that of the commands. What was begun may finish.
	working := context.WithoutCancel(ctx)
	client, err := cluster.Dial(working, cluster.DialConfig{Addresses: nodes.addresses()})
	if err != nil {
		return err
	}
	defer client.Close()
	c := &console{fleet: nodes, client: client, traffic: startTraffic(working, client), out: log.New(out, "", 0)}
	watched := c.watch(working)
	c.obey(ctx, commands)
	err = nodes.restart() // so that all that was begun can end
	summary, failed := c.traffic.finish(working)
	watched()
	c.out.Print(summary)
	return errors.Join(err, failed)
}

// A console takes commands and shows what goes on.
type console struct {
	fleet   *fleet
	client  *cluster.Client
	traffic *traffic
	out     *log.Logger // may be used concurrently
}

func (c *console) obey(ctx context.Context, commands io.Reader) {
	lines := make(chan string)
	go func() { // until a line or the end comes: a terminal has no other way
		defer close(lines)
		for scanner := bufio.NewScanner(commands); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case line, more := <-lines:
			if !more || strings.TrimSpace(line) == "quit" {
				return
			}
			if err := c.do(ctx, strings.Fields(line)); err != nil {
				c.out.Printf("%s: %v", line, err)
			}
		}
	}
}

func (c *console) do(ctx context.Context, words []string) error {
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "wait":
		return c.traffic.await(ctx, 20)
	case words[0] == "restart":
		c.out.Print("=> all that was killed or paused goes on")
		return c.fleet.restart()
	case words[0] != "kill" && words[0] != "pause":
		return fmt.Errorf("kill, pause, restart, wait or quit")
	}
	id, hit := "", c.fleet.kill
	if words[0] == "pause" {
		hit = c.fleet.pause
	}
	if len(words) > 1 && words[1] != "leader" {
		id = words[1]
	} else if id = c.awaitLeader(ctx); id == "" {
		return ctx.Err()
	}
	c.out.Printf("=> %s %s", words[0], id)
	return hit(id)
}
