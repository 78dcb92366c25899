package operate_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

// A new cluster uses its newest protocol at once. Confirming it again changes nothing.
func TestFinalize_NewCluster(t *testing.T) {
	c := clustertest.New(t, 3, clustertest.InMemory(), clustertest.Definitions(new(service).definitions()...))
	var protocols operate.Protocols
	c.Eventually("all members say what they speak", func() bool { // they have a moment for their answers
		var err error
		protocols, err = operate.GetProtocols(t.Context(), c.Client(0))
		return err == nil && maps.Equal(protocols.Newest, map[string]uint32{"n0": protocols.Used, "n1": protocols.Used, "n2": protocols.Used})
	})
	if protocols.Used < 4 || protocols.Next != 0 || !protocols.NextAt.IsZero() {
		t.Errorf("%+v", protocols)
	}
	if used, err := operate.Finalize(t.Context(), c.Client(1), "test"); err != nil || used != protocols.Used {
		t.Errorf("protocol %d, %v", used, err)
	}
}

// A remote client needs the right to finalize.
func TestFinalize_NeedsRight(t *testing.T) {
	_, client := newClusterWithRights(t, new(transferRights))
	if _, err := operate.Finalize(t.Context(), client, ""); !errors.Is(err, cluster.ErrNotAuthorized) {
		t.Errorf("%v", err)
	}
	if _, err := operate.GetProtocols(t.Context(), client); err != nil {
		t.Errorf("%v", err)
	}
}
