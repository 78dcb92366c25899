package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// TestRemoteClient_SurvivesReplacementOfAllNodes replaces all nodes of a cluster, twice, each as
// soon as all clients know the new one. Some clients make no call that could return the members.
func TestRemoteClient_SurvivesReplacementOfAllNodes(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	ctx := testContext(t)
	clients := map[string]*Client{"idle-one-address": dialNodes(t, DialConfig{}, f.all()[0])}
	for _, name := range []string{"idle", "busy", "asks-members"} {
		clients[name] = dialNodes(t, DialConfig{}, f.all()...)
	}
	for name, client := range clients {
		if got, err := Call(ctx, client, doubled, "before-"+name, 21); err != nil || got != 42 {
			t.Fatal(name, got, err)
		}
	}
	end := callRepeatedly(t, func(ctx context.Context, i int) {
		_, _ = Call(ctx, clients["busy"], doubled, fmt.Sprintf("busy-%d", i), 21)
	}, func(ctx context.Context, _ int) { _, _ = clients["asks-members"].Members(ctx) })
	for replaced := range 6 {
		old, id := fmt.Sprintf("n%d", replaced+1), fmt.Sprintf("n%d", replaced+4)
		joined := f.start(f.joiningConfig(id))
		eventually(t, id+" has a vote", func() bool {
			self := joined.self()
			return self != nil && self.Voter && joined.Health().Ready() == nil
		})
		for name, client := range clients {
			eventually(t, "client "+name+" has heard of "+id, func() bool {
				r := client.transport.(*remoteTransport)
				r.mu.Lock()
				defer r.mu.Unlock()
				return slices.Contains(r.addresses, joined.config.address())
			})
		}
		f.remove(old)
		f.mu.Lock()
		leaving := f.nodes[old]
		f.mu.Unlock()
		if err := leaving.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		f.forget(leaving)
		f.leader()
	}
	end()
	for name, client := range clients {
		if got, err := Call(ctx, client, doubled, "after-"+name, 21); err != nil || got != 42 {
			t.Errorf("client %s: after all nodes were replaced: %d, %v", name, got, err)
		}
	}
}

// callRepeatedly repeats each call until end is called, which waits for the last ones.
func callRepeatedly(t *testing.T, calls ...func(ctx context.Context, i int)) (end func()) {
	t.Helper()
	var calling sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, call := range calls {
		calling.Go(func() {
			for i := 0; admission.Sleep(ctx, nil, 20*time.Millisecond) == nil; i++ {
				limited, done := context.WithTimeout(ctx, 2*time.Second)
				call(limited, i)
				done()
			}
		})
	}
	return func() { cancel(); calling.Wait() }
}

// A stopped node knows only the members of that time. Its answer removes nothing that the client
// knows.
func TestRemoteClient_IgnoresOutdatedMembers(t *testing.T) {
	r := &remoteTransport{config: DialConfig{Addresses: []string{"seed"}}, partitions: []*remotePartition{newRemotePartition("seed")}, addresses: []string{"seed"}, anyNodeAddress: "seed"}
	tell := func(index uint64, leader string, addresses ...string) {
		result := &clusterpb.MembersResult{LastIndex: index}
		for _, address := range addresses {
			result.Members = append(result.Members, &clusterpb.Member{Node: "at " + address, Address: address, Leader: address == leader})
		}
		r.recordMembers(&clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}})
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
		t.Errorf("node at d: %q", r.nodes["d"])
	}
	tell(101, "d", "d", "e")
	tell(200, "", "a", "b")
	expect("one that knows no leader", "a", "b", "d", "e", "seed")
	tell(201, "f", "e", "f")
	expect("members of now again", "e", "f", "seed")
	// A node's members are ranked by its configuration index, however long its log is.
	configured := func(index uint64, address string) {
		r.recordMembers(&clusterpb.Response{Result: &clusterpb.Response_Members{Members: &clusterpb.MembersResult{
			LastIndex: 1000 - index, ConfigurationIndexes: []uint64{index},
			Members: []*clusterpb.Member{{Node: "at " + address, Address: address, Leader: true}},
		}}})
	}
	configured(50, "g")
	expect("a configuration", "g", "seed")
	configured(40, "a")
	expect("an older configuration", "a", "g", "seed")
}

// A joining node knows only the members in its log so far.
func TestMembers_JoiningNodeReportsNone(t *testing.T) {
	f := newTestCluster(t, 3)
	node := f.start(f.joiningConfig("n4"))
	eventually(t, "it knows the members", node.replicaCalls.knowsMembers)
	request := membersRequest()
	request.Protocol = node.config.protocol
	if response := node.dispatcher.serve(testContext(t), request); response.GetMembers() == nil {
		t.Errorf("a member answered %v", response)
	}
	// As while it reads a log from before it was added.
	nonMember := &Node{config: node.config}
	nonMember.attachParts()
	nonMember.config.NodeID = "not added"
	for _, g := range node.partitions {
		part := &partition{node: nonMember, number: g.number}
		part.setJournal(g.journal)
		nonMember.partitions = append(nonMember.partitions, part)
	}
	if response, err := nonMember.replicaCalls.knownMembers(testContext(t), request); response != nil || err == nil || !wire.IsRetryable(toFailure(err)) {
		t.Errorf("a non-member answered %v, %v; want an error that makes the client ask another node", response, err)
	}
}
