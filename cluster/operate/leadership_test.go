package operate_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// leaderOf returns the ID of the node that leads the first partition.
func leaderOf(t *testing.T, client *cluster.Client) string {
	t.Helper()
	members, err := client.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if m.Leader {
			return m.NodeID
		}
	}
	return ""
}

// leadAll makes a node lead all partitions.
func leadAll(t *testing.T, c *clustertest.Cluster, id string) {
	t.Helper()
	c.Eventually(id+" leads all partitions", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), c.Client(0), "", id); err != nil {
			return false
		}
		members, err := c.Client(0).Members(t.Context())
		return err == nil && slices.ContainsFunc(members, func(m cluster.Member) bool {
			return m.NodeID == id && len(m.LeadsPartitions) == testPartitions
		})
	})
}

func TestTransferLeadership_ToNamedNodeWhileCallsAreMade(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.Definitions(new(service).definitions()...))
	client := c.Client(0)
	from := leaderOf(t, client)
	to := map[string]string{"n0": "n1", "n1": "n2", "n2": "n0"}[from]
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			if got, err := cluster.Call(t.Context(), client, program, fmt.Sprint("i", i), "counted"); err != nil || got != "counted" {
				t.Errorf("call: %q, %v", got, err)
			}
		})
	}
	// On a busy machine Raft may give a transfer up, or elect another leader after it.
	c.Eventually(to+" leads", func() bool {
		_, err := operate.TransferLeadership(t.Context(), client, "", to)
		return err == nil && leaderOf(t, client) == to
	})
	calls.Wait()
	c.Eventually("another node leads", func() bool {
		before := leaderOf(t, client)
		moved, err := operate.TransferLeadership(t.Context(), client, "", "")
		return err == nil && moved == 1 && leaderOf(t, client) != before
	})
}

func TestTransferLeadership_AllPartitionsOfNode(t *testing.T) {
	c := newCluster(t, new(service))
	client := c.Client(0)
	// On a busy machine another leader may be elected between two transfers.
	c.Eventually("n1 hands over all partitions to n2", func() bool {
		if _, err := operate.TransferLeadership(t.Context(), client, "", "n1"); err != nil {
			return false
		}
		moved, err := operate.TransferLeadership(t.Context(), client, "n1", "n2")
		if moved != testPartitions || err != nil {
			return false
		}
		moved, err = operate.TransferLeadership(t.Context(), client, "n1", "")
		return moved == 0 && err == nil
	})
}

func TestTransferLeadership_Rejections(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(new(service).definitions()...))
	client := c.Client(0)
	c.Eventually("the newest protocol", func() bool { return c.Node(0).Health().Protocol >= 4 })
	for name, test := range map[string]struct {
		from, to string
		want     error
	}{
		"unknown from":  {"x", "", cluster.ErrNotMember},
		"unknown to":    {"", "x", cluster.ErrNotMember},
		"no other node": {"n0", "", cluster.ErrLastVoter},
	} {
		_, err := operate.TransferLeadership(t.Context(), client, test.from, test.to)
		expect(t, name, err, test.want)
	}
	var invalid *replay.InvalidError
	if _, err := operate.TransferLeadership(t.Context(), client, "n0", "n0"); !errors.As(err, &invalid) || invalid.Field != "to" {
		t.Errorf("to itself: %v", err)
	}
}
