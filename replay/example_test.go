package replay_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Handles are declared once: stable names with types.
var (
	Greet = replay.Activity[string, string]("greet")
	Hello = replay.Orchestration[string, string]("hello")
)

// greet is an ordinary function: it may do I/O.
func greet(ctx context.Context, name string) (string, error) {
	return "Hello, " + name + "!", nil
}

// helloWorld is an orchestration: its calls are recorded.
func helloWorld(ctx *replay.Context, name string) (string, error) {
	return Greet.Call(ctx, name)
}

// Bodies are bound where a node is started; package cluster takes the definitions.
func Example() {
	registry, err := engine.NewRegistry(Greet.Bind(greet), Hello.Bind(helloWorld))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(registry.HasOrchestration("hello", ""), registry.HasActivity("greet"))
	// Output: true true
}

// A human decision with a deadline. An answer after the deadline goes to the next wait.
func ExampleEventHandle_WaitFor() {
	approved := replay.Event[bool]("approved")
	remind := replay.Activity[string, bool]("remind")
	approval := replay.Orchestration[string, string]("approval")

	definition := approval.Bind(func(ctx *replay.Context, request string) (string, error) {
		yes, err := approved.WaitFor(ctx, 24*time.Hour)
		if errors.Is(err, replay.ErrTimeout) {
			if _, err := remind.Call(ctx, request); err != nil {
				return "", err
			}
			yes, err = approved.Wait(ctx)
		}
		switch {
		case err != nil:
			return "", err
		case yes:
			return "approved", nil
		}
		return "rejected", nil
	})
	_, err := engine.NewRegistry(definition)
	fmt.Println(err)
	// Output: <nil>
}

// Fan-out and fan-in: all activities run concurrently, on any nodes.
func ExampleAll() {
	count := replay.Activity[string, int]("count")
	total := replay.Orchestration[[]string, int]("total")

	definition := total.Bind(func(ctx *replay.Context, files []string) (int, error) {
		var counts []*replay.Future[int]
		for _, file := range files {
			counts = append(counts, count.Start(ctx, file))
		}
		results, err := replay.All(ctx, counts...)
		sum := 0
		for _, n := range results {
			sum += n
		}
		return sum, err
	})
	_, err := engine.NewRegistry(definition)
	fmt.Println(err)
	// Output: <nil>
}
