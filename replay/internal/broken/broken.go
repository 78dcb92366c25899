package broken

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Work is the activity that all cases call.
var Work = replay.Activity[string, string]("work")

// A Case is an orchestration with one mistake.
type Case struct {
	Name string
	Body func(ctx *replay.Context, input string) (string, error)
	// OldBody is the code with which its instances were started, nil if it is Body.
	OldBody func(ctx *replay.Context, input string) (string, error)
}

// Handle returns the handle of the orchestration, named after the case.
func (c Case) Handle() replay.OrchestrationHandle[string, string] {
	return replay.Orchestration[string, string](c.Name)
}

// Cases returns the twelve cases.
func Cases() []Case {
	return []Case{
		{Name: "clock", Body: clock},
		{Name: "random", Body: random},
		{Name: "map order", Body: mapOrder},
		{Name: "goroutine", Body: goroutine},
		{Name: "channel", Body: channel},
		{Name: "global counter", Body: globalCounter},
		{Name: "unawaited future", Body: unawaitedFuture},
		{Name: "durable defer", Body: durableDefer},
		{Name: "closure", Body: closure()},
		{Name: "file", Body: file},
		{Name: "changed order", Body: changedOrder, OldBody: unchanged},
		{Name: "changed input", Body: changedInput, OldBody: unchanged},
	}
}

// Definitions binds all cases.
func Definitions() []replay.Definition {
	var definitions []replay.Definition
	for _, c := range Cases() {
		definitions = append(definitions, c.Handle().Bind(c.Body))
	}
	return definitions
}

// clock reads the machine's clock.
func clock(ctx *replay.Context, input string) (string, error) {
	return Work.Call(ctx, input+" at "+time.Now().Format(time.RFC3339))
}

// random uses a random number.
func random(ctx *replay.Context, input string) (string, error) {
	return Work.Call(ctx, input+strconv.Itoa(rand.IntN(1_000_000)))
}

// mapOrder schedules in the iteration order of a map, which is random.
func mapOrder(ctx *replay.Context, input string) (string, error) {
	var futures []*replay.Future[string]
	for part := range map[string]bool{"a": true, "b": true, "c": true, "d": true, "e": true} {
		futures = append(futures, Work.Start(ctx, input+part))
	}
	results, err := replay.All(ctx, futures...)
	return strings.Join(results, " "), err
}

// goroutine starts a goroutine that remains when the instance is evicted.
func goroutine(ctx *replay.Context, input string) (string, error) {
	done := make(chan struct{})
	go func() { <-done }()
	output, err := Work.Call(ctx, input)
	close(done)
	return output, err
}

// channel waits for another coroutine on a Go channel, which the scheduler cannot see.
func channel(ctx *replay.Context, input string) (string, error) {
	results := make(chan string)
	replay.Go(ctx, func(ctx *replay.Context) (struct{}, error) {
		output, err := Work.Call(ctx, input)
		results <- output
		return struct{}{}, err
	})
	return <-results, nil
}

var runs int

// globalCounter increments a global variable, also on every replay.
func globalCounter(ctx *replay.Context, input string) (string, error) {
	runs++
	return Work.Call(ctx, input+strconv.Itoa(runs))
}

// unawaitedFuture never awaits its activity, which is canceled at once.
func unawaitedFuture(ctx *replay.Context, input string) (string, error) {
	Work.Start(ctx, input)
	return input, nil
}

// durableDefer cleans up in a deferred function. It also runs on eviction, where its durable calls
// do nothing.
func durableDefer(ctx *replay.Context, input string) (string, error) {
	defer func() { _, _ = Work.Call(ctx, "clean up") }()
	return Work.Call(ctx, input)
}

// closure returns an orchestration that changes a captured variable.
func closure() func(ctx *replay.Context, input string) (string, error) {
	var seen []string
	return func(ctx *replay.Context, input string) (string, error) {
		seen = append(seen, input)
		return Work.Call(ctx, strings.Join(seen, ","))
	}
}

// file reads a file, which may have changed on replay.
func file(ctx *replay.Context, input string) (string, error) {
	content, err := os.ReadFile(input)
	if err != nil {
		return "", err
	}
	return Work.Call(ctx, string(content))
}

// unchanged is the former code of changedOrder and changedInput.
func unchanged(ctx *replay.Context, input string) (string, error) {
	first, err := Work.Call(ctx, input+" first")
	if err != nil {
		return "", err
	}
	second, err := Work.Call(ctx, input+" second")
	return first + second, err
}

// changedOrder makes the same calls in another order.
func changedOrder(ctx *replay.Context, input string) (string, error) {
	second, err := Work.Call(ctx, input+" second")
	if err != nil {
		return "", err
	}
	first, err := Work.Call(ctx, input+" first")
	return first + second, err
}

// changedInput makes the second call with another input.
func changedInput(ctx *replay.Context, input string) (string, error) {
	first, err := Work.Call(ctx, input+" first")
	if err != nil {
		return "", err
	}
	second, err := Work.Call(ctx, first+" second")
	return first + second, err
}
