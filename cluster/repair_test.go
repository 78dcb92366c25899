package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// plainNetwork is a journal.Network on loopback.
type plainNetwork struct{ net.Listener }

func (plainNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// prepareDirs makes directories for the nodes of a cluster with instances, snapshots, and logs that
// begin after them.
func prepareDirs(t *testing.T, clusterID string, peers []Peer) (dirs []string) {
	t.Helper()
	var members []journal.Peer
	for _, peer := range peers {
		members = append(members, journal.Peer{Node: peer.NodeID, Address: peer.Address})
	}
	var journals []*journal.Journal
	for _, m := range members {
		listener, err := net.Listen("tcp", m.Address)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, filepath.Join(t.TempDir(), m.Node))
		j, err := journal.Open(t.Context(), journal.Config{
			Node: m.Node, Cluster: clusterID, Address: m.Address, Peers: members, Dir: dirs[len(dirs)-1],
			Network: plainNetwork{listener}, Logger: testLogger(), StallLimit: time.Hour,
			HeartbeatTimeout: time.Second, ElectionTimeout: time.Second, LeaderLease: time.Second,
			SnapshotThreshold: 4, SnapshotInterval: 10 * time.Millisecond, TrailingLogs: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		journals = append(journals, j)
	}
	for i := range 30 {
		recordInstance(t, journals, fmt.Sprintf("i-%02d", i))
	}
	eventually(t, "every log begins behind a snapshot", func() bool {
		for _, j := range journals {
			if s := j.Stats(); s.Snapshots == 0 || uint64(s.LogEntries) >= j.AppliedIndex() {
				return false
			}
		}
		return true
	})
	for _, j := range journals {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// recordInstance starts an instance of an orchestration without code.
func recordInstance(t *testing.T, journals []*journal.Journal, id string) {
	t.Helper()
	event, err := proto.Marshal(&journalpb.Event{EventId: 1, Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "nobody's"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "an append", func() bool {
		for _, j := range journals {
			if !j.IsLeader() {
				continue
			}
			done := make(chan error, 1)
			j.Append(&journalpb.Append{Instance: id, Epoch: j.Epoch(), Segments: []*journalpb.Segment{
				{Execution: 1, FirstEventId: 1, Events: [][]byte{event}},
			}}, func(err error) { done <- err })
			// A conflict means that an earlier attempt was committed.
			var conflict *state.ConflictError
			err := <-done
			return err == nil || errors.As(err, &conflict)
		}
		return false
	})
}

// A node fetches what it has lost over Raft connections, so that it is accepted under its own ID.
func TestRepair_NodeFetchesLostStateOverTLS(t *testing.T) {
	t.Parallel()
	const lost = 2 // the last one to be started
	var dirs []string
	nodes, _ := startWithTLS(t, newAuthority(t), func(i int, config *Config) {
		if i == 0 {
			dirs = prepareDirs(t, config.withDefaults().ClusterID, config.Peers)
			manifests, err := filepath.Glob(filepath.Join(dirs[lost], "snapshots", "*", "manifest"))
			if err != nil || len(manifests) == 0 {
				t.Fatalf("%d snapshots, error %v", len(manifests), err)
			}
			for _, path := range manifests {
				if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.RemoveAll(filepath.Join(dirs[lost], "state")); err != nil {
				t.Fatal(err)
			}
		}
		config.Dir, config.Partitions = dirs[i], 1
	})
	if fetches := nodes[lost].partitions[0].journal.Stats().StateFetches; fetches != 1 {
		t.Errorf("it has fetched %d snapshots", fetches)
	}
	expectSameHistories(t, nodes)
	if _, ok := nodes[lost].partitionOf("i-07").journal.Instance("i-07"); !ok {
		t.Error("it does not have what was recorded")
	}
	if result, err := Call(testContext(t), nodes[lost].Client(), doubled, "after", 21); err != nil || result != 42 {
		t.Errorf("%v, error %v", result, err)
	}
}
