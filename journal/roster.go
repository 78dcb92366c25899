package journal

// IsMember tells whether a node belongs to the group, with or without a vote, by
// the latest configuration in this node's log, committed or not. A node that has
// none yet, because it is about to join, takes everybody for a member: it cannot
// know better, and has nothing to lose.
func (j *Journal) IsMember(node string) bool {
	g := j.roster()
	return len(g.servers) == 0 || g.find(node) != nil
}

// admitsMember tells whether messages of a node are taken: of one that is a member,
// or was vouched for.
func (j *Journal) admitsMember(node string) bool {
	return j.IsMember(node) || j.config.Vouched != nil && j.config.Vouched(node, "")
}

// NodeAt returns the ID of the member at an address, by the same configuration; ""
// if there is none.
func (j *Journal) NodeAt(address string) string {
	for _, server := range j.roster().servers {
		if addressOf(&server) == address {
			return string(server.ID)
		}
	}
	return ""
}
