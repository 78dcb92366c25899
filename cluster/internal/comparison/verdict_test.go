package comparison

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A node whose answer was not waited for, because the leadership ends, has not failed to take part.
func TestCompare_EndsWithLeadership(t *testing.T) {
	ctx, endLeadership := context.WithCancel(t.Context())
	l := &Leader{config: Config{Node: "a", Ask: func(_ context.Context, node, _ string, _ *clusterpb.Request) (*clusterpb.Response, error) {
		if node == "a" {
			return &clusterpb.Response{Result: &clusterpb.Response_Compare{Compare: new(clusterpb.RangeDigest)}}, nil
		}
		endLeadership()
		return nil, context.Canceled
	}}}
	set := &comparedSet{voters: 3, answers: []journal.Member{{Node: "a", Voter: true}, {Node: "b", Voter: true}, {Node: "c", Voter: true}}}
	if _, err := l.compare(ctx, set, new(clusterpb.CompareRequest), true); !errors.Is(err, context.Canceled) || set.votersAnswered() != 3 {
		t.Errorf("error %v, %d voters take part", err, set.votersAnswered())
	}
}

// votesOf returns the votes of nodes a, b, c ...: equal letters are equal digests, and ! is damage.
// A capital letter is that of a standby, and ? its damage.
func votesOf(digests string) (votes []vote) {
	for i, digest := range digests {
		v := vote{node: string(rune('a' + i)), digest: []byte(strings.ToLower(string(digest)))}
		v.standby = digest == '?' || unicode.IsUpper(digest)
		if digest == '!' || digest == '?' {
			v.damage = new(clusterpb.InstanceDigest)
		}
		if digest == '-' {
			v.digest = nil // it does not have the instance
		}
		votes = append(votes, v)
	}
	return votes
}

func nodesOf(votes []vote) (nodes string) {
	for _, v := range votes {
		nodes += v.node
	}
	return nodes
}

// A majority of all voters is right, and only a replica that contradicts itself is wrong without
// one.
func TestDecide(t *testing.T) {
	for _, c := range []struct {
		votes        string
		voters       int
		right, wrong string
	}{
		{"xxx", 3, "abc", ""},
		{"xxy", 3, "ab", "c"},
		{"yxx", 3, "bc", "a"},
		{"yxxxy", 5, "bcd", "ea"},
		{"-xx", 3, "bc", "a"},
		{"x--", 3, "bc", "a"},
		{"xyz", 3, "", ""},
		{"xy", 2, "", ""},
		{"xy", 3, "", ""},     // one does not take part
		{"xx", 3, "ab", ""},   // one does not take part
		{"xxy", 5, "", ""},    // two do not take part
		{"x!", 2, "a", "b"},   // damage shows which one is wrong
		{"!x!", 3, "b", "ac"}, // so it does here
		{"!xy", 3, "", ""},
		{"!xx", 3, "bc", "a"},
		{"!", 1, "", ""},
		{"!!", 2, "", ""},
		{"xxyy", 4, "", ""},
		{"xxxy", 4, "abc", "d"},
		{"xxyX", 3, "abd", "c"},
		{"xxyYYY", 3, "ab", "cdef"},
		{"xxXY?", 3, "abc", "de"},
		{"xyX", 2, "", ""}, // a standby decides nothing
		{"xyXX", 3, "", ""},
		{"x!YY", 2, "a", "bcd"},
		{"xY", 1, "a", "b"},
		{"!X", 1, "", ""},
		{"x??", 1, "a", "bc"},
	} {
		v := decide(votesOf(c.votes), c.voters)
		wrong := nodesOf(v.wrong)
		if nodesOf(v.right) != c.right || len(wrong) != len(c.wrong) || strings.Trim(wrong, c.wrong) != "" {
			t.Errorf("%s of %d voters: %q is right and %q wrong; want %q and %q", c.votes, c.voters, nodesOf(v.right), wrong, c.right, c.wrong)
		}
		for _, of := range votesOf(c.votes) {
			if allowed, want := v.allows(of.node), c.right == "" || strings.Contains(c.right, of.node); allowed != want {
				t.Errorf("%s of %d voters: copying %s is allowed: %t", c.votes, c.voters, of.node, allowed)
			}
		}
	}
}
