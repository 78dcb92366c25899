package cluster

import (
	"context"
	"time"
)

// A node that was away does not know the members that joined meanwhile, and refuses their Raft
// connections, from which it would learn of them. When it announces itself, it therefore also asks
// for the members and accepts the answer for a while.

// memberHintTTL bounds the use of a member hint. The hint ends earlier once the node's own log has
// reached the hint's index: the log then knows who was removed or replaced since. A node that has
// not caught up by then asks again.
const memberHintTTL = time.Minute

// A memberHint is what another node has answered about the members.
type memberHint struct {
	nodes map[string]string // IDs by address
	// Identities of the members' directories, by ID; "" if none is recorded.
	identities map[string]string
	index      uint64 // of the last entry that the answer may reflect; 0 if unknown
	expires    time.Time
}

// fetchMemberHint asks the node at an address for the members. It ignores an answer without a
// leader: that node may know no more than this one.
func (n *Node) fetchMemberHint(ctx context.Context, address string) {
	hint := &memberHint{nodes: make(map[string]string), identities: make(map[string]string), expires: time.Now().Add(memberHintTTL)}
	received := n.askOnce(ctx, address, membersRequest()).GetMembers()
	hint.index = received.GetLastIndex()
	led := false
	for _, m := range received.GetMembers() {
		hint.nodes[m.Address], hint.identities[m.Node] = m.Node, m.Identity
		led = led || m.Leader
	}
	if led {
		n.memberHint.Store(hint)
	}
}

// isMember reports whether a node belongs to the cluster, by this node's log or by a member hint. A
// member of any partition counts: a node that is being removed is needed until every partition has
// removed it.
func (n *Node) isMember(nodeID string) bool {
	select {
	case <-n.opened:
	default:
		return false // no connections are accepted yet
	}
	for _, g := range n.partitions {
		if g.journal.IsMember(nodeID) {
			return true
		}
	}
	return n.isHintedMember(nodeID, "")
}

// isInFirstPartition reports whether the first partition has a member with that ID and directory
// identity; an identity of "" matches any. The first partition may know more than the others.
func (n *Node) isInFirstPartition(nodeID, identity string) bool {
	select {
	case <-n.opened:
	default:
		return false
	}
	for _, m := range n.partitions[0].journal.Members() {
		if m.Node == nodeID && (identity == "" || m.Identity == identity) {
			return true
		}
	}
	return n.isHintedMember(nodeID, identity)
}

// isHintedMember reports whether the current member hint names a node with that directory identity;
// "" matches any.
func (n *Node) isHintedMember(nodeID, identity string) bool {
	hint := n.currentMemberHint()
	if hint == nil {
		return false
	}
	recorded, named := hint.identities[nodeID]
	return named && (identity == "" || recorded == identity)
}

// nodeAt returns the ID of the node at an address, "" if unknown.
func (n *Node) nodeAt(address string) string {
	if hint := n.currentMemberHint(); hint != nil && hint.nodes[address] != "" {
		return hint.nodes[address] // also right if another node has taken over the address
	}
	select {
	case <-n.opened:
	default:
		return ""
	}
	for _, g := range n.partitions {
		if node := g.journal.NodeAt(address); node != "" {
			return node
		}
	}
	return ""
}

// currentMemberHint returns the member hint, nil if there is none, or it has expired or was
// overtaken by the log.
func (n *Node) currentMemberHint() *memberHint {
	hint := n.memberHint.Load()
	if hint == nil || time.Now().After(hint.expires) || hint.index != 0 && n.partitions[0].journal.CommitIndex() >= hint.index {
		return nil
	}
	return hint
}
