package operate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/keytest"
)

func TestDrain_MovesAllPartitionsAndLosesNoCall(t *testing.T) {
	const partitions = 3
	s := new(service)
	c := clustertest.New(t, 3, clustertest.Definitions(s.definitions()...), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.Partitions = partitions
	}))
	client := c.Client(1)
	// On a busy machine n0 may lose an election before, and then has less to transfer.
	c.Eventually("n0 leads all, and a drain moves some to n1 and some to n2", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), client, "", "n0"); err != nil {
			return false
		}
		plan, err := operate.PlanDrain(t.Context(), client, "n0")
		if err != nil || len(plan) < partitions || !movesTo(plan, "n1") || !movesTo(plan, "n2") || movesTo(plan, "n0") {
			return false
		}
		moved := drainDuringCalls(t, client)
		if movesTo(moved, "n0") {
			t.Errorf("moved %v", moved)
		}
		return len(moved) == partitions
	})
}

func movesTo(transfers []operate.Transfer, node string) bool {
	return slices.ContainsFunc(transfers, func(t operate.Transfer) bool { return t.To == node })
}

// drainDuringCalls drains n0 during 60 calls, none of which may fail.
func drainDuringCalls(t *testing.T, client *cluster.Client) []operate.Transfer {
	t.Helper()
	var calls sync.WaitGroup
	for i := range 60 {
		calls.Go(func() {
			id := fmt.Sprintf("i%d-%d", i, time.Now().UnixNano())
			if got, err := cluster.Call(t.Context(), client, program, id, "counted"); err != nil || got != "counted" {
				t.Errorf("call %s: %q, %v", id, got, err)
			}
		})
	}
	moved, err := operate.Drain(t.Context(), client, "n0")
	calls.Wait()
	if err != nil && !errors.Is(err, operate.ErrTransferFailed) {
		t.Errorf("moved %v: %v", moved, err)
	}
	return moved
}

func TestDrain_NodeThatLeadsNothing(t *testing.T) {
	c := newCluster(t, new(service))
	client := c.Client(0)
	// On a busy machine n2 may win an election between the two.
	c.Eventually("nothing is moved", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), client, "", "n1"); err != nil {
			return false
		}
		moved, err := operate.Drain(t.Context(), client, "n2")
		return len(moved) == 0 && err == nil
	})
}

func TestDrain_Rejections(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(new(service).definitions()...))
	_, err := operate.Drain(t.Context(), c.Client(0), "x")
	expect(t, "not a member", err, cluster.ErrNotMember)
	_, err = operate.Drain(t.Context(), c.Client(0), "n0")
	expect(t, "no other node", err, cluster.ErrLastVoter)
}

func TestDrain_ChoosesNoDeadNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, new(service))
	c.Kill(2)
	// On a busy machine n0 may lose an election before, and then has less to transfer.
	c.Eventually("n0 has moved all partitions to n1", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), c.Client(0), "", "n0"); err != nil {
			return false
		}
		plan, err := operate.PlanDrain(t.Context(), c.Client(0), "n0")
		if err != nil || len(plan) != testPartitions || plan[0].To != "n1" || plan[1].To != "n1" {
			return false // n2 is not known to be unreachable, or n1 has not caught up
		}
		moved, err := operate.Drain(t.Context(), c.Client(0), "n0")
		return err == nil && slices.Equal(moved, plan)
	})
}

// The plan may be older than the death of a node that it names.
func TestDrain_ReportsWhatWasMovedBeforeTargetDied(t *testing.T) {
	t.Parallel()
	c := newCluster(t, new(service))
	client := c.Client(0)
	leadAll(t, c, "n0")
	internals, err := client.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	c.Kill(2)
	plan := []operate.Transfer{{Partition: 0, To: "n1"}, {Partition: 1, To: "n2"}}
	// On a busy machine n0 may lose an election before, and then has less to transfer.
	c.Eventually("the second of two transfers from n0 fails", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), client, "", "n0"); err != nil {
			return false
		}
		moved, err := operate.TransferAll(t.Context(), internals, "n0", plan)
		return errors.Is(err, operate.ErrTransferFailed) && strings.Contains(err.Error(), "partition 1 to n2") && slices.Equal(moved, plan[:1])
	})
	c.Eventually("a second drain moves the rest", func() bool {
		moved, err := operate.Drain(t.Context(), client, "n0")
		return err == nil && slices.Equal(moved, []operate.Transfer{{Partition: 1, To: "n1"}})
	})
}

// keys are a source that never changes.
type keys struct{ always *cluster.Keys }

func (k keys) Keys() (*cluster.Keys, error) { return k.always, nil }

// transferRights permits a client a number of transfers, no roles, no end of an upgrade, and
// everything else.
type transferRights struct{ left, asked atomic.Int64 }

func (r *transferRights) authorize(_ context.Context, caller cluster.Principal, action cluster.Action, _ string) error {
	switch {
	case caller.Kind == cluster.PrincipalClient && action == operate.ActionSetRole:
		return errors.New("no role may be set")
	case caller.Kind == cluster.PrincipalClient && action == operate.ActionFinalize:
		return errors.New("no upgrade may be ended")
	case caller.Kind != cluster.PrincipalClient || action != operate.ActionTransfer:
		return nil
	}
	r.asked.Add(1)
	if r.left.Add(-1) < 0 {
		return errors.New("no transfer is left")
	}
	return nil
}

// newClusterWithRights makes a cluster with certificates and a client of it.
func newClusterWithRights(t *testing.T, rights *transferRights) (*clustertest.Cluster, *cluster.Client) {
	t.Helper()
	authority := keytest.NewAuthority(t)
	keysOf := func(certificate *tls.Certificate) keys {
		return keys{&cluster.Keys{Certificate: certificate, Roots: authority.Roots()}}
	}
	c := clustertest.New(t, 3, clustertest.Definitions(new(service).definitions()...), clustertest.Configure(func(i int, config *cluster.Config) {
		config.Partitions, config.Authorize = testPartitions, rights.authorize
		config.TLS = keysOf(authority.Node(fmt.Sprint("n", i)))
	}))
	client, err := cluster.Dial(t.Context(), cluster.DialConfig{Addresses: c.Addresses(), TLS: keysOf(authority.Client("ops"))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, client
}

func TestDrain_AuthorizesEachTransfer(t *testing.T) {
	rights := new(transferRights)
	c, client := newClusterWithRights(t, rights)
	// A transfer that is repeated after an election asks again, and n0 may lose an election.
	c.Eventually("a drain is asked about each of two transfers", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), c.Client(0), "", "n0"); err != nil {
			return false
		}
		if plan, err := operate.PlanDrain(t.Context(), client, "n0"); err != nil || len(plan) != testPartitions {
			return false // the others have not caught up
		}
		rights.left.Store(1)
		rights.asked.Store(0)
		moved, err := operate.Drain(t.Context(), client, "n0")
		return errors.Is(err, cluster.ErrNotAuthorized) && len(moved) == 1 && moved[0].Partition == 0 && rights.asked.Load() == 2
	})
}

func TestDrain_SaysWhyNoNodeCanTakeOver(t *testing.T) {
	c := newCluster(t, new(service))
	leadAll(t, c, "n0")
	members, err := c.Client(0).Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range members {
		switch members[i].NodeID {
		case "n1":
			members[i].Liveness = cluster.MemberUnreachable
		case "n2":
			members[i].Liveness, members[i].BehindKnown, members[i].Behind = cluster.MemberAlive, true, operate.DrainBehindMax+1
		}
	}
	_, err = operate.PlanDrainOf(members, "n0")
	var none *operate.NoSuccessorError
	if !errors.As(err, &none) || none.Unfit["n1"] != "is unreachable" || none.Unfit["n2"] != "is 1001 entries behind" {
		t.Errorf("error %v", err)
	}
}

// During an election the leader does not know the state of the others.
func TestDrain_WaitsWhileMembersAreUnknown(t *testing.T) {
	member := func(id string, liveness cluster.Liveness) cluster.Member {
		return cluster.Member{NodeID: id, Voter: true, Leader: id == "n0", Liveness: liveness, BehindKnown: liveness == cluster.MemberAlive}
	}
	planAfter := func(d time.Duration, before, after cluster.Liveness) func() ([]operate.Transfer, error) {
		start := time.Now()
		return func() ([]operate.Transfer, error) {
			now := before
			if time.Since(start) >= d {
				now = after
			}
			return operate.PlanDrainOf([]cluster.Member{member("n0", cluster.MemberAlive), member("n1", now)}, "n0")
		}
	}
	for _, test := range []struct {
		name          string
		before, after cluster.Liveness
		fails         bool
		at            time.Duration // when the wait ends
	}{
		{"known after 3 s", cluster.MemberUnknown, cluster.MemberAlive, false, 3 * time.Second},
		{"dead after 3 s", cluster.MemberUnknown, cluster.MemberUnreachable, true, 3 * time.Second},
		{"dead at once", cluster.MemberUnreachable, cluster.MemberAlive, true, 0},
		{"always unknown", cluster.MemberUnknown, cluster.MemberUnknown, true, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				plan, err := operate.AwaitPlan(t.Context(), planAfter(3*time.Second, test.before, test.after))
				if waited := time.Since(start).Truncate(time.Second); waited != test.at {
					t.Errorf("waited %v; want %v", waited, test.at)
				}
				if (err != nil) != test.fails || test.fails == movesTo(plan, "n1") {
					t.Errorf("plan %v, error %v", plan, err)
				}
			})
		})
	}
	t.Run("until its context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := operate.AwaitPlan(ctx, planAfter(time.Minute, cluster.MemberUnknown, cluster.MemberAlive))
			var none *operate.NoSuccessorError
			if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &none) {
				t.Errorf("error %v", err)
			}
		})
	})
}
