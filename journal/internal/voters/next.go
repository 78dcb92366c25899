package voters

import (
	"cmp"
	"slices"
)

// A Member is a member of the partition as its leader sees it.
type Member struct {
	Node   string
	Voter  bool // has a vote
	Wanted bool // is to have a vote
	Leader bool // is the leader itself, which answers and has caught up
	// Alive means that it answers, CaughtUp that it lacks only what was committed a moment ago.
	// Behind is the number of entries that it lacks.
	Alive    bool
	CaughtUp bool
	Behind   uint64
}

// fit reports whether the member counts toward a majority that proceeds at once.
func (m *Member) fit() bool { return m.Leader || m.Alive && m.CaughtUp }

// A Step is what the leader does next.
type Step uint8

// The steps.
const (
	Done     Step = iota // nothing: the votes are as they are to be
	Wait                 // nothing yet
	Promote              // gives a member a vote
	Demote               // takes the vote of another member
	Transfer             // transfers leadership to a member, so that it takes the leader's vote
)

// Next returns the next step and the member that it concerns. missing says that a node is to have a
// vote and is no member yet.
func Next(members []Member, missing bool) (Step, string) {
	lacking, wanted := missing, false
	for _, m := range members {
		switch {
		case m.Wanted && !m.Voter && m.Alive && m.CaughtUp:
			return Promote, m.Node
		case m.Wanted && !m.Voter:
			lacking = true
		case m.Wanted:
			wanted = true
		}
	}
	excess := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Wanted || !m.Voter })
	switch {
	case lacking:
		return Wait, ""
	case len(excess) == 0:
		return Done, ""
	case !wanted: // those that are to vote are unknown here
		return Wait, ""
	}
	return demoteOne(members, excess)
}

// demoteOne takes one vote: first of a member that does not answer, at last that of the leader.
func demoteOne(members, excess []Member) (Step, string) {
	rank := func(m Member) int {
		switch {
		case m.Leader:
			return 2
		case m.fit():
			return 1
		}
		return 0
	}
	first := slices.MinFunc(excess, func(a, b Member) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Node, b.Node))
	})
	if first.Leader {
		return transferFrom(members)
	}
	voters, fit := 0, 0
	for _, m := range members {
		if m.Voter && m.Node != first.Node {
			voters++
			if m.fit() {
				fit++
			}
		}
	}
	if fit <= voters/2 {
		return Wait, ""
	}
	return Demote, first.Node
}

// transferFrom chooses the next leader: of the members that keep their votes the one that lags
// least.
func transferFrom(members []Member) (Step, string) {
	fit := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return !m.Wanted || !m.Voter || m.Leader || !m.fit() })
	if len(fit) == 0 {
		return Wait, ""
	}
	return Transfer, slices.MinFunc(fit, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Behind, b.Behind), cmp.Compare(a.Node, b.Node))
	}).Node
}
