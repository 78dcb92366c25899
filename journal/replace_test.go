package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

const replaceGrace = 20 * time.Second

// awaitVoters waits until the leader has all nodes as voters, and returns it.
func (w *wipeHarness) awaitVoters() (leader *Journal) {
	w.t.Helper()
	waittest.Eventually(w.t, "all nodes vote", func() bool {
		leader = w.leader()
		return leader != nil && !slices.ContainsFunc(leader.Members(), func(m Member) bool { return !m.Voter || m.Identity == "" || !m.BehindKnown })
	})
	return leader
}

// others returns the numbers of the nodes other than one.
func (w *wipeHarness) others(except *Journal) (others []int) {
	for i, j := range w.nodes {
		if j != except {
			others = append(others, i)
		}
	}
	return others
}

func (w *wipeHarness) replace(leader *Journal, i int) error {
	return leader.ReplaceLostDirectory(w.t.Context(), w.peers[i].Node, w.nodes[i].Identity(), replaceGrace)
}

func isVoter(leader *Journal, node string) bool {
	return slices.ContainsFunc(leader.Members(), func(m Member) bool { return m.Node == node && m.Voter })
}

// While a member answers with its recorded directory, and for the grace after that, no other
// directory takes its place.
func TestReplaceLost_NotWhileDirectoryAnswers(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		w := newWipeHarness(t, 3)
		for i := range w.peers {
			w.start(i)
		}
		leader := w.awaitVoters()
		time.Sleep(2 * replaceGrace) // the leadership is old enough
		i := w.others(leader)[0]
		another := strings.Repeat("0", 32)
		if err := leader.ReplaceLostDirectory(t.Context(), w.peers[i].Node, another, replaceGrace); !errors.Is(err, ErrNotReplaced) {
			t.Errorf("while the member answers: %v", err)
		}
		if !isVoter(leader, w.peers[i].Node) {
			t.Error("the member has lost its vote")
		}
		w.wipe(i)
		w.start(i)
		time.Sleep(replaceGrace / 2)
		if err := w.replace(leader, i); !errors.Is(err, ErrNotReplaced) {
			t.Errorf("half the grace after the loss: %v", err)
		}
		time.Sleep(replaceGrace)
		if err := w.replace(leader, i); err != nil {
			t.Fatalf("after the grace: %v", err)
		}
		w.awaitVoters()
		if err := w.replace(w.leader(), i); err != nil {
			t.Errorf("repeated: %v", err)
		}
	})
}

// A second directory is replaced only after the first has caught up and has its vote: until then
// the entries that both have acknowledged may have one copy.
func TestReplaceLost_OneAtATime(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		w := newWipeHarness(t, 5)
		for i := range w.peers {
			w.start(i)
		}
		leader := w.awaitVoters()
		waittest.Eventually(t, "an append", w.tryAppend)
		a, b := w.others(leader)[0], w.others(leader)[1]
		w.wipe(a)
		w.wipe(b)
		w.start(b) // a does not run, so it cannot catch up
		time.Sleep(2 * replaceGrace)
		if w.leader() != leader {
			t.Fatal("the leader has changed")
		}
		if err := leader.ReplaceLostDirectory(t.Context(), w.peers[a].Node, strings.Repeat("0", 32), replaceGrace); err != nil {
			t.Fatalf("the first: %v", err)
		}
		if err := w.replace(leader, b); !errors.Is(err, ErrNotReplaced) || !strings.Contains(err.Error(), w.peers[a].Node) {
			t.Errorf("the second, before the first has its vote: %v", err)
		}
		if !isVoter(leader, w.peers[b].Node) {
			t.Error("the second has lost its vote")
		}
		if err := leader.RemoveMember(t.Context(), w.peers[a].Node); err != nil {
			t.Fatal(err)
		}
		if err := w.replace(leader, b); err != nil {
			t.Errorf("the second, after the first was removed: %v", err)
		}
	})
}

// Both directories of a pair that was lost at once come back, one after the other, and nothing that
// was acknowledged is lost.
func TestReplaceLost_TwoOfFiveComeBack(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		w := newWipeHarness(t, 5)
		for i := range w.peers {
			w.start(i)
		}
		leader := w.awaitVoters()
		waittest.Eventually(t, "an append", w.tryAppend)
		lost := w.others(leader)[:2]
		for _, i := range lost {
			w.wipe(i)
			w.start(i)
		}
		pending := slices.Clone(lost)
		waittest.Eventually(t, "both are replaced", func() bool {
			pending = slices.DeleteFunc(pending, func(i int) bool {
				leader := w.leader()
				return leader != nil && w.replace(leader, i) == nil
			})
			return len(pending) == 0
		})
		w.awaitVoters()
		waittest.Eventually(t, "another append", w.tryAppend)
		for _, i := range lost {
			waittest.Eventually(t, "it has everything", func() bool {
				return !slices.ContainsFunc(w.acknowledged, func(id string) bool { return lastEvent(t, w.nodes[i], id) == 0 })
			})
		}
	})
}

// While only a minority of the others answers, nothing is replaced.
func TestReplaceLost_NeedsMajorityOfOthers(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		w := newWipeHarness(t, 3)
		for i := range w.peers {
			w.start(i)
		}
		leader := w.awaitVoters()
		time.Sleep(2 * replaceGrace)
		a, b := w.others(leader)[0], w.others(leader)[1]
		w.wipe(a)
		w.start(a)
		w.stop(b)
		time.Sleep(2 * replaceGrace)
		if err := w.replace(leader, a); err == nil {
			t.Error("replaced although no other voter answers")
		}
		w.start(b)
		waittest.Eventually(t, "replaced when it answers again", func() bool { l := w.leader(); return l != nil && w.replace(l, a) == nil })
		w.awaitVoters()
	})
}

// A movingBook knows where nodes are at present, by name and by identity.
type movingBook struct {
	mu    sync.Mutex
	peers []Peer
	found func(p Peer) bool // whether the node was found
	byID  map[string]string
}

func (b *movingBook) founders() ([]Peer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	peers := slices.Clone(b.peers)
	for i := range peers {
		if !b.found(peers[i]) {
			peers[i].Address = ""
		}
	}
	return peers, nil
}

func (b *movingBook) Resolve(identity, recorded string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.byID[identity]; now != "" {
		return now
	}
	return recorded
}

func (b *movingBook) ReportFailure(string, string) {}

// A founder whose address changes before, while or after the others agree is one of the founders,
// and is reached by the address book. Nothing is founded while the address of one is unknown.
func TestFounding_AddressesChange(t *testing.T) {
	for moment := range 8 {
		waittest.InSynctest(t, func(t *testing.T) { testFoundingWithMove(t, time.Duration(moment)*20*time.Millisecond) })
	}
}

func testFoundingWithMove(t *testing.T, after time.Duration) {
	var peers []Peer
	book := &movingBook{byID: map[string]string{}, found: func(p Peer) bool { return p.Node != "n2" }}
	for i := range 3 {
		peers = append(peers, Peer{Node: fmt.Sprint("n", i)})
		book.peers = append(book.peers, Peer{Node: peers[i].Node, Address: "at-" + peers[i].Node})
	}
	net, root := networktest.NewMemory(), t.TempDir()
	nodes := make([]*Journal, 3)
	start := func(i int) {
		address := book.peers[i].Address
		j, err := Open(t.Context(), testConfig(Config{
			Node: peers[i].Node, Address: address, Peers: peers, Founders: book.founders, AddressBook: book,
			Dir: filepath.Join(root, peers[i].Node), Network: net.Listen(address),
		}))
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = j
		book.mu.Lock()
		defer book.mu.Unlock()
		book.byID[j.Identity()] = address
	}
	defer func() {
		for _, j := range nodes {
			closeJournal(t, j)
		}
	}()
	for i := range nodes {
		start(i)
	}
	time.Sleep(5 * time.Second)
	for _, j := range nodes {
		if len(j.servers()) > 0 || j.HasAgreedToFound() {
			t.Errorf("%s has agreed although the address of n2 is unknown", j.config.Node)
		}
	}
	book.mu.Lock()
	book.found = func(Peer) bool { return true }
	book.mu.Unlock()
	time.Sleep(after)
	closeJournal(t, nodes[1])
	book.mu.Lock()
	book.peers[1].Address = "moved"
	book.mu.Unlock()
	start(1)
	waittest.Eventually(t, "one partition of all three, which commits", func() bool {
		for _, j := range nodes {
			if leader, _ := j.Leader(); leader == "" || len(j.servers()) != 3 || j.AppliedIndex() == 0 {
				return false
			}
		}
		return true
	})
	first, _ := nodes[0].Leader()
	for _, j := range nodes[1:] {
		if leader, _ := j.Leader(); leader != first {
			t.Errorf("two leaders: %s and %s", first, leader)
		}
	}
}
