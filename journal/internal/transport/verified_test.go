package transport

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
)

// Entries of an earlier leader may follow in the log of a follower after those that a request
// names. They are not committed, whatever the commit index of the leader is.
func TestVerified_RaftCommitsOnlyComparedEntries(t *testing.T) {
	network := networktest.NewMemory()
	a := openTransport(network, "a", 1)
	defer a.Close()
	streams := NewStreams(network.Listen("b"), "b", func() bool { return false })
	b := NewVerified(streams, func(string) bool { return true }, NewRejections(slog.New(slog.DiscardHandler)), hclog.NewNullLogger())
	defer b.Close()
	streams.Serve()
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = "b", hclog.NewNullLogger()
	config.HeartbeatTimeout, config.ElectionTimeout = time.Hour, time.Hour
	store := raft.NewInmemStore()
	servers := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}, {ID: "b", Address: "b"}}}
	snapshots := raft.NewInmemSnapshotStore()
	if err := raft.BootstrapCluster(config, store, store, snapshots, b, servers); err != nil {
		t.Fatal(err)
	}
	follower, err := raft.NewRaft(config, &raft.MockFSM{}, store, store, snapshots, b)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = follower.Shutdown().Error() }()

	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
	send := func(term, committed, last uint64) {
		t.Helper()
		request := &raft.AppendEntriesRequest{RPCHeader: header, Term: term, PrevLogEntry: 1, PrevLogTerm: 1, LeaderCommitIndex: committed}
		for index := uint64(2); index <= last; index++ {
			request.Entries = append(request.Entries, &raft.Log{Index: index, Term: 1, Type: raft.LogNoop})
		}
		var response raft.AppendEntriesResponse
		if err := a.AppendEntries("b", "b", request, &response); err != nil || !response.Success {
			t.Fatalf("%+v, %v", response, err)
		}
	}
	send(1, 1, 6)
	send(2, 5, 3) // entries 4 and 5 of the leader are of term 2
	if got := follower.CommitIndex(); got != 3 {
		t.Errorf("entries up to %d are committed", got)
	}
}
