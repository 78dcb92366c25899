package operate_test

import (
	"errors"
	"fmt"
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
	if _, err := operate.TransferLeadership(t.Context(), client, "", "n1"); err != nil {
		t.Fatal(err)
	}
	if moved, err := operate.TransferLeadership(t.Context(), client, "n1", "n2"); moved != testPartitions || err != nil {
		t.Errorf("moved %d of %d: %v", moved, testPartitions, err)
	}
	if moved, err := operate.TransferLeadership(t.Context(), client, "n1", ""); moved != 0 || err != nil {
		t.Errorf("n1 still led %d: %v", moved, err)
	}
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
