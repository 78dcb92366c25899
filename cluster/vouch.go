package cluster

import (
	"context"
	"time"
)

// A node that was away does not know those that have joined meanwhile, and refuses
// their connections for Raft, by which it would learn of them. So it asks, when it
// reports, and takes for members for a while whom a member names.

// vouchedFor is how long that holds, unless the node's own log has come as far as
// what it was told before: from then on that counts, which knows who was removed or
// replaced since. A node that has not caught up by the end asks again.
const vouchedFor = time.Minute

// A vouching is what another node has said of the members.
type vouching struct {
	nodes map[string]string // IDs by address
	// The identities of their directories, by ID; "" if none is recorded.
	identities map[string]string
	index      uint64 // of the last entry that it may rest on; 0 if that is not known
	until      time.Time
}

// hearOfMembers asks the node at an address for the members. It believes one that
// knows of a leader: others may know no more than this one.
func (n *Node) hearOfMembers(ctx context.Context, address string) {
	heard := &vouching{nodes: make(map[string]string), identities: make(map[string]string), until: time.Now().Add(vouchedFor)}
	told := n.askOnce(ctx, address, membersRequest()).GetMembers()
	heard.index = told.GetLastIndex()
	led := false
	for _, m := range told.GetMembers() {
		heard.nodes[m.Address], heard.identities[m.Node] = m.Node, m.Identity
		led = led || m.Leader
	}
	if led {
		n.vouched.Store(heard)
	}
}

// isMember tells whether a node belongs to the cluster, as far as this one knows
// or was told: to any group, because one that is being removed is needed until it is
// removed from all.
func (n *Node) isMember(nodeID string) bool {
	select {
	case <-n.opened:
	default:
		return false // nobody is let in yet
	}
	for _, g := range n.groups {
		if g.journal.IsMember(nodeID) {
			return true
		}
	}
	return n.isVouched(nodeID, "")
}

// isInFirst reports whether the first group takes a node for a member, with a directory of
// that identity; "" stands for any. It may know more than the others.
func (n *Node) isInFirst(nodeID, identity string) bool {
	select {
	case <-n.opened:
	default:
		return false
	}
	for _, m := range n.groups[0].journal.Members() {
		if m.Node == nodeID && (identity == "" || m.Identity == identity) {
			return true
		}
	}
	return n.isVouched(nodeID, identity)
}

// isVouched reports whether a member has named a node as one, lately, with a directory of
// that identity; "" stands for any.
func (n *Node) isVouched(nodeID, identity string) bool {
	heard := n.vouching()
	if heard == nil {
		return false
	}
	recorded, named := heard.identities[nodeID]
	return named && (identity == "" || recorded == identity)
}

// nodeAt returns the ID of the node at an address, "" if that is not known.
func (n *Node) nodeAt(address string) string {
	if heard := n.vouching(); heard != nil && heard.nodes[address] != "" {
		return heard.nodes[address] // of a place that another has taken, too
	}
	select {
	case <-n.opened:
	default:
		return ""
	}
	for _, g := range n.groups {
		if node := g.journal.NodeAt(address); node != "" {
			return node
		}
	}
	return ""
}

// vouching returns what another node has said of the members, nil if that holds no longer.
func (n *Node) vouching() *vouching {
	heard := n.vouched.Load()
	if heard == nil || time.Now().After(heard.until) || heard.index != 0 && n.groups[0].journal.CommitIndex() >= heard.index {
		return nil
	}
	return heard
}
