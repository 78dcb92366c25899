// Command shop takes an item from stock, charges a card and sends a mail, with injected
// services.
//
//	go run ./examples/shop            # in memory
//	go run ./examples/shop -dir data  # continues after a kill
//
// # When to use it
//
// In every larger application: activities need database pools, clients and configuration, and tests
// need different ones than production.
//
// # What to look at
//
//   - Handles are package variables. Bodies are bound where the services are known. A handle
//     has no body, so other packages and programs can share it and bind it differently.
//   - Activities are methods of a struct (Shop) whose fields are small interfaces, declared
//     by the caller. There is no container, registry or global: main builds the Shop, and
//     Definitions passes it on.
//   - The orchestration is a function without a receiver. It learns everything from its input and
//     from activities. If it used a field that changes or differs between nodes, it would decide by
//     a value that is not in the history.
//   - Configuration that decides something (a limit, a switch) is part of the input, or read
//     by an activity or replay.SideEffect, so that it is recorded.
//   - Tests give the Shop other services and run the real activities, or stub the activities
//     if only the orchestration matters.
//
// # When not to use it
//
// Never pass the orchestration a service to call directly, not even a read-only one: every
// replay would call it again and get a different answer.
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
