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
	index uint64            // of the last entry that it may rest on; 0 if that is not known
	until time.Time
}

// hearOfMembers asks the node at an address for the members. It believes one that
// knows of a leader: others may know no more than this one.
func (n *Node) hearOfMembers(ctx context.Context, address string) {
	heard := &vouching{nodes: make(map[string]string), until: time.Now().Add(vouchedFor)}
	told := n.askOnce(ctx, address, membersRequest()).GetMembers()
	heard.index = told.GetLastIndex()
	led := false
	for _, m := range told.GetMembers() {
		heard.nodes[m.Address] = m.Node
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
	return n.isVouched(nodeID)
}

// isInFirst tells whether the first group takes a node for a member. It may know more
// than the others.
func (n *Node) isInFirst(nodeID string) bool {
	select {
	case <-n.opened:
	default:
		return false
	}
	return n.groups[0].journal.IsMember(nodeID) || n.isVouched(nodeID)
}

// isVouched tells whether a member has named a node as one, lately.
func (n *Node) isVouched(nodeID string) bool {
	for _, node := range n.vouchedNodes() {
		if node == nodeID {
			return true
		}
	}
	return false
}

// nodeAt returns the ID of the node at an address, "" if that is not known.
func (n *Node) nodeAt(address string) string {
	if node, told := n.vouchedNodes()[address]; told {
		return node // of a place that another has taken, too
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

func (n *Node) vouchedNodes() map[string]string {
	heard := n.vouched.Load()
	if heard == nil || time.Now().After(heard.until) || heard.index != 0 && n.groups[0].journal.CommitIndex() >= heard.index {
		return nil
	}
	return heard.nodes
}
