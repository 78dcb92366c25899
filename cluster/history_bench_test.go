package cluster

import (
	"fmt"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// benchmarkEvents is about the length of the history that the benchmarks read.
const benchmarkEvents = 10_000

// longHistory runs an instance with a long history and returns its ID.
func longHistory(b *testing.B, client *Client) string {
	b.Helper()
	if _, err := Call(b.Context(), client, remembering, "long", benchmarkEvents); err != nil {
		b.Fatal(err)
	}
	return "long"
}

// remembering records n values.
var remembering = replay.Orchestration[int, int]("remembering")

func rememberingBody(ctx *replay.Context, n int) (int, error) {
	for i := range n {
		if _, err := replay.SideEffect(ctx, "value", func() (string, error) { return fmt.Sprint("value ", i), nil }); err != nil {
			return 0, err
		}
		if i%100 == 0 {
			if err := ctx.Sleep(1); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func BenchmarkClient_History(b *testing.B) {
	client := startNode(b, Config{InMemory: true, Definitions: []replay.Definition{remembering.Bind(rememberingBody)}}).Client()
	id := longHistory(b, client)
	b.ReportAllocs()
	for b.Loop() {
		recorded, err := client.History(b.Context(), id)
		if err != nil || len(recorded.Events) < benchmarkEvents {
			b.Fatal(recorded, err)
		}
	}
}

func BenchmarkClient_Watch(b *testing.B) {
	client := startNode(b, Config{InMemory: true, Definitions: []replay.Definition{remembering.Bind(rememberingBody)}}).Client()
	id := longHistory(b, client)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, err := range client.Watch(b.Context(), id, history.Position{}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n < benchmarkEvents {
			b.Fatal(n, "events")
		}
	}
}
