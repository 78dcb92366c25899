package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// damageTables changes a bit in each table of a node: its state and its snapshots
// share them.
func damageTables(t *testing.T, dir string) {
	t.Helper()
	tr, seen := treeOf(t, dir), map[uint64]bool{}
	for name, inode := range tr.names {
		if immutable(name) && !seen[inode] {
			seen[inode] = true
			flipOnDisk(t, dir, bit{name: name, at: len(tr.contents[inode]) / 2, mask: 1})
		}
	}
	if len(seen) == 0 {
		t.Fatal("there is no table to damage")
	}
}

// damageManifests makes no snapshot of a node one that can be believed.
func damageManifests(t *testing.T, dir string) {
	t.Helper()
	for name := range treeOf(t, dir).names {
		if strings.HasPrefix(name, snapshotsDir) && filepath.Base(name) == manifestFile {
			flipOnDisk(t, dir, bit{name: name, at: 10, mask: 1})
		}
	}
}

func TestNodeThatCanRebuildItsStateFromNothingFetchesItFromItsPeers(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"tables of state and snapshots": func(t *testing.T, dir string) {
			damageTables(t, dir)
			flipOnDisk(t, dir, bit{name: filepath.Join(stateDir, "current"), mask: 1})
		},
		"manifests of all snapshots": damageManifests,
		"everything but the log and the vote": func(t *testing.T, dir string) {
			damageTables(t, dir)
			damageManifests(t, dir)
			flipOnDisk(t, dir, bit{name: filepath.Join(stateDir, "current"), mask: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRotten(t)
			damage(t, g.dirs[g.victim])
			g.grow(t)
			how := g.comeBack(t, name, false)
			if !how.fetched {
				t.Error("it has fetched nothing")
			}
			handedOut := uint64(0)
			for _, j := range g.nodes {
				handedOut += j.Stats().SnapshotsHandedOut
			}
			if handedOut != 1 {
				t.Errorf("%d snapshots were handed out", handedOut)
			}
			// It is a member like the others: it votes, and it may lead.
			transferTo(t, g.group, g.victim)
			g.grow(t)
			if !g.whole(t, "after it has led") {
				t.Error(g.nodes[g.victim].Err())
			}
		})
	}
}

// The others have never taken a snapshot.
func TestNodeThatIsAskedTakesASnapshotIfItHasNone(t *testing.T) {
	g := newTweakedGroup(t, nil, func(_ int, c *Config) { c.TrailingLogs = 1 })
	r := &rotten{group: g}
	for range 20 {
		r.grow(t)
	}
	g.agree(t)
	r.victim = (g.leader(t) + 1) % 3
	if err := g.nodes[r.victim].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	g.stop(t, r.victim)
	damageManifests(t, g.dirs[r.victim])
	if how := r.comeBack(t, "manifest", false); !how.fetched {
		t.Error("it has fetched nothing")
	}
}

func TestNodeThatNobodyHelpsIsRefusedUntilSomebodyDoes(t *testing.T) {
	g := newRotten(t)
	g.tweak = func(_ int, c *Config) { c.TrailingLogs, c.RepairTimeout = 4, time.Millisecond }
	damageManifests(t, g.dirs[g.victim])
	for i := range g.nodes {
		g.stop(t, i)
	}
	before := treeOf(t, filepath.Join(g.dirs[g.victim], "raft.stable"))
	var repair *RepairError
	var damaged *DamagedError
	for range 2 {
		err := g.tryStart(t, g.victim, nil, nil)
		if !errors.As(err, &repair) || !errors.As(err, &damaged) || damaged.Index == 0 || repair.Err == nil {
			t.Fatalf("opened: %v", err)
		}
	}
	if after := treeOf(t, filepath.Join(g.dirs[g.victim], "raft.stable")); !bytes.Equal(before.only(), after.only()) {
		t.Error("the vote was touched")
	}
	g.tweak = func(_ int, c *Config) { c.TrailingLogs = 4 }
	for i := range g.nodes {
		if i != g.victim {
			g.start(t, i, nil, nil)
		}
	}
	if how := g.comeBack(t, "with the others", false); !how.fetched {
		t.Error("it has fetched nothing")
	}
}

func (tr *tree) only() []byte {
	for _, content := range tr.contents {
		return content
	}
	return nil
}

// The first one that is asked has a damaged snapshot: it is not sent, whoever
// has it steps aside, and another one helps.
func TestDamagedSnapshotIsNotHandedOut(t *testing.T) {
	g := newRotten(t)
	leader := g.leader(t) // which it cannot stay for long when the other has stepped aside
	other := 3 - g.victim - leader
	damageTables(t, g.dirs[other])
	asking := &asking{config: &Config{Node: "asks", Network: g.listen("asks"), Address: "asks", RepairTimeout: patience, Logger: slog.New(slog.DiscardHandler)}, least: 1}
	var err error
	if asking.snapshots, err = openCheckpoints(vfs.Default, t.TempDir(), "asks", "", asking.config.Logger); err != nil {
		t.Fatal(err)
	}
	if m, err := asking.ask(t.Context(), g.peers[other].Address); err == nil {
		t.Errorf("%+v was fetched", m)
	}
	within(t, "whoever has the damage steps aside", g.nodes[other].Failed())
	if _, err := asking.run(t.Context(), []string{g.peers[other].Address, g.peers[leader].Address}); err != nil {
		t.Error(err)
	}
	// It repairs itself when it is started again.
	g.stop(t, other)
	g.victim = other
	if how := g.comeBack(t, "the one that was asked", false); !how.fetched {
		t.Error("it has fetched nothing")
	}
}

func TestWhoeverAsksWrongIsRefused(t *testing.T) {
	g := newRotten(t)
	ask := func(talk func(conn net.Conn) error) (string, error) {
		t.Helper()
		conn, err := g.nodes[g.leader(t)].config.Network.Dial(g.peers[g.leader(t)].Address, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		if err := talk(conn); err != nil {
			return "", err
		}
		var r reply
		err = readAsk(conn, &r)
		return r.Refusal, err
	}
	for name, q := range map[string]question{
		"cluster":    {Cluster: "another"},
		"entries up": {Least: 1 << 40},
	} {
		if refusal, err := ask(func(conn net.Conn) error { return writeAsk(conn, askMagic, q) }); err != nil || !strings.Contains(refusal, name) {
			t.Errorf("%q, error %v", refusal, err)
		}
	}
	for name, bytes := range map[string][]byte{
		"another magic": []byte("tenuto-ask-2...................."),
		"no question":   append([]byte(askMagic), 0, 0, 0, 0, 0, 0, 0, 0),
		"a huge one":    append([]byte(askMagic), 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0),
	} {
		if refusal, err := ask(func(conn net.Conn) error { _, err := conn.Write(bytes); return err }); err == nil {
			t.Errorf("%s: answered with %q", name, refusal)
		}
	}
	// One that says nothing more holds nobody up: the test closes the group.
	conn, err := g.nodes[g.leader(t)].config.Network.Dial(g.peers[g.leader(t)].Address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(askMagic[:3])); err != nil {
		t.Fatal(err)
	}
}

// Where a log has to go on: what is in neither the snapshots nor the log is asked
// for, and a log that is shorter than it was is refused.
func TestGapBetweenSnapshotsAndLogIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		first, last uint64   // of the log
		names       []string // of the directory of snapshots
		believed    []*manifest
		applied     uint64
		least       uint64 // that is asked for; 0 if there is no gap
		damaged     bool
	}{
		"nothing at all":                         {},
		"a log from the beginning":               {first: 1, last: 9, applied: 7},
		"a snapshot and the log behind":          {first: 6, last: 9, names: []string{name(5)}, believed: []*manifest{{Index: 5, Applied: 5}}, applied: 5},
		"a log that overlaps":                    {first: 3, last: 9, names: []string{name(5)}, believed: []*manifest{{Index: 5, Applied: 6}}, applied: 6},
		"no snapshot":                            {first: 6, last: 9, least: 5},
		"the snapshot is lost":                   {first: 3, last: 9, names: []string{name(5) + disbelieved}, applied: 8, least: 2},
		"an older one is left":                   {first: 6, last: 9, names: []string{name(2), name(5) + disbelieved}, believed: []*manifest{{Index: 2, Applied: 2}}, applied: 2, least: 5},
		"an older one is left that reaches":      {first: 3, last: 9, names: []string{name(2), name(5) + disbelieved}, believed: []*manifest{{Index: 2, Applied: 2}}, applied: 2},
		"the log is empty, the snapshot lost":    {names: []string{name(5) + disbelieved}, least: 5},
		"the log is empty, an older one left":    {names: []string{name(2), name(5) + disbelieved}, believed: []*manifest{{Index: 2, Applied: 2}}, applied: 2, least: 5},
		"the log was replaced, snapshot lost":    {first: 1, last: 3, names: []string{name(5) + disbelieved}, least: 5},
		"what was applied is not in the log":     {first: 1, last: 3, applied: 4, damaged: true},
		"what a name says that is no snapshot's": {first: 1, last: 3, names: []string{"lost+found", "9-9"}, applied: 3},
	} {
		fs := vfs.NewMem()
		snapshots, err := openCheckpoints(fs, "", "n1", "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.names {
			if err := fs.MkdirAll(fs.PathJoin(snapshots.dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		log := raft.NewInmemStore()
		for index := c.first; index <= c.last && index > 0; index++ {
			if err := log.StoreLog(&raft.Log{Index: index}); err != nil {
				t.Fatal(err)
			}
		}
		r := &recovery{&Config{}, snapshots, log, &stats{}}
		gap, err := r.reaches(c.applied, c.believed)
		var damaged *DamagedError
		if errors.As(err, &damaged) != c.damaged || err != nil && !c.damaged {
			t.Errorf("%s: %v", name, err)
		}
		if (gap == nil) != (c.least == 0) || gap != nil && gap.least != c.least {
			t.Errorf("%s: the gap is %+v, want one up to %d", name, gap, c.least)
		}
	}
}

func name(index uint64) string { return fmt.Sprintf(snapshotName, index, 1) }

func TestFetchedSnapshotIsCheckedOnItsWay(t *testing.T) {
	fs := vfs.NewMem()
	from := mustNode(t, fs, "from")
	if err := errors.Join(from.grow(50), from.snapshot()); err != nil {
		t.Fatal(err)
	}
	all, err := from.snapshots.List()
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := from.snapshots.Open(all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	to := mustNode(t, fs, "to")
	for at := 0; at < len(sent); at += len(sent)/53 + 1 {
		flipped := bytes.Clone(sent)
		flipped[at] ^= 4
		for what, stream := range map[string][]byte{"flipped": flipped, "cut off": sent[:at]} {
			if _, err := to.snapshots.fetch(bytes.NewReader(stream), 1); err == nil {
				t.Fatalf("%s at byte %d of %d: taken", what, at, len(sent))
			}
		}
	}
	if _, err := to.snapshots.fetch(bytes.NewReader(sent), 2); err == nil {
		t.Error("one that is too old was taken")
	}
	if left, err := fs.List(to.snapshots.dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, error %v", left, err)
	}
	if m, err := to.snapshots.fetch(bytes.NewReader(sent), 1); err != nil || m.Index != 1 {
		t.Errorf("%+v, error %v", m, err)
	}
	if all, err := to.snapshots.manifests(); err != nil || len(all) != 1 {
		t.Errorf("%d snapshots, error %v", len(all), err)
	}
}

func TestSnapshotThatWasPutAsideMakesTheStateSuspiciousIfATableIsDamaged(t *testing.T) {
	fs := vfs.NewMem()
	n := mustNode(t, fs, "n")
	if err := errors.Join(n.grow(50), n.snapshot()); err != nil {
		t.Fatal(err)
	}
	all, err := n.snapshots.manifests()
	if err != nil || len(all) != 1 {
		t.Fatalf("%d snapshots, error %v", len(all), err)
	}
	want := func(what string, want bool) {
		t.Helper()
		if got, err := n.snapshots.suspicious(); err != nil || got != want {
			t.Errorf("%s: %t, error %v", what, got, err)
		}
	}
	want("no snapshot was put aside", false)
	if err := n.snapshots.disbelieve(all[0].ID, errors.New("a test says so")); err != nil {
		t.Fatal(err)
	}
	want("its tables are whole", false)
	for _, f := range all[0].Files {
		if immutable(f.Name) {
			path := fs.PathJoin(n.snapshots.dir, all[0].ID+disbelieved, filesDir, f.Name)
			content, err := readFile(fs, path)
			if err != nil {
				t.Fatal(err)
			}
			content[len(content)/2] ^= 1
			if err := writeFile(fs, path, content); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	want("a table is damaged", true)
}
