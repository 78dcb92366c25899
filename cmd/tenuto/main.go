// Command tenuto looks at a running cluster and acts on its instances, and exports
// and checks histories:
//
//	go install github.com/tenuto-dev/tenuto/cmd/tenuto@latest
//
//	tenuto list -state failed              which instances have failed
//	tenuto get order-17                    what one is doing, or how it ended
//	tenuto adopt n2 6f1e…                  a node has lost its directory and has a new one
//	tenuto members                         which nodes there are, and which one leads
//	tenuto cancel -reason refund order-17  also terminate, suspend, resume, retry
//	tenuto history export order-17         its history as JSON, one event a line
//	tenuto history check testdata/*.json   whether files hold sound histories
//
// "tenuto help" lists the commands, "tenuto COMMAND -h" its flags. Flags may stand
// before or behind what a command is about.
//
// # The cluster
//
// All but "history check" call a cluster over the network, as any remote client
// does: any node of it will do (-addr, or TENUTO_ADDR; several are separated by
// commas). With TLS the certificate is that of a client of the cluster (-cert, -key,
// -ca), and Config.Authorize of the nodes decides what it may do.
//
// There is no way to read the directory of a node that does not run: whoever opens
// it is that node, and leaves traces in it. Start the node and ask it.
//
// # Output
//
// Results go to the standard output, everything else to the standard error. Every cell of
// a table is one word, "-" where there is nothing to say, so that awk finds the columns;
// but columns may be added. With -json there is one JSON object a line, whose fields keep
// their names and meanings.
//
// The exit status is 0 when all was done; 1 when it was refused or has failed, or a check
// has found something; 2 when the command line cannot be used; 3 when no leader answered in
// time or the outcome is unknown. After 3 the error says whether nothing was done or whether
// that is unknown. Before you repeat a command, look at the instance; repeating "token"
// issues another token. "members" also ends with 3 when none of the nodes that it knows
// names a leader (of several groups: of the first), after it has listed what a node knows by
// itself.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
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
