package roles

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Member is a member of the cluster as the leader of the first partition sees it.
type Member struct {
	Node, Zone string
	Pin        journalpb.MemberRole_Pin
	Voter      bool // it is decided that it votes
	Leader     bool // leads the first partition
	// Fit means that the member answers and has caught up in every partition, FitFor for how long
	// that has been so. GoneFor is how long a voter has not answered; 0 for one that answers. Of a
	// member that is to vote and has no vote yet, it is how long the member has not been fit.
	Fit     bool
	FitFor  time.Duration
	GoneFor time.Duration
}

// Rules are the settings by which members are chosen.
type Rules struct {
	Voters       int           // how many members are to vote
	ReplaceAfter time.Duration // how long a voter may be gone
}

// steadyMax bounds how long a member must have been fit before it replaces a voter.
const steadyMax = 10 * time.Second

// steadyFor is how long a member must have been fit before it replaces a voter.
func (r Rules) steadyFor() time.Duration { return min(r.ReplaceAfter/2, steadyMax) }

// A Change is a decision: one member becomes a voter, one becomes a standby, or both.
type Change struct {
	Promote, Demote string // IDs; "" for none
	Reason          string // for the log
}

// Decide returns the next change; ok is false if none is due. members are sorted by ID. settled
// says that earlier changes are carried out, sinceChange how long ago the last one was decided.
func Decide(r Rules, members []Member, settled bool, sinceChange time.Duration) (c Change, ok bool) {
	d := decision{Rules: r, members: members}
	votes := 0
	for _, m := range members {
		if m.Voter {
			votes++
		}
	}
	if votes < r.Voters {
		if c, ok = d.fill(); ok {
			return c, true
		}
	}
	if votes > r.Voters && settled {
		return d.shrink()
	}
	if c, ok = d.replaceGone(); ok || !settled {
		return c, ok
	}
	for _, rule := range []func() (Change, bool){d.followStandbyPins, d.followVoterPins} {
		if c, ok = rule(); ok {
			return c, true
		}
	}
	if sinceChange < r.ReplaceAfter {
		return Change{}, false
	}
	return d.spread()
}

// decision is one call of Decide.
type decision struct {
	Rules
	members []Member
}

// zoneCounts returns how many voters each zone has, not counting one of them.
func (d *decision) zoneCounts(except string) map[string]int {
	counts := make(map[string]int)
	for _, m := range d.members {
		if m.Voter && m.Node != except {
			counts[m.Zone]++
		}
	}
	return counts
}

// candidate returns the member that becomes a voter in the place of another, "" for none: a pinned
// one, or else one in the zone with the fewest voters. It has been fit for at least that long.
func (d *decision) candidate(instead string, fitFor time.Duration) string {
	counts := d.zoneCounts(instead)
	fit := slices.DeleteFunc(slices.Clone(d.members), func(m Member) bool {
		return m.Voter || !m.Fit || m.FitFor < fitFor || m.Pin == journalpb.MemberRole_PIN_STANDBY
	})
	if len(fit) == 0 {
		return ""
	}
	return slices.MinFunc(fit, func(a, b Member) int {
		return cmp.Or(compareBool(a.Pin != journalpb.MemberRole_PIN_VOTER, b.Pin != journalpb.MemberRole_PIN_VOTER),
			cmp.Compare(counts[a.Zone], counts[b.Zone]), cmp.Compare(a.Node, b.Node))
	}).Node
}

// dispensable returns the voter that becomes a standby, "" for none: one that is not fit, or else
// one in the zone with the most voters, which does not lead if possible. A pinned voter is chosen
// only if pinned is set, and last.
func (d *decision) dispensable(pinned bool) string {
	counts := d.zoneCounts("")
	isPinned := func(m Member) bool { return m.Pin == journalpb.MemberRole_PIN_VOTER }
	chosen := slices.DeleteFunc(slices.Clone(d.members), func(m Member) bool { return !m.Voter || !pinned && isPinned(m) })
	if len(chosen) == 0 {
		return ""
	}
	return slices.MinFunc(chosen, func(a, b Member) int {
		return cmp.Or(compareBool(isPinned(a), isPinned(b)), compareBool(a.Fit, b.Fit), cmp.Compare(counts[b.Zone], counts[a.Zone]),
			compareBool(a.Leader, b.Leader), cmp.Compare(b.Node, a.Node))
	}).Node
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// keepsMajority reports whether a majority of the voters is fit without that one.
func (d *decision) keepsMajority(without string) bool {
	votes, fit := 0, 0
	for _, m := range d.members {
		if m.Voter && m.Node != without {
			votes++
			if m.Fit {
				fit++
			}
		}
	}
	return fit > votes/2
}

// fill gives a vote to a member because there are too few voters.
func (d *decision) fill() (Change, bool) {
	node := d.candidate("", 0)
	return Change{Promote: node, Reason: "there are fewer voters than wanted"}, node != ""
}

// shrink takes a vote because there are too many voters.
func (d *decision) shrink() (Change, bool) {
	node := d.dispensable(true)
	return Change{Demote: node, Reason: "there are more voters than wanted"}, node != "" && d.keepsMajority(node)
}

// replaceGone replaces a voter that has been gone for too long.
func (d *decision) replaceGone() (Change, bool) {
	for _, m := range d.members {
		if !m.Voter || m.Leader || m.GoneFor < d.ReplaceAfter {
			continue
		}
		if node := d.candidate(m.Node, d.steadyFor()); node != "" {
			return Change{Promote: node, Demote: m.Node, Reason: "the voter has been gone for too long"}, true
		}
	}
	return Change{}, false
}

// followStandbyPins takes the vote of a member that is pinned as a standby. Another member gets it,
// if there is one that may vote.
func (d *decision) followStandbyPins() (Change, bool) {
	hasSpare := slices.ContainsFunc(d.members, func(m Member) bool { return !m.Voter && m.Pin != journalpb.MemberRole_PIN_STANDBY })
	for _, m := range d.members {
		if !m.Voter || m.Pin != journalpb.MemberRole_PIN_STANDBY {
			continue
		}
		node := d.candidate(m.Node, d.steadyFor())
		if node != "" || !hasSpare && d.keepsMajority(m.Node) {
			return Change{Promote: node, Demote: m.Node, Reason: "the voter is pinned as a standby"}, true
		}
	}
	return Change{}, false
}

// followVoterPins gives a vote to a member that is pinned as a voter, in the place of one that is
// not.
func (d *decision) followVoterPins() (Change, bool) {
	for _, m := range d.members {
		if m.Voter || m.Pin != journalpb.MemberRole_PIN_VOTER || !m.Fit || m.FitFor < d.steadyFor() {
			continue
		}
		if node := d.dispensable(false); node != "" {
			return Change{Promote: m.Node, Demote: node, Reason: "the standby is pinned as a voter"}, true
		}
	}
	return Change{}, false
}

// spread moves a vote from the zone with the most voters to one that has at least two fewer, if all
// members concerned have been fit for long.
func (d *decision) spread() (Change, bool) {
	long := func(m Member) bool { return m.Fit && (m.Leader || m.FitFor >= d.ReplaceAfter) }
	counts := d.zoneCounts("")
	var from, to *Member
	for i := range d.members {
		switch m := &d.members[i]; {
		case m.Voter && !long(*m):
			return Change{}, false
		case m.Voter && m.Pin == journalpb.MemberRole_PIN_NONE:
			if from == nil || counts[m.Zone] > counts[from.Zone] || counts[m.Zone] == counts[from.Zone] && from.Leader {
				from = m
			}
		case !m.Voter && m.Pin != journalpb.MemberRole_PIN_STANDBY && long(*m):
			if to == nil || counts[m.Zone] < counts[to.Zone] {
				to = m
			}
		}
	}
	if from == nil || to == nil || counts[from.Zone]-counts[to.Zone] < 2 {
		return Change{}, false
	}
	return Change{Promote: to.Node, Demote: from.Node, Reason: "voters are spread over zones"}, true
}
