// Command account is a bank account: a long-lived entity that takes commands one at a time.
//
//	go run ./examples/account            # in memory
//	go run ./examples/account -dir data  # continues with the same account
//
// # When to use it
//
// When commands to one thing must be serialized: an account, a seat map, a device, a game. The
// instance serializes the commands: its variables are the state, and its ID names the thing. There
// is exactly one instance, even when nodes fail.
//
// # What to look at
//
//   - Commands are updates: the caller gets a result, or an error that keeps its identity
//     (ErrInsufficientFunds). If nobody waits for an answer, an event is enough.
//   - The validation rejects invalid commands, and nothing is recorded. The handler checks what
//     depends on the state. It must check again after each durable call unless it holds the
//     semaphore, because other commands may have run meanwhile.
//   - A handler without durable calls runs alone. A handler with durable calls (book calls
//     the ledger) takes the semaphore.
//   - A caller that gives its update an ID (cluster.RequestID) may repeat it: the update runs once,
//     and each call is answered.
//   - The balance is a query: answered from memory, recorded nowhere.
//   - When the history is long, the entity continues as new with its state as input.
//     AwaitUpdates waits for running updates; waiting ones are carried over.
//
// # When not to use it
//
//   - For many commands a second to one thing: each is a commit, and they run one after
//     another.
//   - For large state: it is the input of the next execution, at most 1 MiB. Keep it in a
//     database.
//   - A transfer between two accounts is a saga of two commands.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/tenuto-dev/tenuto/cluster"
)

func main() {
	dir := flag.String("dir", "", "`directory` of the journal (default: in memory)")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions(out)})
	if err != nil {
		return err
	}
	defer node.Close()
	client := node.Client()
	if _, err := cluster.StartRun(ctx, client, Account, "alice", State{}, cluster.Attach()); err != nil {
		return err
	}
	for _, entry := range []Entry{{100, "salary"}, {-30, "rent"}, {-500, "a car"}, {0, "nothing"}} {
		balance, err := cluster.CallUpdate(ctx, client, "alice", Book, entry)
		if err != nil {
			fmt.Fprintf(out, "%+d for %s: %v\n", entry.Amount, entry.What, err)
			continue
		}
		fmt.Fprintf(out, "%+d for %s: %d are there\n", entry.Amount, entry.What, balance)
	}
	balance, err := cluster.Query(ctx, client, "alice", Balance, struct{}{})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "balance:", balance)
	return nil
}
