package membership

import (
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A fakeReplica has members and nothing else.
type fakeReplica []journal.Member

func (f fakeReplica) IsMember(nodeID string) bool {
	return slices.ContainsFunc(f, func(m journal.Member) bool { return m.Node == nodeID })
}

func (f fakeReplica) Members() []journal.Member { return f }

func (f fakeReplica) NodeAt(address string) string {
	if i := slices.IndexFunc(f, func(m journal.Member) bool { return m.Address == address }); i >= 0 {
		return f[i].Node
	}
	return ""
}

func (f fakeReplica) CommitIndex() uint64 { return 1 }

// newTestDirectory returns a directory whose log has n1 at a:1 and n2 at b:1.
func newTestDirectory(opened bool) *Directory {
	log := fakeReplica{{Node: "n1", Address: "a:1"}, {Node: "n2", Address: "b:1"}}
	d := &Directory{Opened: make(chan struct{}), Replicas: func(yield func(Replica) bool) { yield(log) }}
	if opened {
		done := make(chan struct{})
		close(done)
		d.Opened = done
	}
	return d
}

// At the address of a removed node, which has introduced itself, there is now its replacement,
// which has not.
func TestDirectory_RemovedNodeLosesItsAddress(t *testing.T) {
	d := newTestDirectory(true)
	d.Book.Learn(Found{Node: "removed", Identity: "id", Address: "b:1"})
	if node := d.NodeAt("b:1"); node != "n2" {
		t.Errorf("at b:1 is %q, want the member that is recorded there", node)
	}
	d.Book.Learn(Found{Node: "stranger", Identity: "id2", Address: "c:1"})
	if node := d.NodeAt("c:1"); node != "stranger" {
		t.Errorf("at c:1, where no member is recorded, is %q", node)
	}
}

func TestDirectory_MemberMayTakeOverAnAddress(t *testing.T) {
	d := newTestDirectory(true)
	d.Book.Learn(Found{Node: "n1", Identity: "id", Address: "b:1"})
	if node := d.NodeAt("b:1"); node != "n1" {
		t.Errorf("at b:1, which n1 has taken over, is %q", node)
	}
	if node := d.NodeAt("a:1"); node != "" {
		t.Errorf("at a:1, where n1 was, is %q", node)
	}
}

// Before the log is open, only the hint says who is a member.
func TestDirectory_HintedMemberMayTakeOverAnAddress(t *testing.T) {
	d := newTestDirectory(false)
	d.Learn(&clusterpb.MembersResult{Members: []*clusterpb.Member{
		{Node: "n1", Address: "a:1", Leader: true}, {Node: "n2", Address: "b:1"},
	}}, time.Now())
	d.Book.Learn(Found{Node: "removed", Identity: "id", Address: "a:1"})
	d.Book.Learn(Found{Node: "n1", Identity: "id1", Address: "b:1"})
	if at := [2]string{d.NodeAt("a:1"), d.NodeAt("b:1")}; at != [2]string{"n1", "n1"} {
		t.Errorf("at a:1 and b:1 are %q, want n1", at)
	}
}
