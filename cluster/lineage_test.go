package cluster

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A remote client states the lineage that it has seen, follows the cluster to later ones, forgets
// what it has seen of the journals before, and never goes back.
func TestLineage_RemoteClientFollows(t *testing.T) {
	r := &remoteTransport{
		config:     DialConfig{Logger: slog.New(slog.DiscardHandler)},
		partitions: []*remotePartition{newRemotePartition("n1"), newRemotePartition("n1")},
	}
	var answer *clusterpb.Response
	var sent *clusterpb.Request
	r.callNode = func(_ context.Context, _ string, request *clusterpb.Request) *clusterpb.Response {
		sent = request
		return answer
	}
	members := func(ids ...string) *clusterpb.Response {
		result := new(clusterpb.MembersResult)
		for _, id := range ids {
			result.Lineages = append(result.Lineages, &journalpb.Lineage{Id: id})
		}
		return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
	}
	read := func() *clusterpb.Request {
		return &clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	}
	expect := func(what, lineage string, refused bool) {
		t.Helper()
		response := r.send(t.Context(), "n1", membersRequest())
		if got := response.GetFailure().GetCode() == wire.CodeOtherLineage; got != refused || r.seenLineage() != lineage {
			t.Fatalf("%s: refused %t, want %t; the client has seen %q, want %q", what, got, refused, r.seenLineage(), lineage)
		}
		if refused && !errors.Is(fromFailure(response.Failure), journal.ErrOtherLineage) {
			t.Fatalf("%s: %v", what, fromFailure(response.Failure))
		}
	}
	answer = members()
	expect("of a cluster as it was founded", "", false)
	r.send(t.Context(), "n1", read())
	if sent.Lineage != "" || sent.Protocol != protocolVersion {
		t.Errorf("before the first lineage: %v", sent)
	}
	for _, g := range r.partitions {
		g.seenIndex.Advance(100)
		g.reportedIndex.Advance(100)
	}
	answer = members("a", "b")
	expect("of a restored cluster", "b", false)
	for _, g := range r.partitions {
		if g.seenIndex.Load() != 0 || g.reportedIndex.Load() != 0 {
			t.Error("indexes of the journals before are kept")
		}
	}
	r.handleResponse(r.partitions[0], &clusterpb.Request{}, &clusterpb.Response{AppliedIndex: 90}, &r.anyNodeAddress, "n1", "")
	if r.partitions[0].seenIndex.Load() != 0 {
		t.Error("an answer of the earlier lineage counts")
	}
	request := read()
	r.send(t.Context(), "n1", request)
	if request.Lineage != "" || !proto.Equal(request, read()) || sent.Instance != "i" || sent.GetGet() == nil {
		t.Errorf("the caller's request is %v after %v was sent", request, sent)
	}
	if sent.Lineage != "b" || sent.Protocol != protocolVersion+1 {
		t.Errorf("a request states %v, which earlier builds accept", sent)
	}
	for _, earlier := range []*clusterpb.Response{members(), members("a"), members("a", "other"), members("other")} {
		answer = earlier
		expect("of another lineage", "b", true)
	}
	answer = &clusterpb.Response{
		Failure:  &clusterpb.Failure{Code: wire.CodeOtherLineage, NotExecuted: true},
		Lineages: []string{"", "a", "b", "c"},
	}
	if response := r.send(t.Context(), "n1", read()); !wire.IsRetryable(response.Failure) || r.seenLineage() != "c" {
		t.Errorf("a rejection by a later lineage: %v, the client has seen %q", response, r.seenLineage())
	}
	answer = &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeOtherLineage, NotExecuted: true}, Lineages: []string{"", "a", "b"}}
	r.send(t.Context(), "n1", read())
	if r.seenLineage() != "c" {
		t.Error("a rejection by an earlier lineage changes the client's")
	}
}

// A node rejects callers that have seen another lineage, but tells them its members.
func TestLineage_NodeRejectsCallers(t *testing.T) {
	node := startSingleNode(t)
	ask := func(request *clusterpb.Request) *clusterpb.Response {
		request.Protocol = protocolVersion
		return addLineages(node, request, node.dispatcher.serve(t.Context(), request))
	}
	get := &clusterpb.Request{Instance: "i", Lineage: "other", Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	if response := ask(get); response.GetFailure().GetCode() != wire.CodeOtherLineage || !response.Failure.NotExecuted || len(response.Lineages) != 1 {
		t.Errorf("a read: %v", response)
	}
	all := membersRequest()
	all.Lineage = "other"
	if response := ask(all); response.GetMembers() == nil {
		t.Errorf("the members: %v", response)
	}
	join := &clusterpb.JoinRequest{Node: "n2", Address: "127.0.0.1:1", Partitions: testPartitions, Cluster: node.config.ClusterID, Lineages: []string{"x", "y"}}
	if response := ask(&clusterpb.Request{Call: &clusterpb.Request_Join{Join: join}}); response.GetFailure().GetCode() != wire.CodeOtherLineage {
		t.Errorf("a node of another lineage that joins: %v", response)
	}
	if err := node.Err(); err != nil {
		t.Fatalf("the node of a lineage that does not continue this one has stopped it: %v", err)
	}
	join.Lineages = []string{"", "y"}
	ask(&clusterpb.Request{Call: &clusterpb.Request_Join{Join: join}})
	if err := node.Err(); !errors.Is(err, journal.ErrOtherLineage) {
		t.Errorf("a node of a later lineage joins, and this one goes on: %v", err)
	}
	if response := ask(membersRequest()); response.GetFailure().GetCode() != wire.CodeOtherLineage {
		t.Errorf("the members, of a node that has stopped: %v", response)
	}
}
