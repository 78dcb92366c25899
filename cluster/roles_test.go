package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// rolePartitions is the number of partitions in these tests.
const rolePartitions = 2

// startWithRoles starts founders n1 and so on, and nodes that join after them. Node i is in
// zones[i]. Voters that are gone are replaced after two seconds. So many nodes on few processors
// miss heartbeats that are due five times a second.
func startWithRoles(t *testing.T, founders, voters int, zones ...string) *testCluster {
	t.Helper()
	change := func(config *Config, zone string) {
		config.Partitions, config.maintenanceInterval, config.Zone = rolePartitions, 50*time.Millisecond, zone
		config.harness.HeartbeatTimeout = time.Second
	}
	i := 0
	f := newTestClusterWith(t, founders, func(config *Config) {
		change(config, zones[i])
		config.Settings = Settings{Voters: voters, ReplaceVoterAfter: 2 * time.Second}
		i++
	})
	for ; i < len(zones); i++ {
		config := f.joiningConfig(fmt.Sprintf("n%d", i+1))
		change(&config, zones[i])
		f.start(config)
	}
	return f
}

// votersOf returns the voters of each partition, according to its leader.
func (c *testCluster) votersOf(partition int) (voters []string) {
	for _, node := range c.all() {
		if g := node.partitions[partition]; g.isLeader() {
			for _, m := range g.journal.Members() {
				if m.Voter {
					voters = append(voters, m.Node)
				}
			}
			return voters
		}
	}
	return nil
}

// awaitRoles waits until these nodes, and no others, vote in every partition.
func (c *testCluster) awaitRoles(voters ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("votes of %v in every partition", voters), func() bool {
		for partition := range rolePartitions {
			if !slices.Equal(c.votersOf(partition), voters) {
				return false
			}
		}
		return true
	})
}

// awaitShown waits until a member is shown with that role and zone.
func (c *testCluster) awaitShown(id, role, pinned, zone string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s is a %s in %q", id, role, zone), func() bool {
		members, err := c.anyNode().Members(testContext(c.t))
		return err == nil && slices.ContainsFunc(members, func(m Member) bool {
			return m.NodeID == id && m.Role == role && m.PinnedRole == pinned && m.Zone == zone
		})
	})
}

// setRole sets the role of a member, as package operate does.
func (c *testCluster) setRole(id string, pin journalpb.MemberRole_Pin) error {
	_, err := c.anyNode().Client().call(testContext(c.t), &clusterpb.Request{Call: &clusterpb.Request_SetRole{
		SetRole: &clusterpb.SetRoleRequest{Node: id, Pin: pin, Reason: "test"},
	}})
	return err
}

// A voter that is gone is replaced by the standby in its zone, in every partition. It is a standby
// when it returns, and takes calls.
func TestRoles_StandbyInSameZoneReplacesVoter(t *testing.T) {
	t.Parallel()
	f := startWithRoles(t, 3, 3, "a", "b", "c", "a", "b", "c")
	f.awaitRoles("n1", "n2", "n3")
	for i, zone := range []string{"a", "b", "c"} {
		f.awaitShown(fmt.Sprintf("n%d", i+1), "voter", "", zone)
		f.awaitShown(fmt.Sprintf("n%d", i+4), "standby", "", zone)
	}
	stop := f.startLoad()
	lost := f.nodes["n2"].config
	f.kill("n2")
	f.awaitRoles("n1", "n3", "n5")
	f.awaitShown("n2", "standby", "", "b")
	f.expectMemberMetrics()

	lost.journalLogger = nil
	back := f.start(lost)
	eventually(t, "the node is ready again", func() bool { return back.Health().Ready() == nil })
	expectDouble(t, back, "through-standby")
	status, err := back.Client().Get(testContext(t), "through-standby", Stale())
	if err != nil || status.State != Completed {
		t.Errorf("stale read on a standby: %+v, %v", status, err)
	}
	f.expectCompleted(stop())
	for partition := range rolePartitions {
		if voters := f.votersOf(partition); voters != nil && !slices.Equal(voters, []string{"n1", "n3", "n5"}) {
			t.Errorf("partition %d has the voters %v", partition, voters)
		}
	}
	for _, node := range f.all() {
		if role := node.Health().Role; node.ID() == "n2" && role != RoleLearner {
			t.Errorf("the node that returned is a %s", role)
		}
	}
}

// expectMemberMetrics checks the metrics of members after one of six was lost and replaced.
func (c *testCluster) expectMemberMetrics() {
	c.t.Helper()
	readers := make(map[string]*sdk.ManualReader)
	for _, node := range c.all() {
		reader := sdk.NewManualReader()
		if err := node.AddMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader))); err != nil {
			c.t.Fatal(err)
		}
		readers[node.ID()] = reader
	}
	want := "1 or more changes; 3 voters wanted, 3 alive, 0 unreachable; standbys: 2 alive, 1 unreachable"
	shown := ""
	c.t.Cleanup(func() {
		if shown != want {
			c.t.Log("the metrics say: ", shown)
		}
	})
	eventually(c.t, "the metrics say: "+want, func() bool {
		changes := 0.0
		for _, reader := range readers {
			changes += sumMetric(collectMetrics(c.t, reader)["tenuto.roles.changes"])
		}
		of := collectMetrics(c.t, readers[c.leader().ID()])
		members := of["tenuto.members"]
		shown = fmt.Sprintf("%v or more changes; %v voters wanted, %v alive, %v unreachable; standbys: %v alive, %v unreachable", min(changes, 1),
			sumMetric(of["tenuto.voters.wanted"]), sumMetric(members, "voter", "alive"), sumMetric(members, "voter", "unreachable"),
			sumMetric(members, "standby", "alive"), sumMetric(members, "standby", "unreachable"))
		return shown == want
	})
}

// expectDouble runs an orchestration through a node.
func expectDouble(t *testing.T, node *Node, id string) {
	t.Helper()
	if got, err := Call(testContext(t), node.Client(), doubled, id, 21); err != nil || got != 42 {
		t.Errorf("%s through %s: %d, %v", id, node.ID(), got, err)
	}
}

// Three voters are killed one after the other. Standbys replace each, and nothing is lost.
func TestRoles_ThreeNodesAreKilledOneAfterTheOther(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: three voters must be gone for the time of a replacement")
	}
	f := startWithRoles(t, 3, 3, "a", "b", "c", "a", "b", "c")
	f.awaitRoles("n1", "n2", "n3")
	for i, zone := range []string{"a", "b", "c"} {
		f.awaitShown(fmt.Sprintf("n%d", i+4), "standby", "", zone)
	}
	stop := f.startLoad()
	for range 3 {
		leader := f.leader().ID()
		f.kill(leader)
		eventually(t, "three live voters in every partition", func() bool {
			for partition := range rolePartitions {
				voters := f.votersOf(partition)
				if len(voters) != 3 || slices.ContainsFunc(voters, func(id string) bool { return f.node(id) == nil }) {
					return false
				}
			}
			return true
		})
	}
	f.expectCompleted(stop())
	expectSameHistories(t, f.all())
}

// node returns a running node, nil if it does not run.
func (c *testCluster) node(id string) *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

func TestRoles_RemovalOfVoterPromotesStandby(t *testing.T) {
	t.Parallel()
	f := startWithRoles(t, 3, 3, "", "", "", "")
	f.awaitShown("n4", "standby", "", "")
	f.remove("n3")
	f.awaitRoles("n1", "n2", "n4")
	f.awaitShown("n4", "voter", "", "")
}

// A role that is set is followed: a leader transfers leadership before it loses its vote.
func TestRoles_AreSetByHand(t *testing.T) {
	t.Parallel()
	f := startWithRoles(t, 3, 3, "", "", "", "")
	f.awaitShown("n4", "standby", "", "")
	leader := f.leader().ID()
	others := slices.DeleteFunc([]string{"n1", "n2", "n3", "n4"}, func(id string) bool { return id == leader })
	if err := f.setRole(leader, journalpb.MemberRole_PIN_STANDBY); err != nil {
		t.Fatal(err)
	}
	f.awaitRoles(others...)
	f.awaitShown(leader, "standby", "standby", "")
	expectDouble(t, f.node(leader), "forwarded")
	if err := f.setRole("n9", journalpb.MemberRole_PIN_VOTER); !errors.Is(err, ErrNotMember) {
		t.Errorf("unknown member: %v", err)
	}
	for _, id := range others[:2] {
		if err := f.setRole(id, journalpb.MemberRole_PIN_VOTER); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.setRole(leader, journalpb.MemberRole_PIN_VOTER); err != nil {
		t.Fatal(err)
	}
	voters := append(slices.Clone(others[:2]), leader)
	slices.Sort(voters)
	f.awaitRoles(voters...)
	err := f.setRole(others[2], journalpb.MemberRole_PIN_VOTER)
	if invalid := new(replay.InvalidError); !errors.As(err, &invalid) || invalid.Field != "role" {
		t.Errorf("a fourth of three voters: %v", err)
	}
}

// Fewer voters are wanted: the others become standbys, in every partition, while calls are made.
func TestRoles_FollowSettings(t *testing.T) {
	t.Parallel()
	f := startWithRoles(t, 5, 5, "a", "a", "a", "b", "c")
	f.awaitRoles("n1", "n2", "n3", "n4", "n5")
	stop := f.startLoad()
	changed, err := f.anyNode().Client().ChangeSettings(testContext(t), func(s *Settings) { s.Voters = 3 })
	if err != nil || changed.Voters != 3 {
		t.Fatalf("%+v, %v", changed, err)
	}
	eventually(t, "three voters, one in each zone", func() bool {
		for partition := range rolePartitions {
			if voters := f.votersOf(partition); len(voters) != 3 || voters[1] != "n4" || voters[2] != "n5" {
				return false
			}
		}
		return true
	})
	f.expectCompleted(stop())
}

// While a member speaks an earlier protocol, every member votes and roles cannot be set.
func TestRoles_NeedProtocol(t *testing.T) {
	f := newTestClusterWith(t, 3, func(config *Config) {
		config.protocol, config.Settings.Voters = journal.RolesProtocol-1, 3
	})
	config := f.joiningConfig("n4")
	config.protocol = journal.RolesProtocol - 1
	f.start(config)
	f.awaitVoters("n1", "n2", "n3", "n4")
	if err := f.setRole("n1", journalpb.MemberRole_PIN_STANDBY); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
}

func TestRoles_Arguments(t *testing.T) {
	node := startNode(t, Config{InMemory: true})
	for field, call := range map[string]func(context.Context) error{
		"Settings.Voters": func(ctx context.Context) error {
			_, err := node.Client().ChangeSettings(ctx, func(s *Settings) { s.Voters = 4 })
			return err
		},
		"Settings.ReplaceVoterAfter": func(ctx context.Context) error {
			_, err := node.Client().ChangeSettings(ctx, func(s *Settings) { s.ReplaceVoterAfter = 25 * time.Hour })
			return err
		},
		"Config.Zone": func(ctx context.Context) error {
			_, err := Start(ctx, Config{InMemory: true, Zone: "a b"})
			return err
		},
		"node ID": func(context.Context) error { return checkSetRole(new(clusterpb.SetRoleRequest)) },
		"role":    func(context.Context) error { return checkSetRole(&clusterpb.SetRoleRequest{Node: "n", Pin: 7}) },
	} {
		err := call(testContext(t))
		if invalid := new(replay.InvalidError); !errors.As(err, &invalid) || !strings.HasSuffix(invalid.Field, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
