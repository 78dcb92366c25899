// Command shop sells something: it takes from the stock, charges a card and writes
// a mail, by services that it is given.
//
//	go run ./examples/shop            # in memory
//	go run ./examples/shop -dir data  # goes on where it was when killed
//
// # When to use it
//
// In every application that is larger than an example: activities need database
// pools, clients and configuration, and tests need others than production.
//
// # What to look at
//
//   - Handles are package variables, bodies are bound where the services are known.
//     A handle has no body, so that it can be shared, called from another package
//     or another program, and bound to something else in each.
//   - Activities are methods of a struct (Shop) whose fields are small interfaces,
//     declared here and not where they are implemented. There is no container, no
//     registry, no global: Definitions hands over what main has put together.
//   - The orchestration is a function and has no receiver. All that it knows it has
//     from its input and from activities. A field that changes, or is another one on
//     another node, would be a decision that its history does not have.
//   - Configuration that decides (a limit, a switch) is part of the input, or read
//     by an activity or replay.Once, so that it is recorded.
//   - The test gives the same Shop other services and runs the real activities; or
//     it stubs the activities where only the orchestration is of interest.
//
// # When not to use it
//
// Do not hand the orchestration a service to call by itself, not even one that
// "only reads": it is called again on every replay, and answers something else.
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
	shop := &Shop{
		Stock:    &shelf{items: map[string]int{"book": 2}},
		Payments: terminal{out},
		Mail:     printer{out},
	}
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: shop.Definitions()})
	if err != nil {
		return err
	}
	defer node.Close()
	for i, customer := range []string{"ada", "bob", "cleo"} {
		id := fmt.Sprintf("order-%d", i+1)
		receipt, err := cluster.Call(ctx, node.Client(), Sell, id, Order{Customer: customer, Item: "book", Price: 20}, cluster.Attach())
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintf(out, "%s is paid under %s\n", id, receipt.Payment)
	}
	return nil
}
