package operate_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

func TestDrain_MovesAllPartitionsAndLosesNoCall(t *testing.T) {
	const partitions = 3
	s := new(service)
	c := clustertest.New(t, 3, clustertest.Definitions(s.definitions()...), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.Partitions = partitions
	}))
	client := c.Client(1)
	if _, err := operate.TransferLeadership(t.Context(), client, "", "n0"); err != nil {
		t.Fatal(err)
	}
	c.Eventually("n0 leads all, the others have caught up", func() bool {
		plan, err := operate.PlanDrain(t.Context(), client, "n0")
		return err == nil && len(plan) == partitions
	})
	var calls sync.WaitGroup
	for i := range 60 {
		calls.Go(func() {
			if got, err := cluster.Call(t.Context(), client, program, fmt.Sprint("i", i), "counted"); err != nil || got != "counted" {
				t.Errorf("call %d: %q, %v", i, got, err)
			}
		})
	}
	moved, err := operate.Drain(t.Context(), client, "n0")
	calls.Wait()
	if err != nil || len(moved) != partitions {
		t.Fatalf("moved %v: %v", moved, err)
	}
	counts := make(map[string]int)
	for _, m := range moved {
		counts[m.To]++
	}
	if counts["n0"] != 0 || counts["n1"] == 0 || counts["n2"] == 0 {
		t.Errorf("moved %v, want some to n1 and some to n2", moved)
	}
}

func TestDrain_NodeThatLeadsNothing(t *testing.T) {
	c := newCluster(t, new(service))
	client := c.Client(0)
	if _, err := operate.TransferLeadership(t.Context(), client, "", "n1"); err != nil {
		t.Fatal(err)
	}
	if moved, err := operate.Drain(t.Context(), client, "n2"); len(moved) != 0 || err != nil {
		t.Errorf("moved %v: %v", moved, err)
	}
}

func TestDrain_Rejections(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(new(service).definitions()...))
	_, err := operate.Drain(t.Context(), c.Client(0), "x")
	expect(t, "not a member", err, cluster.ErrNotMember)
	_, err = operate.Drain(t.Context(), c.Client(0), "n0")
	expect(t, "no other node", err, cluster.ErrLastVoter)
}

func TestDrain_ChoosesNoDeadNode(t *testing.T) {
	c := newCluster(t, new(service))
	if _, err := operate.TransferLeadership(t.Context(), c.Client(0), "", "n0"); err != nil {
		t.Fatal(err)
	}
	c.Kill(2)
	c.Eventually("n2 is unreachable, n1 has caught up", func() bool {
		plan, err := operate.PlanDrain(t.Context(), c.Client(0), "n0")
		return err == nil && len(plan) == testPartitions && plan[0].To == "n1" && plan[1].To == "n1"
	})
	moved, err := operate.Drain(t.Context(), c.Client(0), "n0")
	if err != nil || len(moved) != testPartitions {
		t.Errorf("moved %v: %v", moved, err)
	}
}

func TestDrain_SaysWhyNoNodeCanTakeOver(t *testing.T) {
	c := newCluster(t, new(service))
	if _, err := operate.TransferLeadership(t.Context(), c.Client(0), "", "n0"); err != nil {
		t.Fatal(err)
	}
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
	if !errors.As(err, &none) || none.Unfit["n1"] != "is unreachable" || none.Unfit["n2"] != "lags by 1001 entries" {
		t.Errorf("error %v", err)
	}
}
