package schedule_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

func Example() {
	ctx := context.Background()
	greet := replay.Orchestration[string, string]("greet")
	node, err := cluster.Start(ctx, cluster.Config{InMemory: true, Definitions: []replay.Definition{
		greet.Bind(func(_ *replay.Context, name string) (string, error) { return "hello " + name, nil }),
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close()
	client := node.Client()
	err = schedule.Create(ctx, client, "greetings", schedule.Spec{
		Cron:     []string{"0 9 * * MON-FRI"},
		TimeZone: "Europe/Berlin",
	}, greet, "Ada", cluster.Attach())
	if err != nil {
		fmt.Println(err)
		return
	}
	start, err := schedule.Trigger(ctx, client, "greetings", schedule.Allow)
	fmt.Println(start.Cause, start.Outcome, err)
	// Output: trigger running <nil>
}

func ExampleTimes() {
	spec := schedule.Spec{Cron: []string{"30 2 * * *"}, TimeZone: "Europe/Berlin"}
	berlin, err := time.LoadLocation(spec.TimeZone)
	if err != nil {
		fmt.Println(err)
		return
	}
	// The clock is set forward on March 29.
	due, err := schedule.Times(spec, time.Date(2026, 3, 28, 0, 0, 0, 0, berlin), 3)
	for _, t := range due {
		fmt.Println(t.In(berlin))
	}
	fmt.Println(err)
	// Output:
	// 2026-03-28 02:30:00 +0100 CET
	// 2026-03-29 03:00:00 +0200 CEST
	// 2026-03-30 02:30:00 +0200 CEST
	// <nil>
}
