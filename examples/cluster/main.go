// Command cluster starts three nodes on this machine, each in its own process, keeps them
// busy with orchestrations, shows them in a browser, and lets you kill them.
//
//	go run ./examples/cluster
//	go run ./examples/cluster -script "wait; kill leader; wait; restart; wait"
//
// Type commands while it runs, or pass them with -script:
//
//	kill [leader|n1|n2|n3]   end a process like kill -9
//	pause [leader|n1|n2|n3]  stop a process without ending it
//	restart                  start killed processes, continue paused ones
//	wait                     until 20 more orchestrations have ended
//	quit                     (or end of input) wait for all orchestrations, print a summary
//
// The first line is the URL of the dashboard. Errands keep the nodes busy; shipments fail, are
// retried and wait for signatures, so that there is something to see and to repair.
//
// The program prints a line each second, and at each change, with the leader and the number of
// orchestrations. At the end it prints how many orchestrations were started, finished and lost. It
// also prints the longest time in which none finished, which is the outage that a user would
// notice.
//
// # When to use it
//
// To try what the README claims, and as an example of an application that must survive the loss of
// a machine: every process has the same list of peers, the same code and its own directory, and
// callers need not know the leader. Two of three nodes must run for anything to be recorded. Five
// nodes survive the loss of two.
//
// # What to look at
//
//   - node.go contains what a node needs: a name, a directory, the peers, the code.
//   - dashboard.go is all that a program needs to show a cluster.
//   - The client (load.go) runs in a process without a node and uses cluster.Dial. It finds the
//     leader, and the next one after a failover. A waiting call continues at another node.
//   - Kill the leader: the others notice within half a second and elect one of themselves,
//     which continues every orchestration from its history.
//   - Activities run on all nodes. An attempt that ran on a lost node runs again on another. So an
//     activity runs at least once, and its result is recorded once.
//   - Kill two nodes: nothing proceeds and nothing is lost until you restart them.
//   - Pause the leader and restart it: it learns that another node leads, and becomes a follower.
//
// # When not to use it
//
// Three nodes on one machine survive the loss of a process, not of the machine or its disk.
// If that is enough, one node is a complete system, and faster: see example hello. Nodes on
// several machines need Config.TLS.
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
	script := flag.String("script", "", "`commands` separated by semicolons, instead of standard input")
	flag.Parse()
	if node := os.Getenv(nodeEnv); node != "" {
		exit(runNode(node))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
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

// run executes commands until they or ctx end, and prints a summary.
func run(ctx context.Context, commands io.Reader, out io.Writer) error {
	dir, err := os.MkdirTemp("", "tenuto-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	nodes, err := startLocalCluster(dir)
	if err != nil {
		return err
	}
	defer nodes.close()
	// ctx ends only the commands. Started orchestrations may finish.
	working := context.WithoutCancel(ctx)
	client, err := cluster.Dial(working, cluster.DialConfig{Addresses: nodes.addresses()})
	if err != nil {
		return err
	}
	defer client.Close()
	logger := log.New(out, "", 0)
	showing, cancel := context.WithCancel(working)
	defer cancel()
	dashboardEnded, err := serveDashboard(showing, client, logger)
	if err != nil {
		return err
	}
	shipmentsEnded := sendShipments(showing, client)
	c := &console{nodes: nodes, client: client, load: startLoad(working, client), out: logger}
	stopWatch := c.watch(working)
	c.readCommands(ctx, commands)
	err = nodes.restart() // so that started orchestrations can end
	summary, failed := c.load.finish(working)
	stopWatch()
	cancel()
	shipmentsEnded()
	dashboardEnded()
	c.out.Print(summary)
	return errors.Join(err, failed)
}

// A console executes commands and prints the state of the cluster.
type console struct {
	nodes  *localCluster
	client *cluster.Client
	load   *loadGenerator
	out    *log.Logger // may be used concurrently
}

func (c *console) readCommands(ctx context.Context, commands io.Reader) {
	lines := make(chan string)
	go func() { // reading a terminal cannot be interrupted
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
			if err := c.execute(ctx, strings.Fields(line)); err != nil {
				c.out.Printf("%s: %v", line, err)
			}
		}
	}
}

func (c *console) execute(ctx context.Context, words []string) error {
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "wait":
		return c.load.await(ctx, 20)
	case words[0] == "restart":
		c.out.Print("=> restart all killed and paused nodes")
		return c.nodes.restart()
	case words[0] != "kill" && words[0] != "pause":
		return fmt.Errorf("unknown command: use kill, pause, restart, wait or quit")
	}
	id, action := "", c.nodes.kill
	if words[0] == "pause" {
		action = c.nodes.pause
	}
	if len(words) > 1 && words[1] != "leader" {
		id = words[1]
	} else if id = c.awaitLeader(ctx); id == "" {
		return ctx.Err()
	}
	c.out.Printf("=> %s %s", words[0], id)
	return action(id)
}
