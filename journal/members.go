package journal

import (
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// IsMember reports whether a node is a member, with or without a vote, by the latest configuration
// in this node's log, committed or not. On a node without a configuration, which is about to join,
// it returns true for every node.
func (j *Journal) IsMember(node string) bool {
	g := j.membership()
	return len(g.servers) == 0 || g.find(node) != nil
}

// isAdmitted reports whether messages of a node are accepted: it is a member or MemberHint says so.
func (j *Journal) isAdmitted(node string) bool {
	return j.IsMember(node) || j.config.MemberHint != nil && j.config.MemberHint(node, "")
}

// NodeAt returns the ID of the member at an address, by the same configuration; "" if there is
// none.
func (j *Journal) NodeAt(address string) string {
	for _, server := range j.membership().servers {
		if peer.AddressOf(&server) == address {
			return string(server.ID)
		}
	}
	return ""
}
