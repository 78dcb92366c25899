package cluster

import "testing"

// A leader finds the instances that wait for code that it lacks, with an index and without one.
func TestRecordMissingCode_WithAndWithoutIndex(t *testing.T) {
	for name, config := range map[string]Config{"without an index": {InMemory: true}, "with an index": {Dir: t.TempDir()}} {
		config.Definitions = codeWithVersions("1", "2")
		node, without := startNode(t, config), startNode(t, Config{InMemory: true, Definitions: codeWithVersions("1")})
		ctx := testContext(t)
		if _, err := StartRun(ctx, node.Client(), versionedOrchestration, "waits", "event"); err != nil {
			t.Fatal(err)
		}
		// The start is answered before that; an instance whose history grows is left out.
		eventually(t, "it waits", func() bool { return len(historyEventTypes(t, node, "waits")) == 2 })
		pa := node.partitions[0]
		if indexed := pa.journal.IsIndexed(); indexed == config.InMemory {
			t.Errorf("%s: indexed %v", name, indexed)
		}
		if err := recordMissingCode(ctx, &partition{journal: pa.journal, node: without}, pa.journal.Epoch()); err != nil {
			t.Fatal(err)
		}
		status, err := node.Client().Get(ctx, "waits")
		if err != nil || status.State != WaitingForCode || status.Version != "2" {
			t.Errorf("%s: state %v of version %q, %v", name, status.State, status.Version, err)
		}
	}
}
