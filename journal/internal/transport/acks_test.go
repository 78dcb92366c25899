package transport

import (
	"testing"

	"github.com/hashicorp/raft"
)

func TestAcks_NeedMajorityOfVoters(t *testing.T) {
	voter := func(id raft.ServerID) raft.Server { return raft.Server{ID: id} }
	learner := raft.Server{ID: "learner", Suffrage: raft.Nonvoter}
	const term = 7
	for name, test := range map[string]struct {
		servers []raft.Server
		acked   []raft.ServerID
		want    bool
	}{
		"alone":                        {[]raft.Server{voter("a")}, nil, true},
		"alone with a learner":         {[]raft.Server{voter("a"), learner}, nil, true},
		"one of three":                 {[]raft.Server{voter("a"), voter("b"), voter("c")}, nil, false},
		"two of three":                 {[]raft.Server{voter("a"), voter("b"), voter("c")}, []raft.ServerID{"c"}, true},
		"one of two":                   {[]raft.Server{voter("a"), voter("b")}, nil, false},
		"one of three and a learner":   {[]raft.Server{voter("a"), voter("b"), voter("c"), learner}, []raft.ServerID{"learner"}, false},
		"a leader that has no vote":    {[]raft.Server{voter("b"), voter("c")}, []raft.ServerID{"b"}, false},
		"all others, without its vote": {[]raft.Server{voter("b"), voter("c")}, []raft.ServerID{"b", "c"}, true},
	} {
		a := NewAcks()
		since := a.Next()
		for _, id := range test.acked {
			a.record(id, Ack{started: a.Next(), Term: term})
		}
		if got := a.HasQuorum(test.servers, "a", term, since); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
		if len(test.acked) > 0 && a.HasQuorum(test.servers, "a", term+1, since) {
			t.Errorf("%s: acknowledged in another term", name)
		}
		if len(test.acked) > 0 && a.HasQuorum(test.servers, "a", term, a.Next()) {
			t.Errorf("%s: acknowledged before it began", name)
		}
	}
}
