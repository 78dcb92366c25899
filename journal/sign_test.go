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

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// deafTransport reaches nobody as long as it is deaf. What it sends is noted.
type deafTransport struct {
	closingTransport
	mu     sync.Mutex
	deaf   bool
	answer raft.AppendEntriesResponse
	sent   []raft.AppendEntriesRequest // but heartbeats
}

var errDeaf = errors.New("nobody answers")

func (d *deafTransport) set(deaf bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = deaf
}

func (d *deafTransport) messages() []raft.AppendEntriesRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sent
}

func (d *deafTransport) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if args.PrevLogEntry > 0 {
		d.sent = append(d.sent, *args)
	}
	if d.deaf {
		return errDeaf
	}
	*resp = d.answer
	return nil
}

func (d *deafTransport) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.deaf {
		return errDeaf
	}
	return nil
}

// A leader sends entries, and a snapshot, to b, whom it does not reach.
func unreached(d *deafTransport, wanted func() bool) (t *ackedTransport, sent, installed chan error, got *raft.AppendEntriesResponse) {
	t = &ackedTransport{
		closingTransport: d, acks: newAcks(), signs: newSigns(),
		replicates: func(raft.Server, uint64) bool { return wanted() },
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

func always() bool { return true }

func TestEntriesAreSentAgainWhenAHeartbeatIsAnswered(t *testing.T) {
	for name, answer := range map[string]raft.AppendEntriesResponse{
		"yes":                 {Term: 7, Success: true, LastLog: 104},
		"no, of a later term": {Term: 8, LastLog: 104},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := &deafTransport{deaf: true, answer: answer}
				transport, sent, installed, got := unreached(d, always)
				beat := func() error {
					return transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse))
				}
				for range 600 { // ten minutes
					time.Sleep(time.Second)
					if err := beat(); err != errDeaf {
						t.Fatalf("a heartbeat that nobody answers: %v", err)
					}
				}
				if n := len(d.messages()); n != 1 || len(sent) > 0 || len(installed) > 0 {
					t.Fatalf("sent %d times; failed %d and %d times", n, len(sent), len(installed))
				}
				d.set(false)
				time.Sleep(time.Second)
				if n := len(d.messages()); n != 1 {
					t.Fatalf("sent %d times before a heartbeat was answered", n)
				}
				if err := beat(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lookEvery)
				synctest.Wait()
				if len(sent) == 0 || len(installed) == 0 {
					t.Fatalf("after a heartbeat: %d and %d have returned", len(sent), len(installed))
				}
				if err := <-sent; err != nil || got.Term != answer.Term || got.Success != answer.Success || got.LastLog != answer.LastLog {
					t.Errorf("answered %+v, %v", got, err)
				}
				if err := <-installed; err != errDeaf {
					t.Errorf("the snapshot: %v", err)
				}
			})
		})
	}
}

// What is sent again asks how far a follower has come. It has no entries, and calls
// nothing committed behind what it names: there the follower may have others.
func TestWhatIsSentAgainTellsOfNoCommit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := &deafTransport{deaf: true, answer: raft.AppendEntriesResponse{Term: 7, Success: true}}
		transport, sent, installed, _ := unreached(d, always)
		synctest.Wait()
		d.set(false)
		if err := transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-sent, ignoreDeaf(<-installed)); err != nil {
			t.Fatal(err)
		}
		all := d.messages()
		again := all[len(all)-1]
		if len(all) != 2 || len(again.Entries) != 0 || again.PrevLogEntry != 100 || again.PrevLogTerm != 6 || again.Term != 7 {
			t.Errorf("sent %d times, at last %+v", len(all), again)
		}
		if again.LeaderCommitIndex != 0 {
			t.Errorf("it tells that %d was committed when it was sent first", again.LeaderCommitIndex)
		}
	})
}

func ignoreDeaf(err error) error {
	if err == errDeaf {
		return nil
	}
	return err
}

func TestNothingIsSentAgainByWhoLeadsNoLonger(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var over sync.Map
		d := &deafTransport{deaf: true}
		_, sent, installed, _ := unreached(d, func() bool { _, is := over.Load("over"); return !is })
		time.Sleep(time.Minute)
		over.Store("over", true)
		time.Sleep(lookEvery)
		synctest.Wait()
		if len(sent) == 0 || len(installed) == 0 {
			t.Fatal("they still wait")
		}
		if err := errors.Join(ignoreDeaf(<-sent), ignoreDeaf(<-installed)); err != nil {
			t.Error(err)
		}
		if n := len(d.messages()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

// lags tells whether a node lacks anything that another has.
func (g *group) lags(node, behind int) bool {
	return g.nodes[node].AppliedIndex() < g.nodes[behind].reach()
}

// catchesUp waits until a follower has what the leader had, and returns how long that
// took.
func (g *group) catchesUp(t *testing.T, follower, leader int) time.Duration {
	t.Helper()
	begun := time.Now()
	eventually(t, "the follower has what the leader has", func() bool { return !g.lags(follower, leader) })
	return time.Since(begun)
}

// appendFor appends once a second.
func (g *group) appendFor(t *testing.T, leader, seconds int) {
	t.Helper()
	j := g.nodes[leader]
	for range seconds {
		if err := appendNext(t, j, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
}

// eachWaitEnds waits until nobody waits for a sign of life.
func eachWaitEnds(t *testing.T) {
	t.Helper()
	eventually(t, "nobody waits for a sign of life", func() bool { return !somebodyWaits() })
}

func somebodyWaits() bool {
	return slices.ContainsFunc(ours(), func(stack string) bool { return strings.Contains(stack, "awaitSign") })
}

// soon is how long it takes at most, in tests, until a follower that is there again is
// reached: a connection that is not made yet fails after a second, and the heartbeats
// that follow come within another.
const soon = 2 * time.Second

func TestAFollowerThatWasCutOffGetsEntriesAtOnce(t *testing.T) {
	for _, seconds := range []int{20, 60} {
		t.Run(fmt.Sprint(seconds), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g, network := newFlakyGroup(t)
				leader := g.leader(t)
				follower := (leader + 1) % 3
				network.cut(g.peers[follower].Address)
				g.appendFor(t, leader, seconds)
				if !g.lags(follower, leader) {
					t.Fatal("it is not cut off")
				}
				network.join(g.peers[follower].Address)
				if took := g.catchesUp(t, follower, leader); took > soon {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestAFollowerThatWasStoppedGetsEntriesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		goOn := network.stop(g.peers[follower].Address)
		g.appendFor(t, leader, 60)
		if !g.lags(follower, leader) {
			t.Fatal("it has not stopped")
		}
		goOn()
		if took := g.catchesUp(t, follower, leader); took > soon {
			t.Errorf("it took %v", took)
		}
	})
}

// What takes what comes over a connection may be stuck for good while its node is well.
func TestAConnectionOnWhichNothingComesBackIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		mustAppend(t, g.nodes[leader], begin(g.nodes[leader].Epoch(), "a"))
		g.catchesUp(t, follower, leader)
		stuck := network.stick(g.peers[follower].Address)
		mustAppend(t, g.nodes[leader], begin(g.nodes[leader].Epoch(), "b"))
		if took := g.catchesUp(t, follower, leader); took > ioTimeout+soon {
			t.Errorf("it took %v", took)
		}
		eventually(t, "the leader closes what is stuck", func() bool {
			return !slices.ContainsFunc(stuck, func(c *flakyConn) bool { return !c.isLeft() })
		})
	})
}

// Several connections to a node are kept, and nothing comes back over any of them. One
// message finds that out for all.
func TestOneMessageFindsOutThatNothingComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		network := newFlakyNetwork()
		a, b := openTransport(network, "a", 1), openTransport(network, "b", keptMax)
		ask := func() error {
			header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
			return a.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: 2}, new(raft.RequestVoteResponse))
		}
		askAll := func() (failed int) {
			results := make(chan error, keptMax)
			for range keptMax {
				go func() { results <- ask() }()
			}
			for range keptMax {
				if <-results != nil {
					failed++
				}
			}
			return failed
		}
		if failed := askAll(); failed > 0 {
			t.Fatalf("%d were not answered", failed)
		}
		time.Sleep(ioTimeout)
		network.stick("b")
		if err := ask(); err == nil {
			t.Error("it was answered over a connection that is stuck")
		}
		begun := time.Now()
		if failed := askAll(); failed > 0 || time.Since(begun) > 0 {
			t.Errorf("%d of the next were not answered, after %v", failed, time.Since(begun))
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatNobodyTakesInIsNotWaitedForForHours(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		network := newMemoryNetwork()
		there := network.listen("there")
		streams := newStreams(network.listen("here"), "here", func() bool { return false })
		for allowed, want := range map[time.Duration]time.Duration{24 * time.Hour: ioTimeout, time.Second: time.Second} {
			go there.Accept() // and that is all
			conn, err := streams.Dial("there", ioTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(allowed)); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if _, err := conn.Write([]byte("a snapshot")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != want {
				t.Errorf("of what may take %v, after %v: %v", allowed, time.Since(begun), err)
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

// random is an append that begins an instance with 20 KiB of anything.
func random(epoch uint64, id string) *journalpb.Append {
	a := begin(epoch, id)
	anything := make([]byte, 20<<10)
	_, _ = rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%32s", id)))).Read(anything)
	a.Segments[0].Events = append(a.Segments[0].Events, appendOf(epoch, "", 3, &journalpb.Event{
		Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: &journalpb.Payload{Data: anything}}},
	}).Segments[0].Events...)
	return a
}

func TestASnapshotThatNobodyTakesInIsSentAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		j, follower := g.nodes[leader], (leader+1)%3
		g.stop(t, follower)
		for i := range 100 { // two megabytes that nothing compresses
			mustAppend(t, j, random(j.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		snapshotOfAll(t, j)
		network.stickOnceBehind(g.peers[follower].Address, 1<<20)
		g.start(t, follower, nil, nil)
		if took := g.catchesUp(t, follower, leader); took < ioTimeout || took > ioTimeout+soon {
			t.Errorf("it took %v", took)
		}
	})
}

// A leader that was cut off has others to wait for, and no reason any more.
func TestALeaderThatWasCutOffWaitsForNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		network.cut(g.peers[leader].Address)
		eventually(t, "it steps down", func() bool { return !g.nodes[leader].IsLeader() })
		eachWaitEnds(t)
		begun := time.Now()
		g.stop(t, leader)
		if took := time.Since(begun); took > ioTimeout {
			t.Errorf("closing took %v", took)
		}
	})
}

func TestNobodyWaitsForAMemberThatWasRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		j, gone := g.nodes[leader], (leader+1)%3
		network.cut(g.peers[gone].Address)
		g.appendFor(t, leader, 20)
		if err := j.TransferLeadershipTo(t.Context(), g.peers[gone].Node); err == nil {
			t.Error("it leads")
		}
		eventually(t, "it leads as before", j.IsLeader)
		eventually(t, "it waits again, after the transfer", somebodyWaits)
		eventually(t, "it is removed", func() bool { return j.RemoveMember(t.Context(), g.peers[gone].Node) == nil })
		eachWaitEnds(t)
	})
}

func TestAFollowerThatHasMovedGetsEntries(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, _ := newFlakyGroup(t)
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
		g.agree(t)
	})
}

// To hand leadership to a node that is away fails, as often as it is tried, and then
// everything goes on.
func TestLeadershipForANodeThatIsAwayStaysWhereItIs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.leader(t)
		j, away := g.nodes[leader], (leader+1)%3
		epoch := j.Epoch()
		g.stop(t, away)
		for i := range 3 {
			mustAppend(t, j, begin(epoch, fmt.Sprintf("i-%d", i)))
			if err := j.TransferLeadershipTo(t.Context(), g.peers[away].Node); err == nil {
				t.Error("transferred")
			}
			eventually(t, "appends are taken again", func() bool {
				return appended(t, j, begin(epoch, fmt.Sprintf("then-%d", i))) == nil
			})
		}
	})
}

// What a restart brings is no news. Of a member that stays away, and of a leader that is not
// found, the log speaks once, with the reason, and once more when they are back.
func TestTheLogSaysOnceWhoIsMissed(t *testing.T) {
	var text bytes.Buffer
	w := &contactWatch{
		logger: slog.New(slog.NewTextHandler(&text, nil)), missed: map[string]bool{},
		failure: func(node string) error { return map[string]error{"b": errors.New("no route")}[node] },
	}
	now := time.Unix(1000, 0)
	answered := true
	look := func(leader string, silence time.Duration, known bool) string {
		text.Reset()
		now = now.Add(contactEvery)
		w.look(now, leader, []Member{{Node: "a", SilenceKnown: known}, {
			Node: "b", SilenceKnown: known, BehindKnown: known && answered, Silence: silence, Silent: silence > time.Second,
		}})
		return text.String()
	}
	for i, step := range []struct {
		leader  string
		silence time.Duration
		known   bool
		want    string
	}{
		{"a", 0, true, ""},
		{"a", missedAfter - 1, true, ""}, // a restart
		{"a", missedAfter, true, "level=WARN msg=\"member does not answer"},
		{"a", missedAfter + time.Second, true, ""},
		{"a", 0, true, "level=INFO msg=\"member answers again\" member=b"},
		{"a", missedAfter, true, "no route"},
		{"b", 0, false, ""}, // it leads itself now
	} {
		got := look(step.leader, step.silence, step.known)
		if step.want == "" && got != "" || !strings.Contains(got, step.want) {
			t.Errorf("step %d: %q; want %q", i, got, step.want)
		}
	}
	// A new leadership begins: the member has not been silent for long, and has not answered.
	look("a", missedAfter, true)
	answered = false
	for _, silence := range []time.Duration{0, missedAfter / 2, missedAfter + time.Second} {
		if got := look("a", silence, true); got != "" {
			t.Errorf("of a member that has not answered the new leadership for %s: %s", silence, got)
		}
	}
	answered = true
	if got := look("a", 0, true); !strings.Contains(got, "member answers again") {
		t.Errorf("once it has answered: %q", got)
	}
	for i := range int(missedAfter / contactEvery) {
		if got := look("", 0, false); got != "" {
			t.Errorf("after %d s without a leader: %s", i, got)
		}
	}
	if got := look("", 0, false); !strings.Contains(got, "level=WARN msg=\"this node knows no leader") || !strings.Contains(got, "b.error=\"no route\"") {
		t.Errorf("without a leader: %q", got)
	}
	if got := look("", 0, false); got != "" {
		t.Errorf("it is said twice: %s", got)
	}
	if got := look("b", 0, false); !strings.Contains(got, "there is a leader again") {
		t.Errorf("with a leader again: %q", got)
	}
}

// Lines of the library about what a restart brings are not shown; those about disks are.
func TestLinesOfTheLibraryAboutContactAreForDebugging(t *testing.T) {
	var text bytes.Buffer
	logger := raftLogger(slog.New(slog.NewTextHandler(&text, nil)), false)
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
