// Command account is a bank account: an entity with a state that lives for years
// and takes commands one after the other.
//
//	go run ./examples/account            # in memory
//	go run ./examples/account -dir data  # finds the account where it was left
//
// # When to use it
//
// Where commands to one thing must not get into each other's way: an account, a
// seat map, a device, a game. The instance is the lock. It has the state in its
// variables, its ID is the name of the thing, and whatever happens to nodes, there
// is one of it.
//
// # What to look at
//
//   - Commands are updates: the caller is answered, with a result or with an error
//     that keeps its identity (ErrTooLittle here). An event would do where nobody
//     waits for an answer.
//   - What is wrong by itself is refused by the validation and recorded nowhere.
//     What depends on the state is decided in the handler, and again after each
//     durable call: others may have been carried out in between.
//   - A handler without durable calls is alone by itself. One with them (book asks
//     the ledger) takes the semaphore, so that the next begins when it is done.
//   - A caller that names its update (cluster.UpdateID) may repeat it: it is carried
//     out once, and answered each time.
//   - The balance is a query: answered from memory, recorded nowhere.
//   - When the history has become long, the entity continues as new with its state
//     as input. AwaitUpdates lets the running ones end first; those that wait are
//     carried over.
//
// # When not to use it
//
// Where there are many commands a second to one thing: each is a commit, and they
// are one after the other on purpose. Where the state is large: it is the input of
// the next execution, 1 MiB at most; keep it in a database, and here what decides.
// And a transfer between two accounts is not one command but a saga of two.
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
	dir := flag.String("dir", "", "where the journal lives; in memory without it")
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
