package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/state"
)

// wiping is a group whose nodes are stopped, lose their directories, and are started again.
type wiping struct {
	t     *testing.T
	peers []Peer
	dirs  []string
	nodes []*Journal // nil where stopped
	net   *memoryNetwork
	// What was acknowledged: instances whose only append was.
	acknowledged []string
	// holders are the nodes that had each of them when it was acknowledged, and have not lost
	// their directory since.
	holders map[string]map[int]bool
	appends int
	loss    dirLoss
	lost    map[int]bool // the nodes that have lost something
}

// A dirLoss says what goes when a directory is lost: all but what keeps reports true for.
// partial says that something stays by which the node knows that it had more.
type dirLoss struct {
	name    string
	partial bool
	keeps   func(name string) bool
}

func dirLosses() []dirLoss {
	return []dirLoss{
		{"all", false, func(string) bool { return false }},
		{"log and stable file", true, func(name string) bool { return !strings.HasPrefix(name, "raft.") }},
		{"all but directory-id", true, func(name string) bool { return name == selfFileName }},
		{"all but identity and directory-id", true, func(name string) bool { return name == selfFileName || name == identityFile }},
		{"stable file", true, func(name string) bool { return name != stableFileName }},
		{"log", true, func(name string) bool { return name != logFile }},
	}
}

// of removes from a directory what goes.
func (l dirLoss) of(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if l.keeps(entry.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

func newWiping(t *testing.T, nodes int) *wiping {
	w := &wiping{t: t, nodes: make([]*Journal, nodes), net: newMemoryNetwork(), holders: map[string]map[int]bool{}, loss: dirLosses()[0], lost: map[int]bool{}}
	root := t.TempDir()
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.peers = append(w.peers, Peer{Node: name, Address: "at-" + name})
		w.dirs = append(w.dirs, filepath.Join(root, name))
	}
	t.Cleanup(func() {
		for i := range w.nodes {
			w.stop(i)
		}
	})
	return w
}

func (w *wiping) start(i int) {
	w.t.Helper()
	if w.nodes[i] != nil {
		return
	}
	j, err := Open(w.t.Context(), quiet(Config{
		Node: w.peers[i].Node, Address: w.peers[i].Address, Peers: w.peers, Dir: w.dirs[i], Network: w.net.listen(w.peers[i].Address),
	}))
	var damaged *DamagedError
	if errors.As(err, &damaged) && w.loss.partial && w.lost[i] {
		if !strings.Contains(err.Error(), "tenuto adopt") {
			w.t.Errorf("the error does not say what to do: %v", err)
		}
		return // refused
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes[i] = j
}

func (w *wiping) stop(i int) {
	w.t.Helper()
	if w.nodes[i] != nil {
		closed(w.t, w.nodes[i])
		w.nodes[i] = nil
	}
}

func (w *wiping) wipe(i int) {
	w.t.Helper()
	w.stop(i)
	w.loss.of(w.t, w.dirs[i])
	w.lost[i] = true
	for _, holders := range w.holders {
		delete(holders, i)
	}
}

// settle gives the nodes that run the time for several elections.
func (w *wiping) settle() { time.Sleep(5 * time.Second) }

func (w *wiping) leader() *Journal {
	for _, j := range w.nodes {
		if j != nil && j.IsLeader() {
			return j
		}
	}
	return nil
}

// try begins an instance at the leader, if there is one, and remembers who has it when it is
// acknowledged.
func (w *wiping) try() bool {
	w.t.Helper()
	leader := w.leader()
	if leader == nil {
		return false
	}
	w.appends++
	id := fmt.Sprintf("i-%d", w.appends)
	if appended(w.t, leader, begin(leader.Epoch(), id)) != nil {
		return false
	}
	w.acknowledged = append(w.acknowledged, id)
	w.holders[id] = map[int]bool{}
	for i, j := range w.nodes {
		if j != nil && j.raft.LastIndex() >= leader.AppliedIndex() && len(j.servers()) > 0 {
			w.holders[id][i] = true
		}
	}
	return true
}

// intact reports whether each append that was acknowledged is in a directory that was not
// wiped: then no node may lead that lacks one.
func (w *wiping) intact() bool {
	for _, holders := range w.holders {
		if len(holders) == 0 {
			return false
		}
	}
	return true
}

// check starts all nodes, and fails the test if a leader lacks what was acknowledged although
// a node that may lead has it.
func (w *wiping) check(order string) {
	w.t.Helper()
	for i := range w.nodes {
		w.start(i)
	}
	w.settle()
	for i, j := range w.nodes {
		if j == nil || !j.IsLeader() || !w.intact() {
			continue
		}
		for _, id := range w.acknowledged {
			if lastEvent(w.t, j, id) == 0 {
				w.t.Errorf("%s: n%d leads and has lost %s", order, i, id)
			}
		}
	}
}

// A wipeOrder is an order in which all nodes are stopped, some of them wiped, and all started,
// with an append tried after each stop and each start.
type wipeOrder struct{ stopped, wiped, started []int }

func (o wipeOrder) String() string {
	return fmt.Sprintf("stop %v, wipe %v, start %v", o.stopped, o.wiped, o.started)
}

// permutations returns all orders of the numbers below n.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return all
}

// wipeOrders returns every order of stops and of starts, with every set of nodes that are wiped
// in between, but for the empty one.
func wipeOrders(n int) (all []wipeOrder) {
	for _, stopped := range permutations(n) {
		for set := range 1 << n {
			var wiped []int
			for i := range n {
				if set&(1<<i) != 0 {
					wiped = append(wiped, i)
				}
			}
			if len(wiped) == 0 {
				continue
			}
			for _, started := range permutations(n) {
				all = append(all, wipeOrder{stopped, wiped, started})
			}
		}
	}
	return all
}

// run carries an order out. While nodes are stopped one after the other, appends are
// acknowledged as long as there is a leader, so that the last ones are on a majority alone.
func (o wipeOrder) run(t *testing.T, nodes int, loss dirLoss) {
	w := newWiping(t, nodes)
	w.loss = loss
	for i := range nodes {
		w.start(i)
	}
	eventually(t, "an append", w.try)
	w.settle()
	for _, i := range o.stopped {
		w.stop(i)
		w.settle()
		w.try()
	}
	for _, i := range o.wiped {
		w.wipe(i)
	}
	for _, i := range o.started {
		w.start(i)
		w.settle()
		w.try()
	}
	w.check(o.String() + ", of the directory " + loss.name)
	if w.leader() == nil && len(o.wiped) <= (nodes-1)/2 {
		t.Errorf("%v: a majority has its directories, and none leads", o)
	}
	if len(o.wiped) == nodes && !loss.partial {
		return // a new group
	}
	for _, i := range o.wiped {
		if loss.partial {
			if w.nodes[i] != nil {
				t.Errorf("%v: n%d takes part, and has lost of its directory %s", o, i, loss.name)
			}
			continue
		}
		if !errors.Is(w.nodes[i].Disowned(), ErrOtherDirectory) {
			t.Errorf("%v: n%d, which was wiped, says %v", o, i, w.nodes[i].Disowned())
		}
	}
}

// Three nodes: all 6 * 7 * 6 orders, of which a normal run takes every fourteenth.
func TestNoOrderOfStopWipeAndStartOfThreeLosesAnything(t *testing.T) {
	orders := wipeOrders(3)
	for n, o := range orders {
		if n%(len(orders)/repetitions(len(orders), 18)) == 0 {
			inBubble(t, func(t *testing.T) { o.run(t, 3, dirLosses()[0]) })
		}
	}
}

// The same, where the nodes keep a part of their directories: they are refused as damaged.
func TestNoOrderOfStopPartialLossAndStartOfThreeLosesAnything(t *testing.T) {
	orders := wipeOrders(3)
	for k, loss := range dirLosses()[1:] {
		for n := range repetitions(len(orders), 6) {
			o := orders[((n*61+k)*7+3)%len(orders)]
			inBubble(t, func(t *testing.T) { o.run(t, 3, loss) })
		}
	}
}

// A first start that is cut off at any file is taken up again, with the same identity; and so
// is a directory of a build that noted nothing, where the log is noted at the next start.
func TestAFirstStartThatIsCutOffGoesOn(t *testing.T) {
	for _, loss := range dirLosses()[1:5] {
		dir := t.TempDir()
		d, err := openDirectory(dir, stamp{node: "n1"}, "")
		if err != nil {
			t.Fatal(err)
		}
		c := (&Config{Node: "n1", Dir: dir}).withDefaults()
		if err := d.createLog(c); err != nil {
			t.Fatal(err)
		}
		d.noted = 0
		if err := errors.Join(d.overwriteSelf(), d.close()); err != nil {
			t.Fatal(err)
		}
		identity := d.self.Identity
		for start := range 2 {
			if start == 0 {
				loss.of(t, dir)
			}
			j, err := Open(t.Context(), quiet(Config{Node: "n1", Dir: dir}))
			if err != nil {
				t.Fatalf("cut off before there was %s, start %d: %v", loss.name, start, err)
			}
			if j.Identity() != identity {
				t.Errorf("cut off before there was %s: another identity", loss.name)
			}
			closed(t, j)
		}
		loss.of(t, dir)
		if j, err := Open(t.Context(), quiet(Config{Node: "n1", Dir: dir})); !errors.As(err, new(*DamagedError)) {
			t.Errorf("started without %s: %v", loss.name, err)
			if err == nil {
				closed(t, j)
			}
		}
	}
}

// Five nodes: of 120 * 31 * 120 orders some hundreds are drawn, always the same.
func TestOrdersOfStopWipeAndStartOfFiveLoseNothing(t *testing.T) {
	orders := wipeOrders(5)
	for n := range repetitions(400, 4) {
		o := orders[(n*104729+7)%len(orders)]
		inBubble(t, func(t *testing.T) { o.run(t, 5, dirLosses()[0]) })
	}
}

// The order that has lost everything: a follower is stopped, the others acknowledge, one of
// these loses its directory and meets the first one.
func TestAWipedNodeElectsNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWiping(t, 3)
		for i := range w.nodes {
			w.start(i)
		}
		eventually(t, "an append", w.try)
		leader := slices.Index(w.nodes, w.leader())
		a, b := (leader+1)%3, (leader+2)%3
		w.stop(a)
		for range 20 {
			eventually(t, "an append", w.try)
		}
		before := len(w.acknowledged)
		w.stop(leader)
		w.wipe(b)
		w.start(a)
		w.start(b)
		w.settle()
		if w.leader() != nil || w.try() || len(w.acknowledged) != before {
			t.Errorf("a node that has lost its directory has elected another one")
		}
		err := w.nodes[b].Disowned()
		if !errors.Is(err, ErrOtherDirectory) || !strings.Contains(err.Error(), "tenuto adopt") {
			t.Errorf("the one that has lost it says %v", err)
		}
		w.start(leader)
		eventually(t, "the first leader leads again", w.nodes[leader].IsLeader)
		w.check("in the end")

		// Adopted, it catches up and gets its vote back.
		j := w.nodes[leader]
		if err := j.AdoptMember(t.Context(), w.peers[b].Node, w.nodes[b].Identity()); err != nil {
			t.Fatal(err)
		}
		for _, m := range j.Members() {
			if m.Node == w.peers[b].Node && (m.Voter || m.Identity != w.nodes[b].Identity()) {
				t.Errorf("adopted, and has not caught up: %+v", m)
			}
		}
		eventually(t, "it has its vote", func() bool { return w.nodes[b].Standing().Voter })
		for _, id := range w.acknowledged {
			eventually(t, "it has "+id, func() bool { return lastEvent(t, w.nodes[b], id) > 0 })
		}
		w.stop(a)
		eventually(t, "an append with its acknowledgment", w.try)
	})
}

// A founding that is cut off anywhere is taken up again, and never becomes two.
func TestAFoundingThatIsCutOffGoesOn(t *testing.T) {
	for _, wiped := range []bool{false, true} {
		for step := range 12 {
			inBubble(t, func(t *testing.T) {
				w := newWiping(t, 3)
				for i := range w.nodes {
					w.start(i)
				}
				time.Sleep(time.Duration(step) * foundEvery / 3)
				cut := step % 3
				w.stop(cut)
				if wiped {
					w.wipe(cut)
				}
				time.Sleep(time.Duration(step) * foundEvery / 2)
				w.start(cut)
				w.settle()
				if leader := w.leader(); leader == nil {
					for i, j := range w.nodes {
						t.Logf("n%d: servers %v, agreed %v", i, j.servers(), j.founding.agreement())
					}
					t.Fatalf("cut off at %d, wiped %v: no leader", step, wiped)
				}
				for _, j := range w.nodes {
					if len(j.servers()) > 0 && fmt.Sprint(j.servers()) != fmt.Sprint(w.leader().servers()) {
						t.Errorf("step %d: %v and %v", step, j.servers(), w.leader().servers())
					}
				}
				if !w.try() {
					t.Error("nothing is acknowledged")
				}
			})
		}
	}
}

// A node is founded with all that are named, or not at all.
func TestAnEmptyNodeFoundsNothingWithoutTheOthers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWiping(t, 3)
		w.start(0)
		w.start(1)
		w.settle()
		if w.leader() != nil || len(w.nodes[0].servers()) > 0 {
			t.Error("two of three have founded a group")
		}
		w.start(2)
		eventually(t, "an append", w.try)
	})
}

// A copy of a directory, started beside the node, takes no part, and the node is told.
func TestACopiedDirectoryStepsOut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWiping(t, 3)
		for i := range w.nodes {
			w.start(i)
		}
		eventually(t, "an append", w.try)
		for original := range w.nodes {
			w.stop(original)
			dir := filepath.Join(t.TempDir(), "copy")
			if err := os.CopyFS(dir, os.DirFS(w.dirs[original])); err != nil {
				t.Fatal(err)
			}
			w.start(original)
			w.settle()
			terms := w.leader().Term()
			for range 3 { // each start of the copy counts
				c := quiet(Config{Node: w.peers[original].Node, Address: "elsewhere", Peers: w.peers, Dir: dir, Network: w.net.listen("elsewhere")})
				clone, err := Open(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "the copy steps out", func() bool { return errors.Is(clone.Err(), ErrCopied) })
				closed(t, clone)
			}
			if err := w.nodes[original].Err(); err != nil {
				t.Errorf("the node itself: %v", err)
			}
			if count, _ := w.nodes[original].Rivals(); count == 0 {
				t.Errorf("n%d does not know of its copy", original)
			}
			if now := w.leader(); now == nil || now.Term() != terms {
				t.Errorf("the copy of n%d has disturbed the group", original)
			}
			if !w.try() {
				t.Error("nothing is acknowledged")
			}
		}
	})
}

// A copy that is started while the node is down, and was heard of first, goes on, and the node is
// refused: the copy may have acknowledged what the node lacks. Never are both refused.
func TestOfANodeAndItsCopyTheOneHeardOfFirstGoesOn(t *testing.T) {
	for _, starts := range []int{1, 2} { // of the copy
		inBubble(t, func(t *testing.T) { copyFirst(t, starts) })
	}
}

func copyFirst(t *testing.T, starts int) {
	w := newWiping(t, 3)
	for i := range w.nodes {
		w.start(i)
	}
	eventually(t, "an append", w.try)
	original := slices.Index(w.nodes, w.leader())
	name := w.peers[original].Node
	w.stop(original)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(w.dirs[original])); err != nil {
		t.Fatal(err)
	}
	var clone *Journal
	for range starts {
		if clone != nil {
			closed(t, clone)
		}
		c := quiet(Config{Node: name, Address: "elsewhere", Peers: w.peers, Dir: dir, Network: w.net.listen("elsewhere")})
		opened, err := Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		clone = opened
		for i, j := range w.nodes {
			if i != original {
				eventually(t, "the copy is heard of", func() bool { known, _ := j.sessions.of(name); return known == clone.self })
			}
		}
	}
	defer func() { closed(t, clone) }()

	w.start(original)
	as := Peer{Node: name, Address: "elsewhere", Identity: clone.Identity(), Starts: clone.self.Starts, Session: clone.self.Session}
	for i, j := range w.nodes {
		if err := j.CheckCopy(as); i != original && err != nil {
			t.Errorf("n%d refuses the one that it has heard of: %v", i, err)
		}
	}
	eventually(t, "the node that came later is refused", func() bool { return errors.Is(w.nodes[original].Err(), ErrCopied) })
	for i, j := range w.nodes {
		if i != original && j.IsLeader() {
			if err := j.MoveMember(t.Context(), as); err != nil {
				t.Error(err)
			}
		}
	}
	w.settle()
	if err := clone.Err(); err != nil {
		t.Errorf("the one that was heard of first: %v", err)
	}
}

// Directories of a build that knew no identities get one each, which is recorded once all
// speak the protocol, and from then on counts.
func TestIdentitiesAreRecordedOfNodesThatHadNone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		protocol := uint32(identityProtocol - 1)
		g := newTweakedGroup(t, nil, func(_ int, c *Config) { c.Protocol = protocol })
		leader := g.leader(t)
		mustAppend(t, g.nodes[leader], begin(g.nodes[leader].Epoch(), "before"))
		for i := range g.nodes {
			g.stop(t, i)
			if err := os.Remove(filepath.Join(g.dirs[i], selfFileName)); err != nil {
				t.Fatal(err)
			}
		}
		protocol = identityProtocol
		for i := range g.nodes {
			g.start(t, i, nil, nil)
		}
		leader = g.leader(t)
		for _, m := range g.nodes[leader].Members() {
			if m.Identity != "" {
				t.Errorf("%s is recorded before all speak the protocol", m.Node)
			}
		}
		if err := g.nodes[leader].RaiseProtocol(t.Context(), identityProtocol); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all identities are recorded, everywhere", func() bool {
			for i, j := range g.nodes {
				for _, of := range g.nodes {
					if got, _ := of.recorded(g.peers[i].Node); got != j.Identity() {
						return false
					}
				}
			}
			return true
		})
		wiped := (leader + 1) % 3
		g.stop(t, wiped)
		if err := os.RemoveAll(g.dirs[wiped]); err != nil {
			t.Fatal(err)
		}
		g.start(t, wiped, nil, nil)
		eventually(t, "the wiped node is refused", func() bool { return g.nodes[wiped].Disowned() != nil })
		eventually(t, "an append", func() bool {
			j := g.nodes[g.leader(t)]
			err := appended(t, j, begin(j.Epoch(), "after"))
			return err == nil || errors.As(err, new(*state.ConflictError))
		})
	})
}
