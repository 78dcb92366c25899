package cluster

import (
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/journal"
)

func TestANodeGoesOnWithTheStoreOfItsLog(t *testing.T) {
	for _, store := range []LogStore{LogStoreBolt, LogStoreWAL} {
		t.Run(string(store), func(t *testing.T) {
			config := Config{Dir: t.TempDir(), Groups: testGroups, LogStore: store, Definitions: definitions()}
			ctx := testContext(t)
			node := startNode(t, config)
			run, err := StartRun(ctx, node.Client(), waiter, "w", "got ")
			if err != nil {
				t.Fatal(err)
			}
			if err := node.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			other := config
			other.LogStore = map[LogStore]LogStore{LogStoreBolt: LogStoreWAL, LogStoreWAL: LogStoreBolt}[store]
			var wrong *journal.LogStoreError
			if _, err := Start(ctx, other); !errors.As(err, &wrong) {
				t.Errorf("with the other store: %v, want a LogStoreError", err)
			}
			node = startNode(t, config)
			if err := Send(ctx, node.Client(), run.ID, word, "it"); err != nil {
				t.Fatal(err)
			}
			if status, err := node.Client().Wait(ctx, "w"); err != nil || status.State != Completed {
				t.Errorf("%+v, %v", status, err)
			}
		})
	}
}
