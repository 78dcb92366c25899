package voters_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/internal/voters"
)

// parse reads members, for example "L:a!  v:b v:c? w:d": L the leader, v a voter, n a member
// without a vote, s the same and it has not caught up, x a voter that does not answer, y a member
// without a vote that does not answer. A "!" says that it is to have a vote.
func parse(text string) (members []voters.Member) {
	for _, field := range strings.Fields(text) {
		kind, node, _ := strings.Cut(field, ":")
		m := voters.Member{Node: strings.TrimSuffix(node, "!"), Wanted: strings.HasSuffix(node, "!")}
		m.Leader = kind == "L"
		m.Voter = strings.Contains("Lvxb", kind)
		m.Alive = strings.Contains("Lvnsb", kind)
		m.CaughtUp = strings.Contains("Lvnyx", kind)
		members = append(members, m)
	}
	return members
}

func TestNext(t *testing.T) {
	for _, test := range []struct {
		members string
		missing bool
		step    voters.Step
		node    string
	}{
		{"L:a!", false, voters.Done, ""},
		{"L:a! v:b! n:c", false, voters.Done, ""},
		{"L:a! n:c!", false, voters.Promote, "c"},
		{"L:a! s:c!", false, voters.Wait, ""},                              // lags
		{"L:a! y:c!", false, voters.Wait, ""},                              // does not answer, although it lacks nothing
		{"L:a! v:b! x:c n:d!", false, voters.Promote, "d"},                 // before c loses its vote
		{"L:a! v:b! x:c s:d!", false, voters.Wait, ""},                     // d lags
		{"L:a! v:b! v:c s:d!", false, voters.Wait, ""},                     // c votes until d does
		{"L:a! v:b! x:c v:d!", false, voters.Demote, "c"},                  //
		{"L:a! v:b! v:c v:d!", true, voters.Wait, ""},                      // another is to vote, and is no member yet
		{"L:a! v:b v:c x:d v:e!", false, voters.Demote, "d"},               // the one that does not answer first
		{"L:a! v:b b:c v:d v:e!", false, voters.Demote, "c"},               // then one that lags
		{"L:a! v:b x:c! x:d!", false, voters.Wait, ""},                     // one of three would be left
		{"L:a! v:b! v:c x:d! x:e!", false, voters.Wait, ""},                // two of four
		{"L:a v:b! v:c! v:d!", false, voters.Transfer, "b"},                // the leader at last
		{"L:a v:b! v:c! v:d! v:e", false, voters.Demote, "e"},              //
		{"L:a x:b! b:c! v:d! v:e!", false, voters.Transfer, "d"},           // not to one that is down or lags
		{"L:a x:b! b:c!", false, voters.Wait, ""},                          //
		{"L:a v:b v:c", false, voters.Wait, ""},                            // nothing is known of who is to vote
		{"L:a! v:b! v:c! v:d! v:e! v:f v:g", false, voters.Demote, "f"},    // from 7 to 5
		{"L:a! v:b! x:c! x:d! x:e v:f! n:g", false, voters.Demote, "e"},    // 3 of 5 are left
		{"L:a! x:b! x:c! x:d! v:e v:f! v:g!", false, voters.Wait, ""},      // 3 of 6 would be left
		{"L:a! v:b! v:c! n:d n:e n:f n:g n:h n:i", false, voters.Done, ""}, // standbys
	} {
		step, node := voters.Next(parse(test.members), test.missing)
		if step != test.step || node != test.node {
			t.Errorf("%s: step %d, %q; want %d, %q", test.members, step, node, test.step, test.node)
		}
	}
}

// expectSafe reports a step that breaks a guarantee of the package.
func expectSafe(members []voters.Member, step voters.Step, node string) error {
	count, fit, lacking := 0, 0, false
	for _, m := range members {
		switch {
		case m.Node == node && step == voters.Promote && !(m.Wanted && !m.Voter && m.Alive && m.CaughtUp):
			return fmt.Errorf("%+v gets a vote", m)
		case m.Node == node && step == voters.Transfer && !(m.Wanted && m.Voter && m.Alive && m.CaughtUp):
			return fmt.Errorf("%+v gets leadership", m)
		case m.Node == node && step == voters.Demote && (m.Leader || m.Wanted || !m.Voter):
			return fmt.Errorf("%+v loses its vote", m)
		}
		lacking = lacking || m.Wanted && !m.Voter
		if m.Voter && m.Node != node {
			count++
			if m.Leader || m.Alive && m.CaughtUp {
				fit++
			}
		}
	}
	if step == voters.Demote && (lacking || fit <= count/2) {
		return fmt.Errorf("%s loses its vote: %d of %d are left, lacking: %t", node, fit, count, lacking)
	}
	return nil
}

// Whatever the members are, no step breaks a guarantee. Once all answer, the votes become those
// that are to be, in at most two steps per member.
func TestNext_IsSafeAndConverges(t *testing.T) {
	for seed := range uint64(20_000) {
		random := rand.New(rand.NewPCG(seed, 1))
		members := make([]voters.Member, 1+random.IntN(9))
		for i := range members {
			members[i] = voters.Member{
				Node: fmt.Sprintf("n%d", i), Voter: random.IntN(2) == 0, Wanted: random.IntN(2) == 0,
				Alive: random.IntN(4) > 0, CaughtUp: random.IntN(4) > 0, Behind: random.Uint64N(9),
			}
		}
		members[0].Leader, members[0].Voter, members[0].Alive, members[0].CaughtUp = true, true, true, true
		wanted := 0
		for steps := 0; ; steps++ {
			step, node := voters.Next(members, false)
			if err := expectSafe(members, step, node); err != nil {
				t.Fatalf("seed %d: %v in %+v", seed, err, members)
			}
			if step == voters.Done {
				break
			}
			wanted = 0
			for i := range members {
				m := &members[i]
				if m.Node == node {
					m.Voter = step == voters.Promote || step == voters.Transfer
				}
				if step == voters.Transfer {
					m.Leader = m.Node == node
				}
				if step == voters.Wait {
					m.Alive, m.CaughtUp = true, true
				}
				if m.Wanted {
					wanted++
				}
			}
			if wanted == 0 {
				break
			}
			if steps > 2*len(members)+1 {
				t.Fatalf("seed %d: no end: %+v", seed, members)
			}
		}
		for _, m := range members {
			if wanted > 0 && m.Voter != m.Wanted {
				t.Fatalf("seed %d: %+v", seed, m)
			}
		}
	}
}
