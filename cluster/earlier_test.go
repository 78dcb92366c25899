package cluster

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

// beforeGroups is the directory of a node of the build before there were several groups:
// old-0 to old-4 have doubled their number, "waits" waits for a word.
const beforeGroups = "testdata/before-groups"

func TestADirectoryFromBeforeThereWereGroupsGoesOn(t *testing.T) {
	noGoroutinesLeft(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(beforeGroups)); err != nil {
		t.Fatal(err)
	}
	waiting := replay.Orchestration[int, string]("waiting")
	config := Config{Dir: dir, Logger: quiet(), Definitions: append(definitions(),
		waiting.Bind(func(ctx *replay.Context, _ int) (string, error) { return word.Wait(ctx) }))}
	ctx := testContext(t)

	config.Groups = groupsOfTests
	var other *GroupsError
	if _, err := Start(ctx, config); !errors.As(err, &other) || other.Have != 1 || other.Want != groupsOfTests {
		t.Fatalf("with %d groups: %v", groupsOfTests, err)
	}

	config.Groups = 1
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

// expectOutput waits for the end of an instance and looks at what it came to.
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
