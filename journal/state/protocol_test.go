package state

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A protocol that all members speak is kept, also across restarts, until the cluster uses it, a
// record says otherwise, or a leader of an earlier build begins an epoch: that one cannot watch the
// members.
func TestReadyProtocol_KeptUntilUsed(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		apply := func(c *journalpb.MetadataChange) {
			t.Helper()
			c.Epoch = m.Epoch()
			if err := applyChange(m, c); err != nil {
				t.Fatal(err)
			}
		}
		begin := func(protocol uint32) {
			t.Helper()
			epoch := &journalpb.Epoch{Node: "n", Clock: 1, Protocol: protocol}
			if _, err := applyRecord(m, must(proto.Marshal(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: epoch}}))); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(what string, protocol uint32, since int64) {
			t.Helper()
			for _, restarted := range []bool{false, true} {
				if restarted {
					replaceState(t, m)
				}
				if got, at := ReadyProtocol(m); got != protocol || at != clustertime.FromUnixNano(since) {
					t.Errorf("%s: protocol %d since %v; want %d since %d (restarted: %v)", what, got, at, protocol, since, restarted)
				}
			}
		}
		apply(&journalpb.MetadataChange{Protocol: 3})
		expect("at first", 0, 0)
		apply(&journalpb.MetadataChange{ReadyProtocol: 4, ReadySince: 7})
		apply(&journalpb.MetadataChange{Cut: 1})
		expect("recorded", 4, 7)
		begin(4)
		begin(5)
		expect("with other leaders", 4, 7)
		begin(3)
		expect("with a leader of the earlier build", 0, 0)
		apply(&journalpb.MetadataChange{ReadyProtocol: 4, ReadySince: 9})
		begin(0)
		expect("with a leader of a build that does not say what it speaks", 0, 0)
		apply(&journalpb.MetadataChange{ReadyProtocol: 4, ReadySince: 9})
		apply(&journalpb.MetadataChange{ReadyProtocol: 4, ReadySince: 11})
		expect("recorded again", 4, 11)
		apply(&journalpb.MetadataChange{ReadySince: 12})
		expect("reset", 0, 0)
		apply(&journalpb.MetadataChange{ReadyProtocol: 3, ReadySince: 13})
		expect("used already", 0, 0)
		apply(&journalpb.MetadataChange{ReadyProtocol: 4, ReadySince: 14})
		apply(&journalpb.MetadataChange{Protocol: 4})
		expect("used", 0, 0)
	})
}
