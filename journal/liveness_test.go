package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// unreachableTransport drops everything while it is deaf, and records what is sent.
type unreachableTransport struct {
	transport.Transport
	mu       sync.Mutex
	down     bool
	response raft.AppendEntriesResponse
	sent     []raft.AppendEntriesRequest // without heartbeats
}

var errNoReply = errors.New("nobody answers")

func (d *unreachableTransport) setDown(isDown bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = isDown
}

func (d *unreachableTransport) sentMessages() []raft.AppendEntriesRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sent
}

func (d *unreachableTransport) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if args.PrevLogEntry > 0 {
		d.sent = append(d.sent, *args)
	}
	if d.down {
		return errNoReply
	}
	*resp = d.response
	return nil
}

func (d *unreachableTransport) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return errNoReply
	}
	return nil
}

// sendToUnreachable makes a leader send entries and a snapshot to b, which it cannot reach.
func sendToUnreachable(d *unreachableTransport, isReplicating func() bool) (t *transport.Acked, sent, installed chan error, got *raft.AppendEntriesResponse) {
	t = &transport.Acked{
		Transport: d, Acks: transport.NewAcks(), Liveness: transport.NewLiveness(),
		IsReplicatingTo: func(raft.Server, uint64) bool { return isReplicating() },
	}
	sent, installed, got = make(chan error, 1), make(chan error, 1), new(raft.AppendEntriesResponse)
	go func() {
		sent <- t.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{
			Term: 7, PrevLogEntry: 100, PrevLogTerm: 6, LeaderCommitIndex: 100, Entries: []*raft.Log{{Index: 101}, {Index: 102}},
		}, got)
	}()
	go func() {
		installed <- t.InstallSnapshot("b", "b:1", &raft.InstallSnapshotRequest{Term: 7}, new(raft.InstallSnapshotResponse), nil)
	}()
	return t, sent, installed, got
}

func returnTrue() bool { return true }

func TestLiveness_ResendsAfterHeartbeatResponse(t *testing.T) {
	for name, answer := range map[string]raft.AppendEntriesResponse{
		"yes":                 {Term: 7, Success: true, LastLog: 104},
		"no, of a later term": {Term: 8, LastLog: 104},
	} {
		t.Run(name, func(t *testing.T) {
			inSynctest(t, func(t *testing.T) {
				d := &unreachableTransport{down: true, response: answer}
				transport, sent, installed, got := sendToUnreachable(d, returnTrue)
				heartbeat := func() error {
					return transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse))
				}
				for range 600 { // ten minutes
					time.Sleep(time.Second)
					if err := heartbeat(); err != errNoReply {
						t.Fatalf("an unanswered heartbeat: %v", err)
					}
				}
				if n := len(d.sentMessages()); n != 1 || len(sent) > 0 || len(installed) > 0 {
					t.Fatalf("sent %d times; failed %d and %d times", n, len(sent), len(installed))
				}
				d.setDown(false)
				time.Sleep(time.Second)
				if n := len(d.sentMessages()); n != 1 {
					t.Fatalf("sent %d times before a heartbeat was answered", n)
				}
				if err := heartbeat(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(pollInterval)
				synctest.Wait()
				if len(sent) == 0 || len(installed) == 0 {
					t.Fatalf("after a heartbeat: %d and %d have returned", len(sent), len(installed))
				}
				if err := <-sent; err != nil || got.Term != answer.Term || got.Success != answer.Success || got.LastLog != answer.LastLog {
					t.Errorf("answered %+v, %v", got, err)
				}
				if err := <-installed; err != errNoReply {
					t.Errorf("the snapshot: %v", err)
				}
			})
		})
	}
}

// A probe asks how much of the log a follower has. It carries no entries, and its commit index is
// not beyond the entry that it names, because the follower may have other entries after that.
func TestLiveness_ResendCarriesNoCommit(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		d := &unreachableTransport{down: true, response: raft.AppendEntriesResponse{Term: 7, Success: true}}
		transport, sent, installed, _ := sendToUnreachable(d, returnTrue)
		synctest.Wait()
		d.setDown(false)
		if err := transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-sent, ignoreNoReply(<-installed)); err != nil {
			t.Fatal(err)
		}
		all := d.sentMessages()
		again := all[len(all)-1]
		if len(all) != 2 || len(again.Entries) != 0 || again.PrevLogEntry != 100 || again.PrevLogTerm != 6 || again.Term != 7 {
			t.Errorf("sent %d times, at last %+v", len(all), again)
		}
		if again.LeaderCommitIndex != 0 {
			t.Errorf("the first message says that %d was committed", again.LeaderCommitIndex)
		}
	})
}

func ignoreNoReply(err error) error {
	if err == errNoReply {
		return nil
	}
	return err
}

func TestLiveness_OldLeaderDoesNotResend(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		var over sync.Map
		d := &unreachableTransport{down: true}
		_, sent, installed, _ := sendToUnreachable(d, func() bool { _, isOver := over.Load("over"); return !isOver })
		time.Sleep(time.Minute)
		over.Store("over", true)
		time.Sleep(pollInterval)
		synctest.Wait()
		if len(sent) == 0 || len(installed) == 0 {
			t.Fatal("the callers still wait")
		}
		if err := errors.Join(ignoreNoReply(<-sent), ignoreNoReply(<-installed)); err != nil {
			t.Error(err)
		}
		if n := len(d.sentMessages()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// isBehind reports whether a node lacks anything that another has.
func (g *testCluster) isBehind(node, behind int) bool {
	return g.nodes[node].AppliedIndex() < g.nodes[behind].lastLocalIndex()
}

// awaitCatchUp waits until a follower has what the leader had, and returns how long that took.
func (g *testCluster) awaitCatchUp(t *testing.T, follower, leader int) time.Duration {
	t.Helper()
	started := time.Now()
	waittest.Eventually(t, "the follower has what the leader has", func() bool { return !g.isBehind(follower, leader) })
	return time.Since(started)
}

// appendFor appends once a second.
func (g *testCluster) appendFor(t *testing.T, leader, seconds int) {
	t.Helper()
	j := g.nodes[leader]
	for range seconds {
		if err := appendNext(t, j, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

// awaitNoWaiters waits until nobody waits for a sign of life.
func awaitNoWaiters(t *testing.T) {
	t.Helper()
	waittest.Eventually(t, "nobody waits for a sign of life", func() bool { return !hasWaiters() })
}

func hasWaiters() bool {
	return slices.ContainsFunc(journalStacks(), func(stack string) bool { return strings.Contains(stack, "awaitContact") })
}

// reconnectTimeout is how long tests allow for reaching a follower that is back: a failed
// connection attempt takes a second, and the next heartbeats come within another.
const reconnectTimeout = 2 * time.Second

func TestLiveness_ReconnectedFollowerGetsEntriesAtOnce(t *testing.T) {
	for _, seconds := range []int{20, 60} {
		t.Run(fmt.Sprint(seconds), func(t *testing.T) {
			inSynctest(t, func(t *testing.T) {
				g, network := newFlakyCluster(t)
				leader := g.leader(t)
				follower := (leader + 1) % 3
				network.isolate(g.peers[follower].Address)
				g.appendFor(t, leader, seconds)
				if !g.isBehind(follower, leader) {
					t.Fatal("it is not isolated")
				}
				network.reconnect(g.peers[follower].Address)
				if elapsed := g.awaitCatchUp(t, follower, leader); elapsed > reconnectTimeout {
					t.Errorf("it took %v", elapsed)
				}
			})
		})
	}
}

func TestLiveness_ResumedFollowerGetsEntriesAtOnce(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		resume := network.pause(g.peers[follower].Address)
		g.appendFor(t, leader, 60)
		if !g.isBehind(follower, leader) {
			t.Fatal("it has not stopped")
		}
		resume()
		if elapsed := g.awaitCatchUp(t, follower, leader); elapsed > reconnectTimeout {
			t.Errorf("it took %v", elapsed)
		}
	})
}

// The reader of a connection may be stuck for ever while its node is well.
func TestLiveness_StuckConnectionIsReplaced(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		mustAppend(t, g.nodes[leader], newStartAppend(g.nodes[leader].Epoch(), "a"))
		g.awaitCatchUp(t, follower, leader)
		stuck := network.stall(g.peers[follower].Address)
		mustAppend(t, g.nodes[leader], newStartAppend(g.nodes[leader].Epoch(), "b"))
		if elapsed := g.awaitCatchUp(t, follower, leader); elapsed > transport.IOTimeout+reconnectTimeout {
			t.Errorf("it took %v", elapsed)
		}
		waittest.Eventually(t, "the leader closes the stuck connection", func() bool {
			return !slices.ContainsFunc(stuck, func(c *flakyConn) bool { return !c.isClosedByPeer() })
		})
	})
}

// Several connections to a node are pooled, and none returns anything. One message finds that out
// for all.
func TestLiveness_OneMessageFindsAllStuckConnections(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		network := newFlakyNetwork()
		a, b := openTransport(network, "a", 1), openTransport(network, "b", transport.PooledConnsMax)
		query := func() error {
			header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
			return a.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: 2}, new(raft.RequestVoteResponse))
		}
		queryAll := func() (failed int) {
			results := make(chan error, transport.PooledConnsMax)
			for range transport.PooledConnsMax {
				go func() { results <- query() }()
			}
			for range transport.PooledConnsMax {
				if <-results != nil {
					failed++
				}
			}
			return failed
		}
		if failed := queryAll(); failed > 0 {
			t.Fatalf("%d were not answered", failed)
		}
		time.Sleep(transport.IOTimeout)
		network.stall("b")
		if err := query(); err == nil {
			t.Error("a stuck connection carried an answer")
		}
		started := time.Now()
		if failed := queryAll(); failed > 0 || time.Since(started) > 0 {
			t.Errorf("%d of the next were not answered, after %v", failed, time.Since(started))
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestStream_WriteDeadlineIsBounded(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		network := newMemoryNetwork()
		there := network.listen("there")
		streams := transport.NewStreams(network.listen("here"), "here", func() bool { return false })
		for allowed, want := range map[time.Duration]time.Duration{24 * time.Hour: transport.IOTimeout, time.Second: time.Second} {
			go there.Accept() // accept, and never read
			conn, err := streams.Dial("there", transport.IOTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(allowed)); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			if _, err := conn.Write([]byte("a snapshot")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(started) != want {
				t.Errorf("deadline %v, after %v: %v", allowed, time.Since(started), err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(streams.Close(), there.Close()); err != nil {
			t.Error(err)
		}
	})
}

// newRandomStartAppend is an append that begins an instance with 20 KiB of random data.
func newRandomStartAppend(epoch uint64, id string) *journalpb.Append {
	a := newStartAppend(epoch, id)
	payload := make([]byte, 20<<10)
	_, _ = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%32s", id)))).Read(payload)
	a.Segments[0].Events = append(a.Segments[0].Events, newAppend(epoch, "", 3, &journalpb.Event{
		Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: &journalpb.Payload{Data: payload}}},
	}).Segments[0].Events...)
	return a
}

func TestLiveness_StuckSnapshotIsResent(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		j, follower := g.nodes[leader], (leader+1)%3
		g.stop(t, follower)
		for i := range 100 { // two megabytes, incompressible
			mustAppend(t, j, newRandomStartAppend(j.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		snapshotAndTruncate(t, j)
		network.stallAfter(g.peers[follower].Address, 1<<20)
		g.start(t, follower, nil, nil)
		if elapsed := g.awaitCatchUp(t, follower, leader); elapsed < transport.IOTimeout || elapsed > transport.IOTimeout+reconnectTimeout {
			t.Errorf("it took %v", elapsed)
		}
	})
}

// A leader that was cut off has no reason to wait for others any more.
func TestLiveness_IsolatedLeaderStopsWaiting(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		network.isolate(g.peers[leader].Address)
		waittest.Eventually(t, "it steps down", func() bool { return !g.nodes[leader].IsLeader() })
		awaitNoWaiters(t)
		started := time.Now()
		g.stop(t, leader)
		if elapsed := time.Since(started); elapsed > transport.IOTimeout {
			t.Errorf("closing took %v", elapsed)
		}
	})
}

func TestLiveness_StopsWaitingForRemovedMember(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		j, gone := g.nodes[leader], (leader+1)%3
		network.isolate(g.peers[gone].Address)
		g.appendFor(t, leader, 20)
		if err := j.TransferLeadershipTo(t.Context(), g.peers[gone].Node); err == nil {
			t.Error("it leads")
		}
		waittest.Eventually(t, "it leads as before", j.IsLeader)
		waittest.Eventually(t, "it waits again, after the transfer", hasWaiters)
		waittest.Eventually(t, "it is removed", func() bool { return j.RemoveMember(t.Context(), g.peers[gone].Node) == nil })
		awaitNoWaiters(t)
	})
}

func TestMoveMember_FollowerGetsEntries(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g, _ := newFlakyCluster(t)
		leader := g.leader(t)
		j, moved := g.nodes[leader], (leader+1)%3
		member := Peer{Node: g.peers[moved].Node, Address: "elsewhere", Identity: g.nodes[moved].Identity()}
		g.stop(t, moved)
		g.appendFor(t, leader, 20)
		g.peers[moved].Address = member.Address
		if err := j.MoveMember(t.Context(), member); err != nil {
			t.Fatal(err)
		}
		g.start(t, moved, nil, nil)
		g.awaitEqualStates(t)
	})
}

// Transferring leadership to an unreachable node fails, as often as it is tried, and then
// everything continues.
func TestTransferLeadership_ToUnreachableNodeFails(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		j, unreachable := g.nodes[leader], (leader+1)%3
		epoch := j.Epoch()
		g.stop(t, unreachable)
		for i := range 3 {
			mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
			if err := j.TransferLeadershipTo(t.Context(), g.peers[unreachable].Node); err == nil {
				t.Error("transferred")
			}
			waittest.Eventually(t, "appends are accepted again", func() bool {
				return proposeAppend(t, j, newStartAppend(epoch, fmt.Sprintf("then-%d", i))) == nil
			})
		}
	})
}

// A restart is not worth a log line. A member that stays away, or a leader that is not found, is
// logged once, with the reason, and once more when it is back.
func TestLogging_ReportsMissingMemberOnce(t *testing.T) {
	var text bytes.Buffer
	w := &contactMonitor{
		logger: slog.New(slog.NewTextHandler(&text, nil)), loggedMissing: map[string]bool{},
		lastFailure: func(node string) error { return map[string]error{"b": errors.New("no route")}[node] },
	}
	now := time.Unix(1000, 0)
	answered := true
	checkMembers := func(leader string, sinceContact time.Duration, known bool) string {
		text.Reset()
		now = now.Add(contactInterval)
		w.checkMembers(now, leader, []Member{{Node: "a", ContactKnown: known}, {
			Node: "b", ContactKnown: known, BehindKnown: known && answered, SinceContact: sinceContact, Unreachable: sinceContact > time.Second,
		}})
		return text.String()
	}
	for i, step := range []struct {
		leader       string
		sinceContact time.Duration
		known        bool
		want         string
	}{
		{"a", 0, true, ""},
		{"a", contactLogAfter - 1, true, ""}, // a restart
		{"a", contactLogAfter, true, "level=WARN msg=\"member does not answer"},
		{"a", contactLogAfter + time.Second, true, ""},
		{"a", 0, true, "level=INFO msg=\"member answers again\" member=b"},
		{"a", contactLogAfter, true, "no route"},
		{"b", 0, false, ""}, // it leads itself now
	} {
		got := checkMembers(step.leader, step.sinceContact, step.known)
		if step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("step %d: %q; want %q", i, got, step.want)
		}
	}
	// A new leadership begins: the member has not been silent for long, and has not answered.
	checkMembers("a", contactLogAfter, true)
	answered = false
	for _, sinceContact := range []time.Duration{0, contactLogAfter / 2, contactLogAfter + time.Second} {
		if got := checkMembers("a", sinceContact, true); got != "" {
			t.Errorf("member without an answer in the new leadership for %s: %s", sinceContact, got)
		}
	}
	answered = true
	if got := checkMembers("a", 0, true); !strings.Contains(got, "member answers again") {
		t.Errorf("once it has answered: %q", got)
	}
	for i := range int(contactLogAfter / contactInterval) {
		if got := checkMembers("", 0, false); got != "" {
			t.Errorf("after %d s without a leader: %s", i, got)
		}
	}
	if got := checkMembers("", 0, false); !strings.Contains(got, "level=WARN msg=\"no leader known") || !strings.Contains(got, "b.error=\"no route\"") {
		t.Errorf("without a leader: %q", got)
	}
	if got := checkMembers("", 0, false); got != "" {
		t.Errorf("it is logged twice: %s", got)
	}
	if got := checkMembers("b", 0, false); !strings.Contains(got, "leader known again") {
		t.Errorf("with a leader again: %q", got)
	}
}

// Log lines of the library that a restart causes are suppressed; those about disks are not.
func TestLogging_RaftContactMessagesAreDebug(t *testing.T) {
	var text bytes.Buffer
	logger := raftnode.NewLogger(slog.New(slog.NewTextHandler(&text, nil)), false)
	logger.Error("failed to heartbeat to", "peer", "b", "error", errors.New("refused"))
	logger.Error("failed to decode incoming command", "error", fmt.Errorf("read: %w", net.ErrClosed))
	logger.Warn("heartbeat timeout reached, starting election")
	if text.Len() > 0 {
		t.Errorf("shown: %s", text.String())
	}
	logger.Error("failed to decode incoming command", "error", errors.New("no message"))
	logger.Error("failed to append to logs", "error", errors.New("no space"))
	logger.Warn("failed to restore snapshot")
	if got := text.String(); strings.Count(got, "level=ERROR") != 2 || strings.Count(got, "level=WARN") != 1 {
		t.Errorf("shown: %s", got)
	}
}
