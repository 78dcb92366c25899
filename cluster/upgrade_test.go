package cluster

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

// singlePartitionDir is the directory of a node of the last version without several partitions:
// old-0 to old-4 have doubled their number, "waits" waits for an event.
const singlePartitionDir = "testdata/before-groups"

func TestUpgrade_SinglePartitionDirectory(t *testing.T) {
	checkGoroutineLeaks(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(singlePartitionDir)); err != nil {
		t.Fatal(err)
	}
	waiting := replay.Orchestration[int, string]("waiting")
	config := Config{Dir: dir, Logger: testLogger(), Definitions: append(definitions(),
		waiting.Bind(func(ctx *replay.Context, _ int) (string, error) { return word.Wait(ctx) }))}
	ctx := testContext(t)

	config.Partitions = testPartitions
	var other *journal.PartitionCountError
	if _, err := Start(ctx, config); !errors.As(err, &other) || !errors.Is(err, ErrPartitionCount) || other.Have != 1 || other.Want != testPartitions {
		t.Fatalf("with %d partitions: %v", testPartitions, err)
	}

	config.Partitions = 1
	for start := range 2 {
		node := startNodeIn(ctx, t, config)
		client := node.Client()
		for i := range 5 {
			expectOutput(t, client, fmt.Sprint("old-", i), 2*i)
		}
		if got, err := Call(ctx, client, doubled, fmt.Sprint("new-", start), 21); err != nil || got != 42 {
			t.Errorf("a new one: %d, %v", got, err)
		}
		if start == 0 {
			if err := Send(ctx, client, "waits", word, "on"); err != nil {
				t.Error(err)
			}
		}
		expectOutput(t, client, "waits", "on")
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// expectOutput waits for the end of an instance and checks its output.
func expectOutput[T comparable](t *testing.T, client *Client, id string, want T) {
	t.Helper()
	var got T
	status, err := client.Wait(testContext(t), id)
	if err == nil {
		err = status.Output(&got)
	}
	if err != nil || got != want {
		t.Errorf("%s came to %v, %v", id, got, err)
	}
}
