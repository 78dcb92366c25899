package journal

import (
	"slices"
	"strings"
	"testing"
)

// shortTests are the tests of several nodes that run with -short.
var shortTests = []string{
	"TestFollower_FarBehindGetsSnapshot",
	"TestNextLeader_RejectsOldEpoch",
	"TestReplication_ThreeNodesHoldSameState",
	"TestTransferLeadership",
}

// skipIfShort skips a test of several nodes with -short, unless it is one of shortTests.
func skipIfShort(t testing.TB) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if testing.Short() && !slices.Contains(shortTests, name) {
		t.Skip("slow: it starts several nodes")
	}
}
