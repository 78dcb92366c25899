package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// knows reports whether a remote client has an address.
func knows(client *Client, address string) bool {
	r := client.access.(*remote)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.addresses, address)
}

// TestARemoteClientOutlivesAllNodesThatItHasKnown replaces all nodes of a cluster, twice. The
// client makes no call meanwhile that could tell it of that.
func TestARemoteClientOutlivesAllNodesThatItHasKnown(t *testing.T) {
	noGoroutinesLeft(t)
	f := newFleet(t, 3)
	ctx := testContext(t)
	client := dialNodes(t, DialConfig{refreshEvery: 10 * time.Millisecond}, f.all()...)
	if got, err := Call(ctx, client, doubled, "before", 21); err != nil || got != 42 {
		t.Fatal(got, err)
	}
	for replaced := range 6 {
		old, id := fmt.Sprintf("n%d", replaced+1), fmt.Sprintf("n%d", replaced+4)
		joined := f.start(f.joining(id))
		eventually(t, id+" has a vote", func() bool {
			self := joined.self()
			return self != nil && self.Voter
		})
		f.remove(old)
		f.mu.Lock()
		leaving := f.nodes[old]
		f.mu.Unlock()
		if err := leaving.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		f.forget(leaving)
		eventually(t, "the client has heard of "+id, func() bool { return knows(client, joined.config.Listen) })
	}
	if got, err := Call(ctx, client, doubled, "after", 21); err != nil || got != 42 {
		t.Errorf("after all nodes were replaced: %d, %v", got, err)
	}
}

// A node that was stopped knows the members of then. What it tells takes nothing away that
// the client knows.
func TestARemoteClientKeepsWhatItKnowsFromANodeThatIsBehind(t *testing.T) {
	r := &remote{config: DialConfig{Addresses: []string{"seed"}}, groups: []*aimedGroup{newAimedGroup("seed")}, addresses: []string{"seed"}, nearest: "seed"}
	tell := func(index uint64, leader string, addresses ...string) {
		result := &clusterpb.MembersResult{LastIndex: index}
		for _, address := range addresses {
			result.Members = append(result.Members, &clusterpb.Member{Node: "at " + address, Address: address, Leader: address == leader})
		}
		r.learn(&clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}})
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(r.addresses, want) {
			t.Errorf("%s: %v; want %v", what, r.addresses, want)
		}
	}
	tell(100, "d", "d", "e")
	expect("members of now", "d", "e", "seed")
	tell(10, "a", "a", "b")
	expect("one that is behind", "a", "b", "d", "e", "seed")
	if r.nodes["d"] != "at d" {
		t.Errorf("who is at d: %q", r.nodes["d"])
	}
	tell(101, "d", "d", "e")
	tell(200, "", "a", "b")
	expect("one that knows of no leader", "a", "b", "d", "e", "seed")
	tell(201, "f", "e", "f")
	expect("members of now again", "e", "f", "seed")
}

// A node that is being added knows no more of the members than its log so far.
func TestANodeThatIsNoMemberYetTellsNoMembers(t *testing.T) {
	f := newFleet(t, 3)
	node := f.start(f.joining("n4"))
	eventually(t, "it knows the members", node.knowsMembers)
	request := membersRequest()
	request.Protocol = node.config.protocol
	if response := node.serve(testContext(t), request); response.GetMembers() == nil {
		t.Errorf("a member tells %v", response)
	}
	// As while it reads a log of before it was added.
	outsider := &Node{config: node.config}
	outsider.config.NodeID = "not added"
	for _, g := range node.groups {
		outsider.groups = append(outsider.groups, &group{Node: outsider, number: g.number, journal: g.journal})
	}
	if response, err := outsider.knownMembers(testContext(t), request); response != nil || err == nil || !repeatable(failure(err)) {
		t.Errorf("a node that is no member tells %v, %v; want that another is to be asked", response, err)
	}
}
