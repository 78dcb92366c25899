package operate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// awaitMember waits until a member is as wanted.
func awaitMember(t *testing.T, c *clustertest.Cluster, what, id string, holds func(cluster.Member) bool) {
	t.Helper()
	c.Eventually(id+" "+what, func() bool {
		members, err := c.Client(0).Members(t.Context())
		return err == nil && slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == id && holds(m) })
	})
}

// A leader that is set to standby hands over what it leads and loses its votes. It still takes
// calls, and gets its votes back when the cluster decides again.
func TestSetRole_OfLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, new(service))
	client := c.Client(0)
	leader := leaderOf(t, client)
	if err := operate.SetRole(t.Context(), client, leader, operate.RoleStandby, "slow disk"); err != nil {
		t.Fatal(err)
	}
	awaitMember(t, c, "is a standby and leads nothing", leader, func(m cluster.Member) bool {
		return !m.Voter && m.Role == operate.RoleStandby && m.PinnedRole == operate.RoleStandby && !m.Leader && len(m.LeadsPartitions) == 0
	})
	if _, err := operate.Drain(t.Context(), client, leader); err != nil {
		t.Errorf("drain of a standby: %v", err)
	}
	for _, err := range []error{
		operate.SetRole(t.Context(), client, "n9", operate.RoleVoter, ""),
		operate.SetRole(t.Context(), client, leader, "chief", ""),
	} {
		if !errors.Is(err, cluster.ErrNotMember) && !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%v", err)
		}
	}
	if got, err := cluster.Call(t.Context(), c.Client(int(leader[1]-'0')), program, "through-standby", "counted"); err != nil || got != "counted" {
		t.Errorf("a call through the standby: %q, %v", got, err)
	}
	if err := operate.SetRole(t.Context(), client, leader, operate.RoleAuto, ""); err != nil {
		t.Fatal(err)
	}
	awaitMember(t, c, "is a voter", leader, func(m cluster.Member) bool {
		return m.Voter && m.Role == operate.RoleVoter && m.PinnedRole == ""
	})
}

// The last node that may vote keeps its vote.
func TestSetRole_KeepsLastVoter(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.InMemory(), clustertest.Definitions(new(service).definitions()...))
	client := c.Client(0)
	for _, id := range []string{"n0", "n1"} {
		if err := operate.SetRole(t.Context(), client, id, operate.RoleStandby, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := operate.SetRole(t.Context(), client, "n2", operate.RoleStandby, ""); !errors.Is(err, cluster.ErrLastVoter) {
		t.Errorf("%v", err)
	}
	awaitMember(t, c, "leads with the only vote", "n2", func(m cluster.Member) bool { return m.Leader && m.Voter })
}

// A remote client needs the right to set roles.
func TestSetRole_NeedsRight(t *testing.T) {
	c, client := newClusterWithRights(t, new(transferRights))
	err := operate.SetRole(t.Context(), client, "n0", operate.RoleStandby, "")
	if !errors.Is(err, cluster.ErrNotAuthorized) {
		t.Errorf("%v", err)
	}
	members, err := c.Client(0).Members(context.WithoutCancel(t.Context()))
	if err != nil || slices.ContainsFunc(members, func(m cluster.Member) bool { return m.PinnedRole != "" }) {
		t.Errorf("%+v, %v", members, err)
	}
}
