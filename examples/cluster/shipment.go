package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// Shipments give the dashboard something to show: activities that fail and are retried, children,
// timers, waits for events, failed runs and a schedule.
var (
	Weigh    = replay.Activity[int, int]("weigh")
	Deliver  = replay.Activity[int, string]("deliver")
	Signed   = replay.Event[string]("signed")
	Shipment = replay.Orchestration[int, string]("shipment")
	Label    = replay.Orchestration[int, string]("label")
	Count    = replay.Orchestration[string, int]("count-shipments")
	Weight   = replay.Attribute[int]("weight")
	delivery = replay.Retry(replay.RetryPolicy{InitialInterval: time.Second, MaxAttempts: 4})
)

var errNotAtHome = replay.NewError("not-at-home", "the recipient is not at home")

func shipmentDefinitions() []replay.Definition {
	return []replay.Definition{
		Weigh.Bind(func(_ context.Context, number int) (int, error) { return 100 + number%900, nil }),
		Deliver.Bind(func(ctx context.Context, number int) (string, error) {
			if attempt := replay.ActivityInfo(ctx).Number; attempt <= number%5 {
				return "", fmt.Errorf("attempt %d: %w", attempt, errNotAtHome)
			}
			return "delivered", nil
		}),
		Shipment.Bind(shipment),
		Label.Bind(func(ctx *replay.Context, number int) (string, error) {
			return fmt.Sprint("depot ", number%3), ctx.Sleep(time.Second)
		}),
		Count.Bind(func(ctx *replay.Context, _ string) (int, error) { return 0, ctx.Sleep(3 * time.Second) }),
	}
}

// shipment weighs a shipment, prints its label in a child, delivers, and waits for a signature.
func shipment(ctx *replay.Context, number int) (string, error) {
	grams, err := Weigh.Call(ctx, number)
	if err != nil {
		return "", err
	}
	if err := Weight.Set(ctx, grams); err != nil {
		return "", err
	}
	label := Label.Start(ctx, number)
	if err := ctx.Sleep(time.Duration(number%4) * time.Second); err != nil {
		return "", err
	}
	if _, err := label.Await(ctx); err != nil {
		return "", err
	}
	result, err := Deliver.Call(ctx, number, delivery)
	if err != nil {
		return "", err
	}
	if number%2 == 0 {
		if result, err = Signed.Wait(ctx); err != nil {
			return "", err
		}
	}
	return result, nil
}

// sendShipments starts a shipment each second, signs some of them, and counts them by a schedule,
// until the context ends.
func sendShipments(ctx context.Context, client *cluster.Client) (wait func()) {
	var sending sync.WaitGroup
	sending.Go(func() {
		spec := schedule.Spec{Every: 10 * time.Second}
		if err := schedule.Create(ctx, client, "every-10-seconds", spec, Count, ""); err != nil && !errors.Is(err, cluster.ErrInstanceExists) {
			return // the dashboard has no schedule to show
		}
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for number := 1; ; number++ {
			_, _ = cluster.StartRun(ctx, client, Shipment, shipmentID(number), number, cluster.Attach(),
				replay.Summary(fmt.Sprintf("Shipment %d, from depot %d", number, number%3)), cluster.Tags(map[string]string{"depot": fmt.Sprint(number % 3)}))
			if number%3 == 0 && number > 10 {
				_ = cluster.Send(ctx, client, shipmentID(number-10), Signed, "signed by a neighbor")
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return sending.Wait
}

func shipmentID(number int) string { return fmt.Sprintf("shipment-%d", number) }
