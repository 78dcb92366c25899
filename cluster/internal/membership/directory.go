package membership

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A node that was down has no record of the members that joined meanwhile. It rejects their Raft
// connections, over which it would receive that record. When it announces itself, it therefore also
// asks for the members and accepts the answer for a while.

// memberHintTTL bounds the use of a member hint. The hint ends earlier once the node's own log has
// reached the hint's index: the log then shows which nodes were removed or replaced since. A node
// that has not caught up by then asks again.
const memberHintTTL = time.Minute

// A Hint is another node's answer to a request for the members.
type Hint struct {
	Nodes map[string]string // IDs by address
	// Identities of the members' directories, by ID; "" if none is recorded.
	Identities map[string]string
	Index      uint64 // of the last entry that the answer may reflect; 0 if unknown
	Expires    time.Time
}

// A Replica is this node's replica of a partition.
type Replica interface {
	IsMember(nodeID string) bool
	Members() []journal.Member
	NodeAt(address string) string
	CommitIndex() uint64
}

// A Directory holds the members of the cluster, from this node's log or from a hint, and where they
// can be reached.
type Directory struct {
	Opened   <-chan struct{}   // closed when all partitions are open
	Replicas iter.Seq[Replica] // by partition
	// Book holds where nodes have introduced themselves.
	Book Book
	hint atomic.Pointer[Hint]
}

// Learn keeps what another node has answered, for up to memberHintTTL after it was asked. It
// ignores an answer without a leader: that node's members may be no newer than this node's.
func (d *Directory) Learn(received *clusterpb.MembersResult, asked time.Time) {
	hint := &Hint{
		Nodes: make(map[string]string), Identities: make(map[string]string),
		Index: received.GetLastIndex(), Expires: asked.Add(memberHintTTL),
	}
	led := false
	for _, m := range received.GetMembers() {
		hint.Nodes[m.Address], hint.Identities[m.Node] = m.Node, m.Identity
		led = led || m.Leader
	}
	if led {
		d.hint.Store(hint)
	}
}

// LastHint returns the hint that was learned last, even if it is no longer used; nil if there is
// none.
func (d *Directory) LastHint() *Hint { return d.hint.Load() }

// IsMember reports whether a node belongs to the cluster, by this node's log or by a member hint. A
// member of any partition counts: a node that is being removed is needed until every partition has
// removed it.
func (d *Directory) IsMember(nodeID string) bool {
	select {
	case <-d.Opened:
	default:
		return false // no connections are accepted yet
	}
	for g := range d.Replicas {
		if g.IsMember(nodeID) {
			return true
		}
	}
	return d.IsHintedMember(nodeID, "")
}

// IsInFirstPartition reports whether the first partition has a member with that ID and directory
// identity; an identity of "" matches any. The first partition may have members that the others do
// not have yet.
func (d *Directory) IsInFirstPartition(nodeID, identity string) bool {
	select {
	case <-d.Opened:
	default:
		return false
	}
	for _, m := range d.first().Members() {
		if m.Node == nodeID && (identity == "" || m.Identity == identity) {
			return true
		}
	}
	return d.IsHintedMember(nodeID, identity)
}

// IsHintedMember reports whether the current member hint names a node with that directory identity;
// "" matches any.
func (d *Directory) IsHintedMember(nodeID, identity string) bool {
	hint := d.currentMemberHint()
	if hint == nil {
		return false
	}
	recorded, named := hint.Identities[nodeID]
	return named && (identity == "" || recorded == identity)
}

// NodeAt returns the ID of the node at an address, "" if unknown. A member that has introduced
// itself there overrides the member that is recorded there; a node that is no member does not: it
// may have been removed and replaced by one that introduces itself to none.
func (d *Directory) NodeAt(address string) string {
	recorded := d.recordedAt(address)
	node, moved := d.Book.NodeAt(address, recorded)
	switch {
	case node != "" && recorded != "" && !d.IsMember(node) && !d.IsHintedMember(node, ""):
		return recorded
	case node != "" || moved:
		return node // another node may have taken over the address
	}
	return recorded
}

// recordedAt returns the ID of the node that is recorded at an address, "" if there is none.
func (d *Directory) recordedAt(address string) string {
	if hint := d.currentMemberHint(); hint != nil && hint.Nodes[address] != "" {
		return hint.Nodes[address] // also right if another node has taken over the address
	}
	select {
	case <-d.Opened:
	default:
		return ""
	}
	for g := range d.Replicas {
		if node := g.NodeAt(address); node != "" {
			return node
		}
	}
	return ""
}

// currentMemberHint returns the member hint, nil if there is none, or it has expired or was
// overtaken by the log.
func (d *Directory) currentMemberHint() *Hint {
	hint := d.hint.Load()
	if hint == nil || time.Now().After(hint.Expires) || hint.Index != 0 && d.first().CommitIndex() >= hint.Index {
		return nil
	}
	return hint
}

// first returns the replica of the first partition, whose members the others follow.
func (d *Directory) first() (replica Replica) {
	for replica = range d.Replicas {
		break
	}
	return replica
}
