// Command tenuto inspects a running cluster, controls its instances, and exports and checks
// histories:
//
//	go install github.com/tenuto-dev/tenuto/cmd/tenuto@latest
//
//	tenuto list -state failed              list failed instances
//	tenuto list -query 'updated<2h failing>=3' -order -updated
//	tenuto count -by state,name            count instances in groups
//	tenuto get order-17                    show the state of an instance
//	tenuto stack order-17                  show where coroutines of an instance wait
//	tenuto adopt n2 6f1e…                  record the new directory of a node that lost its own
//	tenuto members                         list the nodes and the leader
//	tenuto settings Limits.Open=500        show or change the settings of the cluster
//	tenuto cancel -reason refund order-17  also terminate, suspend, resume, retry
//	tenuto schedule show nightly           also create, list, update, pause, resume, trigger …
//	tenuto history export order-17         write a history as JSON, one event per line
//	tenuto history check testdata/*.json   check the consistency of histories in files
//
// "tenuto help" lists the commands, "tenuto COMMAND -h" the flags of a command. Flags may come
// before or after the arguments.
//
// # The cluster
//
// All commands except "history check" call a cluster over the network, as a remote client does.
// Name one or more nodes, separated by commas, with -addr or TENUTO_ADDR. With TLS, use the
// certificate of a client of the cluster (-cert, -key, -ca). Config.Authorize of the nodes decides
// what the client may do.
//
// No command reads the directory of a stopped node, because a process that opens it acts as that
// node and changes it. Start the node and call it.
//
// # Selecting instances
//
// "list" and "count" select instances by flags and by the text of -query, whose grammar is in the
// documentation of package cluster/filter. An instance must match all of them. In an order other
// than by ID, an instance that changes while a long list is written may be written twice or not at
// all.
//
// # Output
//
// Results go to the standard output, everything else to the standard error. Every cell of a table
// is one word, "-" if empty, so awk can split the columns; new versions may add columns. With -json
// each line is one JSON object, whose fields keep their names and meanings.
//
// The exit status is:
//   - 0 for success;
//   - 1 if the command was rejected or failed, or a check found an error;
//   - 2 for an invalid command line;
//   - 3 if no leader answered in time or the outcome is unknown.
//
// After 3, the error says whether nothing was done or the outcome is unknown. Look at the instance
// before you repeat a command; repeating "token" issues another token. "members" also exits with 3
// if no node that it reaches names a leader (with several partitions: of the first). It first lists
// the members according to one node.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // schedule create checks the time zone on any machine
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	cancel()
	os.Exit(status)
}

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}
