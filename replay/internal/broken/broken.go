package broken

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Work is the activity that all of them call.
var Work = replay.Activity[string, string]("work")

// A Case is an orchestration that is broken in one way.
type Case struct {
	Name string
	Body func(ctx *replay.Context, input string) (string, error)
	// What the code was when its instances were started; nil if it was the same.
	Before func(ctx *replay.Context, input string) (string, error)
}

// Handle returns the handle of the orchestration, whose name is that of the
// case.
func (c Case) Handle() replay.OrchestrationHandle[string, string] {
	return replay.Orchestration[string, string](c.Name)
}

// Cases returns the twelve of them.
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
		{Name: "changed order", Body: changedOrder, Before: unchanged},
		{Name: "changed input", Body: changedInput, Before: unchanged},
	}
}

// Definitions binds all of them.
func Definitions() []replay.Definition {
	var definitions []replay.Definition
	for _, c := range Cases() {
		definitions = append(definitions, c.Handle().Bind(c.Body))
	}
	return definitions
}

// clock asks the machine for the time.
func clock(ctx *replay.Context, input string) (string, error) {
	return Work.Call(ctx, input+" at "+time.Now().Format(time.RFC3339))
}

// random lets chance decide.
func random(ctx *replay.Context, input string) (string, error) {
	return Work.Call(ctx, input+strconv.Itoa(rand.IntN(1_000_000)))
}

// mapOrder schedules in the order of a map, which has none.
func mapOrder(ctx *replay.Context, input string) (string, error) {
	var futures []*replay.Future[string]
	for part := range map[string]bool{"a": true, "b": true, "c": true, "d": true, "e": true} {
		futures = append(futures, Work.Start(ctx, input+part))
	}
	results, err := replay.All(ctx, futures...)
	return strings.Join(results, " "), err
}

// goroutine starts one that is left behind when the instance is dropped from
// memory.
func goroutine(ctx *replay.Context, input string) (string, error) {
	done := make(chan struct{})
	go func() { <-done }()
	output, err := Work.Call(ctx, input)
	close(done)
	return output, err
}

// channel waits for another coroutine where nobody can see it wait.
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

// globalCounter counts in a variable of the process, which sees every replay.
func globalCounter(ctx *replay.Context, input string) (string, error) {
	runs++
	return Work.Call(ctx, input+strconv.Itoa(runs))
}

// unawaitedFuture starts what nobody waits for: it is given up at once.
func unawaitedFuture(ctx *replay.Context, input string) (string, error) {
	Work.Start(ctx, input)
	return input, nil
}

// durableDefer cleans up in a deferred function, which also runs when the
// instance is dropped from memory, and then does nothing.
func durableDefer(ctx *replay.Context, input string) (string, error) {
	defer func() { _, _ = Work.Call(ctx, "clean up") }()
	return Work.Call(ctx, input)
}

// closure returns an orchestration that changes a variable outside of it.
func closure() func(ctx *replay.Context, input string) (string, error) {
	var seen []string
	return func(ctx *replay.Context, input string) (string, error) {
		seen = append(seen, input)
		return Work.Call(ctx, strings.Join(seen, ","))
	}
}

// file reads one, which may be another when it is read again.
func file(ctx *replay.Context, input string) (string, error) {
	content, err := os.ReadFile(input)
	if err != nil {
		return "", err
	}
	return Work.Call(ctx, string(content))
}

// unchanged is what changedOrder and changedInput were.
func unchanged(ctx *replay.Context, input string) (string, error) {
	first, err := Work.Call(ctx, input+" first")
	if err != nil {
		return "", err
	}
	second, err := Work.Call(ctx, input+" second")
	return first + second, err
}

// changedOrder does the same in another order.
func changedOrder(ctx *replay.Context, input string) (string, error) {
	second, err := Work.Call(ctx, input+" second")
	if err != nil {
		return "", err
	}
	first, err := Work.Call(ctx, input+" first")
	return first + second, err
}

// changedInput asks for the second with another input.
func changedInput(ctx *replay.Context, input string) (string, error) {
	first, err := Work.Call(ctx, input+" first")
	if err != nil {
		return "", err
	}
	second, err := Work.Call(ctx, first+" second")
	return first + second, err
}
