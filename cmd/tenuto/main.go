// Command tenuto starts, shows, controls and repairs the instances of a running cluster, and
// manages its nodes:
//
//	go install github.com/tenuto-dev/tenuto/cmd/tenuto@latest
//
//	tenuto dev                             run a node with samples, to try things out
//	tenuto list -state failed              list failed instances
//	tenuto list -query 'updated<2h failing>=3' -order -updated
//	tenuto get order-17                    show the state of an instance
//	tenuto history -follow order-17        show its events, and those to come
//	tenuto start greet hello-1 '"Ada"'     start an instance with an input
//	tenuto list -query waiting=activity:charge -o ids | tenuto retry - -reason 'bank is up'
//	tenuto bulk start cancel -query 'name=checkout state=running' -dry-run
//	tenuto cert -nodes n1,n2,n3            make certificates for trying
//	tenuto completion bash                 write a script that completes command lines
//
// "tenuto help" lists the commands, "tenuto COMMAND -h" the flags of a command. Flags begin with
// one or two dashes, and may come before or after the arguments.
//
// # The cluster
//
// Most commands call a cluster over the network, as a remote client does. Name one or more nodes,
// separated by commas, with -addr. With TLS, use the certificate of a client of the cluster (-cert,
// -key, -ca). Config.Authorize of the nodes decides what the client may do.
//
// Each of these flags is taken from the command line, else from its environment variable
// (TENUTO_ADDR for -addr), else from a profile ("tenuto profile"), else it has its default. The
// profile is that of -profile, else TENUTO_PROFILE, else the current one. Profiles are in the file
// that TENUTO_CONFIG names, by default tenuto/config.json in XDG_CONFIG_HOME or the user's
// directory for configuration.
//
// Only "tenuto recover" reads the directory of a stopped node. To see what another one has, start
// it and call it.
//
// # Selecting instances
//
// "list" and "count" select instances by flags and by the text of -query, whose grammar is in the
// documentation of package cluster/filter. An instance must match all of them. In an order other
// than by ID, an instance that changes while a long list is written may be written twice or not at
// all.
//
// Commands with ID... take several IDs, and "-" for those on the standard input: the first word of
// each line. Without an ID, they read a piped standard input.
//
// # Changes
//
// With -dry-run, a command checks that what it acts on exists and says what it would do. Commands
// that cannot be undone ask on a terminal and need -yes elsewhere: terminate, purge, bulk start,
// remove and adopt always, cancel, complete, fail, fire, rerun and rewind for more than one
// instance.
//
// # Values
//
// Inputs and other values are JSON: as the argument, in a file (@FILE), or from the standard input
// (-). Payloads that a codec of the cluster has encoded are shown with their content type.
//
// # Output
//
// Results go to the standard output, everything else to the standard error. Every cell of a table
// is one word, "-" if empty, so awk can split the columns, except the last one of a history; new
// versions may add columns. With -o json each line is one JSON object, whose fields keep their
// names and meanings. Times in JSON are in UTC, those in tables in the local zone or, with -utc, in
// UTC.
//
// The exit status is:
//   - 0 for success;
//   - 1 if the command was rejected or failed, or a check found an error;
//   - 2 for an invalid command line, value or file of profiles;
//   - 3 if no answer came in time and nothing was done;
//   - 4 if the cluster does not permit the call;
//   - 5 if the outcome of a change is unknown: look at the instance before you repeat it;
//   - 6 if the instance, node or operation does not exist;
//   - 130 after an interrupt, 143 after a request to terminate.
//
// Of several IDs all are tried; the status is that of the errors if they agree, otherwise 1.
// "members" exits with 3 if no node that it reaches names a leader (with several partitions: of the
// first). It first lists the members according to one node.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // schedule create checks the time zone on any machine

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/terminal"
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		received := <-signals
		signal.Stop(signals) // a second signal ends the process
		number, _ := received.(syscall.Signal)
		cancel(&signalError{number})
	}()
	os.Exit(run(ctx, os.Args[1:], processStreams(ctx)))
}

// streams are what a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
	env      func(name string) string
	// interactive: a person reads err and writes in. terminal: a person reads out.
	interactive, terminal bool
	written               **output.Documents
	// progressPause replaces the constant in tests.
	progressPause time.Duration
}

func processStreams(ctx context.Context) streams {
	return streams{
		in: &interruptibleInput{ctx, os.Stdin}, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		interactive: terminal.Is(os.Stdin) && terminal.Is(os.Stderr),
		terminal:    terminal.Is(os.Stdout),
		written:     new(*output.Documents),
	}
}

// An interruptibleInput is a file whose Read ends when the context does.
type interruptibleInput struct {
	ctx  context.Context
	file interface {
		io.Reader
		Stat() (os.FileInfo, error)
	}
}

// Read implements [io.Reader]. After the end of the context, a read in progress takes what comes
// next, so nothing must be read any more.
func (i *interruptibleInput) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	type result struct {
		n   int
		err error
	}
	buffer := make([]byte, len(p))
	done := make(chan result, 1)
	go func() {
		n, err := i.file.Read(buffer)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return copy(p, buffer[:r.n]), r.err
	case <-i.ctx.Done():
		return 0, context.Cause(i.ctx)
	}
}
