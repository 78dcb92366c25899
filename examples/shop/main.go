// Command shop sells items from a durable warehouse, charges cards and sends mails, with injected
// services.
//
//	go run ./examples/shop            # in memory
//	go run ./examples/shop -dir data  # continues after a kill
//
// # When to use it
//
// In every larger application: activities need database pools, clients and configuration, tests
// need others than production, and shared state, such as a stock, needs an owner.
//
// # What to look at
//
//   - Handles are package variables. Bodies are bound where the services are known: main builds a
//     Shop, whose fields are the services and whose methods are the activities.
//   - Orchestrations learn everything from input, messages and activities. A field that changes, or
//     differs between nodes, is not in the history.
//   - The warehouse is an instance: sales send it events, clients updates. Its stock is a key-value
//     map that everybody can read. There is no database and no lock.
//   - Tests give the Shop other services, or stub its activities.
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
	"time"

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
		Charge: func(_ context.Context, key, customer string, amount int) (string, error) {
			fmt.Fprintf(out, "%s pays %d\n", customer, amount)
			return "payment of " + key, nil
		},
		SendMail: func(_ context.Context, to, text string) error {
			_, err := fmt.Fprintf(out, "to %s: %s\n", to, text)
			return err
		},
	}
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: shop.Definitions()})
	if err != nil {
		return err
	}
	defer node.Close()
	client := node.Client()
	// The first delivery starts the warehouse. The request ID makes the second run deliver nothing.
	if _, _, err := cluster.UpdateOrStart(ctx, client, WarehouseID, Warehouse, false, Deliver, Goods{Item: "book", Pieces: 2}, cluster.RequestID("first delivery")); err != nil {
		return err
	}
	for i, customer := range []string{"ada", "bob", "cleo"} {
		id := fmt.Sprintf("order-%d", i+1)
		payment, err := cluster.Call(ctx, client, Sell, id, Order{customer, "book", 20, time.Second}, cluster.Attach())
		if err != nil {
			fmt.Fprintln(out, err)
			continue
		}
		fmt.Fprintf(out, "%s is paid under %s\n", id, payment)
	}
	sold, err := client.Count(ctx, cluster.Filter{Attributes: map[string]string{Stage.Name(): "sold"}})
	if err != nil {
		return err
	}
	stock, err := cluster.ReadKV(ctx, client, WarehouseID, Stock)
	fmt.Fprintf(out, "%d sold, stock %v\n", sold, stock)
	return err
}
