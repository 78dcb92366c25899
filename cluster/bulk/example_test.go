package bulk_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/replay"
)

// Cancel the orders that have been waiting for a payment.
func Example() {
	ctx := context.Background()
	paid := replay.Event[bool]("paid")
	order := replay.Orchestration[int, bool]("order")
	node, err := cluster.Start(ctx, cluster.Config{InMemory: true, Definitions: []replay.Definition{
		order.Bind(func(ctx *replay.Context, _ int) (bool, error) { return paid.Wait(ctx) }),
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	if err := cancelUnpaid(ctx, node.Client(), order); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 3 would be visited
	// completed: 3 done, 0 refused
}

func cancelUnpaid(ctx context.Context, client *cluster.Client, order replay.OrchestrationHandle[int, bool]) error {
	for i := range 3 {
		if _, err := cluster.StartRun(ctx, client, order, fmt.Sprint("order-", i), i); err != nil {
			return err
		}
	}
	unpaid, err := filter.Parse("name=order waiting=event:paid", time.Now())
	if err != nil {
		return err
	}
	job := bulk.Job{Filter: unpaid, Action: bulk.Cancel, Reason: "not paid"}
	preview, err := bulk.DryRun(ctx, client, job)
	if err != nil {
		return err
	}
	fmt.Println(preview.Count, "would be visited")
	id, err := bulk.Start(ctx, client, job)
	if err != nil {
		return err
	}
	if _, err := client.Wait(ctx, id); err != nil {
		return err
	}
	progress, err := bulk.Get(ctx, client, id)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d done, %d refused\n", progress.State, progress.Done, progress.Refused)
	return nil
}
