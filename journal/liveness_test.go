package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// isBehind reports whether a node lacks anything that another has.
func (tc *testCluster) isBehind(node, behind int) bool {
	return tc.nodes[node].AppliedIndex() < tc.nodes[behind].lastLocalIndex()
}

// awaitCatchUp waits until a follower has what the leader had, and returns how long that took.
func (tc *testCluster) awaitCatchUp(t *testing.T, follower, leader int) time.Duration {
	t.Helper()
	started := time.Now()
	waittest.Eventually(t, "the follower has what the leader has", func() bool { return !tc.isBehind(follower, leader) })
	return time.Since(started)
}

// appendFor appends once a second.
func (tc *testCluster) appendFor(t *testing.T, leader, seconds int) {
	t.Helper()
	j := tc.nodes[leader]
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
			waittest.InSynctest(t, func(t *testing.T) {
				g, network := newFlakyCluster(t)
				leader := g.leader(t)
				follower := (leader + 1) % 3
				network.Isolate(g.peers[follower].Address)
				g.appendFor(t, leader, seconds)
				if !g.isBehind(follower, leader) {
					t.Fatal("it is not isolated")
				}
				network.Reconnect(g.peers[follower].Address)
				if elapsed := g.awaitCatchUp(t, follower, leader); elapsed > reconnectTimeout {
					t.Errorf("it took %v", elapsed)
				}
			})
		})
	}
}

func TestLiveness_ResumedFollowerGetsEntriesAtOnce(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		resume := network.Pause(g.peers[follower].Address)
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
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		mustAppend(t, g.nodes[leader], newStartAppend(g.nodes[leader].Epoch(), "a"))
		g.awaitCatchUp(t, follower, leader)
		stuck := network.Stall(g.peers[follower].Address)
		mustAppend(t, g.nodes[leader], newStartAppend(g.nodes[leader].Epoch(), "b"))
		if elapsed := g.awaitCatchUp(t, follower, leader); elapsed > transport.IOTimeout+reconnectTimeout {
			t.Errorf("it took %v", elapsed)
		}
		waittest.Eventually(t, "the leader closes the stuck connection", func() bool {
			return !slices.ContainsFunc(stuck, func(c *networktest.FlakyConn) bool { return !c.IsClosedByPeer() })
		})
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
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		j, follower := g.nodes[leader], (leader+1)%3
		g.stop(t, follower)
		for i := range 100 { // two megabytes, incompressible
			mustAppend(t, j, newRandomStartAppend(j.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		snapshotAndTruncate(t, j)
		network.StallAfter(g.peers[follower].Address, 1<<20)
		g.start(t, follower, nil, nil)
		if elapsed := g.awaitCatchUp(t, follower, leader); elapsed < transport.IOTimeout || elapsed > transport.IOTimeout+reconnectTimeout {
			t.Errorf("it took %v", elapsed)
		}
	})
}

// A leader that was cut off has no reason to wait for others any more.
func TestLiveness_IsolatedLeaderStopsWaiting(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		network.Isolate(g.peers[leader].Address)
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
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		j, gone := g.nodes[leader], (leader+1)%3
		network.Isolate(g.peers[gone].Address)
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
	waittest.InSynctest(t, func(t *testing.T) {
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
	waittest.InSynctest(t, func(t *testing.T) {
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
	logger.Error("failed to heartbeat to", "peer", "b", "error", errors.New("rejected"))
	logger.Error("failed to decode incoming command", "error", fmt.Errorf("read: %w", net.ErrClosed))
	logger.Error("failed to decode incoming command", "error", &net.OpError{Op: "read", Err: syscall.ETIMEDOUT})
	logger.Error("failed to install snapshot", "peer", "b", "error", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	logger.Error("failed to get log", "index", 1, "error", raft.ErrLogNotFound)
	logger.Error("failed to take snapshot", "error", errors.New("cannot take snapshot now, wait until the configuration entry at 2 has been applied"))
	logger.Warn("heartbeat timeout reached, starting election")
	if text.Len() > 0 {
		t.Errorf("shown: %s", text.String())
	}
	logger.Error("failed to decode incoming command", "error", errors.New("no message"))
	logger.Error("failed to append to logs", "error", errors.New("no space"))
	logger.Error("failed to install snapshot", "peer", "b", "error", errors.New("no space"))
	logger.Error("failed to get log", "index", 1, "error", errors.New("damaged"))
	logger.Error("failed to take snapshot", "error", errors.New("no space"))
	logger.Warn("failed to restore snapshot")
	if got := text.String(); strings.Count(got, "level=ERROR") != 5 || strings.Count(got, "level=WARN") != 1 {
		t.Errorf("shown: %s", got)
	}
}
