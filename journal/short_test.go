package journal

import (
	"testing"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
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
	shorttest.SkipUnless(t, "slow: it starts several nodes", shortTests...)
}
