package roles

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

var testRules = Rules{Voters: 3, ReplaceAfter: time.Minute}

// parseMembers reads members, for example "L:n1@a v:n2@b x:n3@c s:n4+": L the leader, v a voter, x
// a voter that is gone, q one that is gone for a moment, s a standby, l a standby that is not fit,
// f one that is fit for a moment only. "@" precedes the zone; "+" pins as a voter, "-" as a
// standby.
func parseMembers(text string) (members []Member) {
	for _, field := range strings.Fields(text) {
		kind, rest, _ := strings.Cut(field, ":")
		m := Member{Leader: kind == "L", Voter: strings.Contains("Lvxq", kind), Fit: strings.Contains("Lvsf", kind)}
		switch {
		case strings.HasSuffix(rest, "+"):
			m.Pin = journalpb.MemberRole_PIN_VOTER
		case strings.HasSuffix(rest, "-"):
			m.Pin = journalpb.MemberRole_PIN_STANDBY
		}
		m.Node, m.Zone, _ = strings.Cut(strings.TrimRight(rest, "+-"), "@")
		switch kind {
		case "v", "s", "L":
			m.FitFor = time.Hour
		case "f":
			m.FitFor = time.Second
		case "x":
			m.GoneFor = time.Minute
		case "q":
			m.GoneFor = time.Minute - 1
		}
		members = append(members, m)
	}
	return members
}

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		members string
		promote string
		demote  string
	}{
		{"L:n1 v:n2 v:n3 s:n4", "", ""},
		{"L:n1 v:n2", "", ""},
		// Too few voters.
		{"L:n1 v:n2 f:n3", "n3", ""},
		{"L:n1 v:n2 l:n3", "", ""},
		{"L:n1 v:n2 l:n3 f:n4", "n4", ""},
		{"L:n1 v:n2 s:n3- s:n4", "n4", ""},
		{"L:n1 v:n2 s:n3-", "", ""},
		{"L:n1@a v:n2@b s:n3@a s:n4@b s:n5@c", "n5", ""},
		{"L:n1@a v:n2@b s:n3@c s:n4@a+", "n4", ""},
		// Too many.
		{"L:n1 v:n2 v:n3 v:n4", "", "n4"},
		{"L:n1 v:n2 v:n3 v:n4+", "", "n3"},
		{"L:n1 v:n2 q:n3 v:n4", "", "n3"},
		{"L:n1@a v:n2@a v:n3@b v:n4@c", "", "n2"},
		{"v:n1 v:n2 v:n3 L:n4", "", "n3"},
		{"L:n1+ v:n2+ v:n3+ v:n4+", "", "n4"},
		{"L:n1 x:n2 x:n3 x:n4 s:n5", "", ""}, // one of three would be left: only the loss is known
		// A voter is gone.
		{"L:n1 v:n2 q:n3 s:n4", "", ""},
		{"L:n1 v:n2 x:n3 s:n4", "n4", "n3"},
		{"L:n1 v:n2 x:n3 l:n4", "", ""},
		{"L:n1 v:n2 x:n3 f:n4", "", ""}, // it has been there for a moment only
		{"L:n1 v:n2 x:n3 s:n4-", "", ""},
		{"L:n1@a v:n2@b x:n3@c s:n4@a s:n5@b s:n6@c", "n6", "n3"},
		{"L:n1@a v:n2@b x:n3@c s:n4@b s:n5@a s:n6@d", "n6", "n3"},
		{"L:n1@a v:n2@b x:n3@c+ s:n4@a", "n4", "n3"}, // a pin does not keep a vote without a node
		// Pins.
		{"L:n1 v:n2 v:n3- s:n4", "n4", "n3"},
		{"L:n1 v:n2 v:n3- l:n4", "", ""},
		{"L:n1 v:n2 v:n3-", "", "n3"},
		{"L:n1- v:n2- v:n3-", "", "n1"},
		{"L:n1- v:n2 s:n3- v:n4 l:n5", "", ""},
		{"L:n1 v:n2 v:n3 s:n4+", "n4", "n3"},
		{"L:n1 v:n2+ v:n3+ s:n4+", "n4", "n1"},
		{"L:n1 v:n2 v:n3 f:n4+", "", ""},
		{"L:n1+ v:n2+ v:n3+ s:n4+", "", ""},
		// Zones.
		{"L:n1@a v:n2@a v:n3@b s:n4@c", "n4", "n2"},
		{"L:n1@a v:n2@a v:n3@a s:n4@b s:n5@c", "n4", "n2"},
		{"v:n1@a L:n2@a v:n3@b s:n4@b s:n5@c", "n5", "n1"},
		{"L:n1@a v:n2@b v:n3@c s:n4@c s:n5@b", "", ""},
		{"L:n1@a v:n2@a v:n3@b s:n4@b", "", ""}, // two and one either way
		{"L:n1@a v:n2@a q:n3@b s:n4@c", "", ""}, // not while a voter is gone
		{"L:n1@a v:n2@a v:n3@b f:n4@c", "", ""},
		{"L:n1@a+ v:n2@a+ v:n3@b s:n4@c", "", ""},
		{"L:n1 v:n2 v:n3 s:n4@c", "n4", "n2"}, // without a zone: one zone
	} {
		c, ok := Decide(testRules, parseMembers(test.members), true, time.Hour)
		if !ok {
			c = Change{}
		}
		if c.Promote != test.promote || c.Demote != test.demote {
			t.Errorf("%s: %+v; want %q promoted, %q demoted", test.members, c, test.promote, test.demote)
		}
	}
}

// While a change is not carried out, only lost and missing voters are made up for. Votes move
// between zones at most once in the time of a replacement.
func TestDecide_WaitsForEarlierChanges(t *testing.T) {
	for _, test := range []struct {
		members string
		settled bool
		since   time.Duration
		want    bool
	}{
		{"L:n1 v:n2 x:n3 s:n4", false, 0, true},
		{"L:n1 v:n2 s:n4", false, 0, true},
		{"L:n1 v:n2 v:n3 v:n4", false, time.Hour, false},
		{"L:n1 v:n2 v:n3 s:n4+", false, time.Hour, false},
		{"L:n1 v:n2 v:n3 s:n4+", true, 0, true},
		{"L:n1@a v:n2@a v:n3@b s:n4@c", false, time.Hour, false},
		{"L:n1@a v:n2@a v:n3@b s:n4@c", true, time.Minute - 1, false},
		{"L:n1@a v:n2@a v:n3@b s:n4@c", true, time.Minute, true},
	} {
		if c, ok := Decide(testRules, parseMembers(test.members), test.settled, test.since); ok != test.want {
			t.Errorf("%s, settled %t, %v after the last change: %+v, %t", test.members, test.settled, test.since, c, ok)
		}
	}
}

// simulation is a cluster whose members fail and return, in steps of a second. Decisions are
// carried out at once.
type simulation struct {
	Rules
	random  *rand.Rand
	members []Member
	down    map[string]bool
	changes []time.Duration
	now     time.Duration
}

func newSimulation(seed uint64) *simulation {
	random := rand.New(rand.NewPCG(seed, 2))
	s := &simulation{Rules: Rules{Voters: 3 + 2*random.IntN(3), ReplaceAfter: time.Minute}, random: random, down: make(map[string]bool)}
	zones := 1 + random.IntN(4)
	for i := range 1 + random.IntN(14) {
		m := Member{Node: fmt.Sprintf("n%02d", i), Zone: string(rune('a' + random.IntN(zones))), Voter: i == 0 || random.IntN(2) == 0, Fit: true}
		if random.IntN(6) == 0 {
			m.Pin = journalpb.MemberRole_Pin(1 + random.IntN(2))
		}
		s.members = append(s.members, m)
	}
	s.members[0].Pin = journalpb.MemberRole_PIN_NONE
	return s
}

// step lets a second pass. It does nothing without a leader, which needs a majority.
func (s *simulation) step() error {
	s.now += time.Second
	votes, fit := 0, 0
	for i := range s.members {
		m := &s.members[i]
		m.Leader = false
		switch fits := !s.down[m.Node]; {
		case fits != m.Fit:
			m.Fit, m.FitFor, m.GoneFor = fits, 0, 0
		case fits:
			m.FitFor += time.Second
		default:
			m.GoneFor += time.Second
		}
		if m.Voter {
			votes++
		}
		if m.Voter && m.Fit {
			fit++
		}
	}
	if fit <= votes/2 {
		return nil
	}
	s.members[slices.IndexFunc(s.members, func(m Member) bool { return m.Voter && m.Fit })].Leader = true
	since := time.Hour
	if len(s.changes) > 0 {
		since = s.now - s.changes[len(s.changes)-1]
	}
	c, ok := Decide(s.Rules, s.members, true, since)
	if !ok {
		return nil
	}
	s.changes = append(s.changes, s.now)
	return s.carryOut(c)
}

func (s *simulation) carryOut(c Change) error {
	votes, fit := 0, 0
	for i := range s.members {
		m := &s.members[i]
		switch m.Node {
		case c.Promote:
			if m.Voter || !m.Fit || m.Pin == journalpb.MemberRole_PIN_STANDBY {
				return fmt.Errorf("%+v is promoted", *m)
			}
			m.Voter = true
		case c.Demote:
			if !m.Voter {
				return fmt.Errorf("%+v is demoted", *m)
			}
			m.Voter = false
		}
		if m.Voter {
			votes++
		}
		if m.Voter && m.Fit {
			fit++
		}
	}
	if c.Promote == c.Demote || fit <= votes/2 {
		return fmt.Errorf("%+v leaves %d of %d voters", c, fit, votes)
	}
	return nil
}

// expectSpread checks the end of a simulation in which all members are fit.
func (s *simulation) expectSpread() error {
	zones, spare := make(map[string]int), make(map[string]bool)
	votes, may := 0, 0
	for _, m := range s.members {
		switch {
		case m.Pin == journalpb.MemberRole_PIN_STANDBY && m.Voter:
			return fmt.Errorf("%+v votes", m)
		case m.Pin == journalpb.MemberRole_PIN_STANDBY:
			continue
		case m.Voter:
			votes++
		default:
			spare[m.Zone] = true
		}
		may++
		if m.Pin == journalpb.MemberRole_PIN_NONE && m.Voter {
			zones[m.Zone] += 0
		}
	}
	if votes != min(may, s.Voters) {
		return fmt.Errorf("%d of %d vote, %d are wanted", votes, may, s.Voters)
	}
	counts := (&decision{members: s.members}).zoneCounts("")
	for from := range maps.Keys(zones) { // zones with a voter that is not pinned
		for to := range spare {
			if counts[from]-counts[to] >= 2 {
				return fmt.Errorf("zone %s has %d voters, zone %s %d", from, counts[from], to, counts[to])
			}
		}
	}
	return nil
}

// Members fail and return at random. No decision breaks the majority; while nothing fails,
// decisions end, and the voters are complete and spread over the zones. A member that fails and
// returns over and over causes at most two changes each time.
func TestDecide_KeepsMajorityAndConverges(t *testing.T) {
	for seed := range uint64(1500) {
		s := newSimulation(seed)
		run := func(steps int) {
			for range steps {
				if err := s.step(); err != nil {
					t.Fatalf("seed %d after %v: %v in %+v", seed, s.now, err, s.members)
				}
			}
		}
		for range 20 {
			m := s.members[s.random.IntN(len(s.members))]
			s.down[m.Node] = !s.down[m.Node]
			run(1 + s.random.IntN(100))
		}
		clear(s.down)
		run(1500)
		before := len(s.changes)
		run(300)
		if len(s.changes) != before {
			t.Fatalf("seed %d: changes at %v: %+v", seed, s.changes[before:], s.members)
		}
		if err := s.expectSpread(); err != nil {
			t.Fatalf("seed %d: %v: %+v", seed, err, s.members)
		}
		for range 5 {
			before := len(s.changes)
			s.down[s.members[0].Node] = true
			run(100)
			clear(s.down)
			run(150)
			if n := len(s.changes) - before; n > 2 {
				t.Fatalf("seed %d: %d changes for one failure: %+v", seed, n, s.members)
			}
		}
	}
}
