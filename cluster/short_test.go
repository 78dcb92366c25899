package cluster

import (
	"testing"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
)

// shortTests are the tests of several nodes that run with -short. Each of them takes seconds.
var shortTests = []string{
	"TestAuthorize_RejectsNonMemberNode",
	"TestCluster_AnyNodeReachesLeader",
	"TestCluster_FailsOverWhenLeaderStops",
	"TestCrossPartition_Children",
	"TestRemoteClient_MatchesNodeClient",
	"TestStop_LeaderHandoverIsInvisible",
}

// skipIfShort skips a test of several nodes with -short, unless it is one of shortTests.
func skipIfShort(t testing.TB) {
	t.Helper()
	shorttest.SkipUnless(t, "slow: it starts several nodes", shortTests...)
}
