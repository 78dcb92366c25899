package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// groupsOfTests is how many groups the nodes of these tests have.
const groupsOfTests = 4

// startGroups starts three nodes with several groups, which spread quickly.
func startGroups(t *testing.T, definitions ...replay.Definition) *fleet {
	t.Helper()
	return startGroupsThat(t, groupsOfTests, 20*time.Millisecond, definitions...)
}

// startGroupsThat is startGroups with how many there are, and how often leaders are
// looked after.
func startGroupsThat(t *testing.T, groups int, tendEvery time.Duration, definitions ...replay.Definition) *fleet {
	t.Helper()
	f := &fleet{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, 3)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions...)
		config.Groups, config.tendEvery = groups, tendEvery
		f.start(config)
	}
	return f
}

// awaitSpread waits until no node leads two groups more than another.
func (f *fleet) awaitSpread() {
	f.t.Helper()
	eventually(f.t, "the leaders are spread", func() bool {
		groups := len(f.any().groups)
		least, most, all := groups, 0, 0
		for _, node := range f.all() {
			led := len(node.led())
			least, most, all = min(least, led), max(most, led), all+led
		}
		return all == groups && most-least <= 1
	})
}

// kill closes a node without handing anything over.
func (f *fleet) kill(id string) {
	f.t.Helper()
	f.mu.Lock()
	node := f.nodes[id]
	delete(f.nodes, id)
	f.mu.Unlock()
	if err := node.Close(); err != nil {
		f.t.Error(err)
	}
}

// idIn returns an ID that begins with a text and belongs to a group.
func idIn(text string, group int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("%s-%d", text, i); slots.Group(id, groupsOfTests) == group {
			return id
		}
	}
}

// historyTypes returns the event types of an instance's history.
func historyTypes(t *testing.T, node *Node, id string) (types []string) {
	t.Helper()
	history, err := node.Client().History(testContext(t), id)
	if err != nil {
		t.Fatalf("history of %s: %v", id, err)
	}
	for _, event := range history.Events {
		types = append(types, journalpb.ArmName(event.Arm()))
	}
	return types
}

var (
	family = replay.Orchestration[string, string]("family")
	member = replay.Orchestration[string, string]("member")
)

// How the parent of a family treats its children, of which there is one in each
// group: member-GROUP.
func familyDefinitions() []replay.Definition {
	return append(definitions(),
		member.Bind(func(ctx *replay.Context, how string) (string, error) {
			switch how {
			case "fails":
				return "", errWanted
			case "waits":
				return word.Wait(ctx)
			}
			n, err := double.Call(ctx, 21)
			return fmt.Sprint(how, n), err
		}),
		family.Bind(func(ctx *replay.Context, how string) (string, error) {
			how, prefix, _ := strings.Cut(how, " ")
			return familyBody(ctx, how, prefix)
		}))
}

func familyBody(ctx *replay.Context, how, prefix string) (string, error) {
	var futures []*replay.Future[string]
	for group := range groupsOfTests {
		id := idIn(prefix, group)
		switch how {
		case "chains":
			if err := member.Chain(ctx, "chained", replay.ChildID(id)); err != nil {
				return "", err
			}
		case "abandons":
			futures = append(futures, member.Start(ctx, "waits", replay.ChildID(id), replay.OnParentClose(replay.AbandonChild)))
		case "terminates":
			futures = append(futures, member.Start(ctx, "waits", replay.ChildID(id), replay.OnParentClose(replay.TerminateChild)))
		case "leaves":
			futures = append(futures, member.Start(ctx, "waits", replay.ChildID(id)))
		default:
			futures = append(futures, member.Start(ctx, how, replay.ChildID(id)))
		}
	}
	switch how {
	case "chains":
		return "", nil
	case "abandons", "terminates", "leaves":
		_, err := word.Wait(ctx)
		return "", err
	}
	var results []string
	for _, outcome := range futures {
		result, err := outcome.Await(ctx)
		if err != nil {
			result = err.Error()
		}
		results = append(results, result)
	}
	return strings.Join(results, " "), nil
}

func (f *fleet) any() *Node { return f.all()[0] }

// ends waits for the end of an instance and fails the test if it is another.
func (f *fleet) ends(id string, want State) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%s is %s", id, want), func() bool {
		status, err := f.any().Client().Get(testContext(f.t), id)
		return err == nil && status.State == want
	})
}

func TestChildrenInOtherGroups(t *testing.T) {
	noGoroutinesLeft(t)
	f := startGroups(t, familyDefinitions()...)
	ctx := testContext(t)
	// Parents in every group, each with a child in every group.
	for group := range groupsOfTests {
		for how, want := range map[string]string{"works": "works42", "fails": errWanted.Error()} {
			id := idIn("parent-"+how, group)
			prefix := fmt.Sprintf("%s-%d", how, group)
			got, err := Call(ctx, f.any().Client(), family, id, how+" "+prefix)
			if err != nil || strings.Count(got, want) != groupsOfTests {
				t.Errorf("%s: %q, %v", id, got, err)
			}
			for child := range groupsOfTests {
				status, err := f.any().Client().Get(ctx, idIn(prefix, child))
				if err != nil || status.ParentID != id {
					t.Errorf("child of %s in group %d: %+v, %v", id, child, status, err)
				}
			}
		}
	}
	sameHistories(t, f.all())
}

func TestChildrenInOtherGroupsAreClosedWithTheirParent(t *testing.T) {
	noGoroutinesLeft(t)
	f := startGroups(t, familyDefinitions()...)
	ctx := testContext(t)
	client := f.any().Client()
	for how, want := range map[string]State{"leaves": Cancelled, "terminates": Terminated, "abandons": Running} {
		for _, end := range []string{"returns", "cancelled", "terminated"} {
			id, prefix := "parent-"+how+"-"+end, how+"-"+end
			if _, err := StartRun(ctx, client, family, id, how+" "+prefix); err != nil {
				t.Fatal(err)
			}
			for group := range groupsOfTests {
				f.ends(idIn(prefix, group), Running)
			}
			var err error
			switch end {
			case "returns":
				err = Send(ctx, client, id, word, "")
			case "cancelled":
				err = client.Cancel(ctx, id, "no more")
			case "terminated":
				err = client.Terminate(ctx, id, "no more")
			}
			if err != nil {
				t.Fatal(err)
			}
			for group := range groupsOfTests {
				f.ends(idIn(prefix, group), want)
			}
		}
	}
}

// Chained starts, and those of abandoned children, are made once: what was ended
// and purged since is not begun again by the next leader.
func TestStartsThatCrossAreMadeOnce(t *testing.T) {
	noGoroutinesLeft(t)
	f := startGroups(t, familyDefinitions()...)
	ctx := testContext(t)
	client := f.any().Client()
	if _, err := Call(ctx, client, family, "chainer", "chains link"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for group := range groupsOfTests {
		id := idIn("link", group)
		f.ends(id, Completed)
		ids = append(ids, id)
	}
	eventually(t, "all are acknowledged and purged", func() bool {
		if _, err := client.Purge(ctx, ids...); err != nil {
			return false
		}
		n, err := client.Count(ctx, Filter{IDPrefix: "link-"})
		return n == 0 && err == nil
	})
	f.handOverAll()
	if _, err := Call(ctx, client, doubled, "after", 1); err != nil {
		t.Fatal(err)
	}
	for _, node := range f.all() {
		for _, g := range node.groups {
			for _, id := range ids {
				if g.journal.WaitsToStart(id) {
					t.Errorf("%s waits to be started again", id)
				}
			}
		}
	}
	if n, err := client.Count(ctx, Filter{IDPrefix: "link-"}); n != 0 || err != nil {
		t.Errorf("%d are there again, %v", n, err)
	}
}

// handOverAll has every group led by another node.
func (f *fleet) handOverAll() {
	f.t.Helper()
	for group := range groupsOfTests {
		epoch := f.any().groups[group].journal.Epoch()
		eventually(f.t, "the group is handed over", func() bool {
			for _, node := range f.all() {
				if g := node.groups[group]; g.leads() && g.journal.Epoch() == epoch {
					_ = g.journal.TransferLeadership(testContext(f.t)) // or it has lost the lead by itself
				}
			}
			return f.any().groups[group].journal.Epoch() > epoch
		})
	}
}

func idGroup(id string) int { return slots.Group(id, groupsOfTests) }

// lead has a node lead a group.
func (f *fleet) lead(group int, id string) {
	f.t.Helper()
	eventually(f.t, "the node leads", func() bool {
		for _, node := range f.all() {
			if node.ID() != id && node.groups[group].leads() {
				_ = node.groups[group].journal.TransferLeadershipTo(testContext(f.t), id) // or it has lost the lead by itself
			}
		}
		return f.nodes[id].groups[group].leads()
	})
}

func TestListsGoThroughAllGroups(t *testing.T) {
	f := startGroups(t, definitions()...)
	ctx := testContext(t)
	const many = 57
	var ids []string
	for i := range many {
		id := fmt.Sprintf("i-%02d", i)
		ids = append(ids, id)
		if _, err := Call(ctx, f.any().Client(), doubled, id, i); err != nil {
			t.Fatal(err)
		}
	}
	remote, err := Dial(ctx, DialConfig{Addresses: []string{f.any().config.Listen}, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	for name, client := range map[string]*Client{"node": f.any().Client(), "remote": remote} {
		for _, limit := range []int{1, 7, 57, 100} {
			var listed []string
			for after := ""; ; {
				page, err := client.List(ctx, Filter{IDPrefix: "i-"}, after, limit)
				if err != nil {
					t.Fatal(err)
				}
				for _, status := range page.Instances {
					listed = append(listed, status.InstanceID)
				}
				if after = page.Next; after == "" {
					break
				}
			}
			if !slices.Equal(listed, ids) {
				t.Errorf("%s, by %d: %v", name, limit, listed)
			}
		}
		if n, err := client.Count(ctx, Filter{IDPrefix: "i-"}); n != many || err != nil {
			t.Errorf("%s: %d counted, %v", name, n, err)
		}
		if got, err := Call(ctx, client, doubled, "by-"+name, 4); got != 8 || err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
		members, err := client.Members(ctx)
		if err != nil || len(members) != 3 || !members[0].Voter {
			t.Fatalf("%s: members %+v, %v", name, members, err)
		}
		if led := len(members[0].Leads) + len(members[1].Leads) + len(members[2].Leads); led > groupsOfTests {
			t.Errorf("%s: %d groups are led", name, led)
		}
	}
	if n, err := remote.Purge(ctx, ids...); n != many || err != nil {
		t.Errorf("%d purged, %v", n, err)
	}
}

func TestLeadersAreSpread(t *testing.T) {
	const groups = 6 // two for each node
	f := startGroupsThat(t, groups, 20*time.Millisecond, definitions()...)
	f.awaitSpread()
	// A node that goes and comes back gets its part again.
	gone := f.any()
	config := gone.config
	f.kill(gone.ID())
	eventually(t, "the others lead all groups", func() bool {
		led := 0
		for _, node := range f.all() {
			led += len(node.led())
		}
		return led == groups
	})
	f.start(config)
	f.awaitSpread()
	for _, node := range f.all() {
		eventually(t, "the node is ready", func() bool { return node.Health().Ready() == nil })
		if health := node.Health(); len(health.Groups) != groups {
			t.Errorf("health: %+v", health)
		}
	}
}

// A node is killed again and again while families run; every result is right, and
// all nodes have the same histories in the end.
func TestFamiliesOutliveTheLossOfNodes(t *testing.T) {
	f := startGroups(t, familyDefinitions()...)
	ctx := testContext(t)
	f.awaitSpread()
	stays := f.nodes["n3"]
	const many = 24
	var running sync.WaitGroup
	for i := range many {
		running.Go(func() {
			id, prefix := fmt.Sprintf("parent-%d", i), fmt.Sprintf("works-%d", i)
			got, err := Call(ctx, stays.Client(), family, id, "works "+prefix, RequestID(id))
			if want := strings.TrimSpace(strings.Repeat("works42 ", groupsOfTests)); got != want || err != nil {
				t.Errorf("%s: %q, %v", id, got, err)
			}
		})
	}
	for _, id := range []string{"n1", "n2"} {
		f.mu.Lock()
		config := f.nodes[id].config
		f.mu.Unlock()
		f.kill(id)
		f.start(config)
		eventually(t, "the node has caught up", func() bool { return f.nodes[id].Health().Ready() == nil })
	}
	running.Wait()
	sameHistories(t, f.all())
	for i := range many {
		for group := range groupsOfTests {
			want := []string{"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted", "OrchestrationCompleted"}
			if got := historyTypes(t, stays, idIn(fmt.Sprintf("works-%d", i), group)); !slices.Equal(got, want) {
				t.Errorf("family %d, child %d: %v", i, group, got)
			}
		}
		ends := slices.DeleteFunc(historyTypes(t, stays, fmt.Sprintf("parent-%d", i)), func(kind string) bool {
			return kind != "SubOrchestrationCompleted"
		})
		if len(ends) != groupsOfTests {
			t.Errorf("family %d: %d results of %d children", i, len(ends), groupsOfTests)
		}
	}
}

func TestNumberOfGroupsStays(t *testing.T) {
	dir := t.TempDir()
	config := Config{Dir: dir, Groups: groupsOfTests, Definitions: definitions(), Logger: quiet()}
	node := startNode(t, config)
	ctx := testContext(t)
	for i := range 20 {
		if _, err := Call(ctx, node.Client(), doubled, fmt.Sprint("i-", i), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "group-003", "identity")); err != nil {
		t.Error(err)
	}
	for _, groups := range []int{1, 8} {
		config.Groups = groups
		var other *GroupsError
		if _, err := Start(ctx, config); !errors.As(err, &other) || other.Have != groupsOfTests || other.Want != groups {
			t.Errorf("with %d groups: %v", groups, err)
		}
	}
	config.Groups = groupsOfTests
	node = startNode(t, config)
	if n, err := node.Client().Count(ctx, Filter{}); n != 20 || err != nil {
		t.Errorf("%d instances after a restart, %v", n, err)
	}
	for _, groups := range []int{-1, groupsMax + 1} {
		var wrong *ConfigError
		if _, err := Start(ctx, Config{InMemory: true, Groups: groups}); !errors.As(err, &wrong) || wrong.Field != "Groups" {
			t.Errorf("%d groups: %v", groups, err)
		}
	}
}

// A node that stops hands over every group that it leads.
func TestStopHandsOverAllGroups(t *testing.T) {
	f := startGroups(t, definitions()...)
	f.awaitSpread()
	stops := f.nodes["n2"]
	delete(f.nodes, "n2")
	epochs := make([]uint64, groupsOfTests)
	for _, g := range stops.led() {
		epochs[g.number] = g.journal.Epoch()
	}
	if err := stops.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := stops.Health().Ready(); !errors.Is(err, ErrDraining) {
		t.Errorf("ready: %v", err)
	}
	for group := range groupsOfTests {
		if got, err := Call(testContext(t), f.any().Client(), doubled, idIn("after", group), 2); got != 4 || err != nil {
			t.Errorf("group %d: %d, %v", group, got, err)
		}
	}
}

// Everything goes on when all nodes were down.
func TestGroupsComeBackFromDisk(t *testing.T) {
	f := startGroups(t, familyDefinitions()...)
	ctx := testContext(t)
	if _, err := StartRun(ctx, f.any().Client(), family, "parent", "waits child"); err != nil {
		t.Fatal(err)
	}
	for group := range groupsOfTests {
		f.ends(idIn("child", group), Running)
	}
	var configs []Config
	for _, node := range f.all() {
		configs = append(configs, node.config)
		f.kill(node.ID())
	}
	for _, config := range configs {
		f.start(config)
	}
	for group := range groupsOfTests {
		if err := Send(ctx, f.any().Client(), idIn("child", group), word, "back"); err != nil {
			t.Fatal(err)
		}
	}
	f.ends("parent", Completed)
	sameHistories(t, f.all())
}

// A node that joins becomes a member of every group, and one that is removed of none,
// also when whoever has asked for it has only reached the first group.
func TestMembersOfAllGroupsAreTheSame(t *testing.T) {
	f := startGroups(t, definitions()...)
	ctx := testContext(t)
	joining := f.joining("n4")
	joining.Groups = groupsOfTests + 1
	if _, err := Start(ctx, joining); !errors.Is(err, ErrGroups) {
		t.Errorf("joined with another number of groups: %v", err)
	}
	joining.Groups = groupsOfTests // in the same Dir, which is nobody's yet
	f.start(joining)
	voters := func() (voters int) {
		members, err := f.nodes["n1"].Members(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if m.Voter {
				voters++
			}
		}
		return voters
	}
	eventually(t, "it votes in every group", func() bool { return voters() == 4 })
	f.awaitSpread()
	// Only the first group is told.
	_, err := f.nodes["n1"].call(ctx, &clusterpb.Request{Group: 1, Call: &clusterpb.Request_RemoveMember{
		RemoveMember: &clusterpb.RemoveMemberRequest{Node: "n4"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "no group has it", func() bool {
		for _, g := range f.nodes["n1"].groups {
			if g.journal.IsMember("n4") {
				return false
			}
		}
		return true
	})
	if err := f.nodes["n1"].RemoveNode(ctx, "n4"); err != nil {
		t.Errorf("removed again: %v", err)
	}
	removed := f.nodes["n4"]
	eventually(t, "it knows", func() bool { return errors.Is(removed.Err(), ErrRemoved) })
	if err := f.nodes["n1"].RemoveNode(ctx, "n9"); !errors.Is(err, ErrNotMember) {
		t.Errorf("a stranger is removed: %v", err)
	}
}

// One of four nodes is down. A second one is removed, and still votes in each group
// until that has removed it: without it, two of four would be no majority.
func TestANodeThatIsRemovedVotesUntilAllGroupsHaveRemovedIt(t *testing.T) {
	f := startGroupsThat(t, groupsOfTests, time.Hour, definitions()...)
	ctx := testContext(t)
	joining := f.joining("n4")
	joining.Groups = groupsOfTests
	joined := f.start(joining)
	for _, g := range joined.groups {
		eventually(t, "it has a vote", func() bool {
			self := g.self()
			return self != nil && self.Voter
		})
	}
	f.kill("n3")
	stays, removed := f.nodes["n2"], f.nodes["n1"]
	eventually(t, "it is removed", func() bool {
		err := stays.RemoveNode(ctx, "n1")
		if err != nil && !errors.Is(err, ErrChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	for group := range groupsOfTests {
		if got, err := Call(ctx, stays.Client(), doubled, idIn("after", group), 2); got != 4 || err != nil {
			t.Errorf("group %d: %d, %v", group, got, err)
		}
	}
	select {
	case <-removed.Failed():
	case <-ctx.Done():
		t.Fatal("it does not know")
	}
	for _, g := range removed.groups {
		if !errors.Is(g.journal.Err(), ErrRemoved) {
			t.Errorf("group %d: %v", g.number, g.journal.Err())
		}
	}
}

func TestGroupWhoseDirectoryIsGoneDoesNotBeginAnew(t *testing.T) {
	config := Config{Dir: t.TempDir(), Groups: groupsOfTests, Logger: quiet()}
	if err := startNode(t, config).Close(); err != nil {
		t.Fatal(err)
	}
	lost := filepath.Join(config.Dir, "group-002")
	if err := os.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
	var damaged *journal.DamagedError
	if _, err := Start(testContext(t), config); !errors.As(err, &damaged) || damaged.Path != lost {
		t.Errorf("started: %v", err)
	}
}

// The leader of a child's group is lost when the child's end is committed, and
// nobody was told: the parent's leader finds it in its own replica.
func TestEndThatWasNotSaidIsFoundAfterTheLossOfALeader(t *testing.T) {
	f := startGroupsThat(t, groupsOfTests, time.Hour, familyDefinitions()...) // so that no leader moves
	ctx := testContext(t)
	f.lead(idGroup("parent"), "n2")
	f.lead((idGroup("parent")+1)%groupsOfTests, "n1")
	var mute atomic.Pointer[Node]
	for _, node := range f.nodes {
		ask := node.ask
		node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			if mute.Load() == node && request.GetCross() != nil {
				return notLeader("it says nothing")
			}
			return ask(ctx, request)
		}
	}
	const parent, prefix = "parent", "child"
	if _, err := StartRun(ctx, f.any().Client(), family, parent, "waits "+prefix); err != nil {
		t.Fatal(err)
	}
	lost, client := f.nodes["n1"], f.nodes["n2"].Client()
	for group := range groupsOfTests {
		f.ends(idIn(prefix, group), Running)
	}
	mute.Store(lost)
	for group := range groupsOfTests {
		id := idIn(prefix, group)
		if err := Send(ctx, client, id, word, "x"); err != nil {
			t.Fatal(err)
		}
		f.ends(id, Completed)
	}
	f.kill(lost.ID())
	if got, err := f.any().Client().Wait(ctx, parent); err != nil || got.State != Completed {
		t.Errorf("parent: %+v, %v", got, err)
	}
	sameHistories(t, f.all())
}
