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

	"github.com/tenuto-dev/tenuto/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// damageTables changes a bit in each table of a node, which its state and its snapshots share.
func damageTables(t *testing.T, dir string) {
	t.Helper()
	tr, seen := readDirTree(t, dir), map[uint64]bool{}
	for name, inode := range tr.names {
		if snapshot.IsImmutable(name) && !seen[inode] {
			seen[inode] = true
			flipBitOnDisk(t, dir, raftlogtest.Bit{Name: name, At: len(tr.contents[inode]) / 2, Mask: 1})
		}
	}
	if len(seen) == 0 {
		t.Fatal("there is no table to damage")
	}
}

// damageManifests damages every snapshot of a node.
func damageManifests(t *testing.T, dir string) {
	t.Helper()
	for name := range readDirTree(t, dir).names {
		if strings.HasPrefix(name, snapshot.DirName) && filepath.Base(name) == snapshot.ManifestFile {
			flipBitOnDisk(t, dir, raftlogtest.Bit{Name: name, At: 10, Mask: 1})
		}
	}
}

func TestRecovery_FetchesStateFromPeers(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"tables of state and snapshots": func(t *testing.T, dir string) {
			damageTables(t, dir)
			flipBitOnDisk(t, dir, raftlogtest.Bit{Name: filepath.Join(stateDir, "current"), Mask: 1})
		},
		"manifests of all snapshots": damageManifests,
		"everything but the log and the vote": func(t *testing.T, dir string) {
			damageTables(t, dir)
			damageManifests(t, dir)
			flipBitOnDisk(t, dir, raftlogtest.Bit{Name: filepath.Join(stateDir, "current"), Mask: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newCorruptedCluster(t)
			damage(t, g.dirs[g.victim])
			g.beginInstance(t)
			outcome := g.restartVictim(t, name, false)
			if !outcome.fetched {
				t.Error("it fetched nothing")
			}
			served := uint64(0)
			for _, j := range g.nodes {
				served += j.Stats().SnapshotsServed
			}
			if served != 1 {
				t.Errorf("%d snapshots were sent", served)
			}
			// It is a member like the others: it votes, and it may lead.
			transferLeadershipTo(t, g.testCluster, g.victim)
			g.beginInstance(t)
			if !g.awaitCaughtUp(t, "after it has led") {
				t.Error(g.nodes[g.victim].Err())
			}
		})
	}
}

// The others have never taken a snapshot.
func TestSnapshotServer_TakesSnapshotIfNone(t *testing.T) {
	g := newConfiguredTestCluster(t, nil, func(_ int, c *Config) { c.TrailingLogs = 1 })
	r := &corruptedCluster{testCluster: g}
	for range 20 {
		r.beginInstance(t)
	}
	g.awaitEqualStates(t)
	r.victim = (g.leader(t) + 1) % 3
	if err := g.nodes[r.victim].raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	g.stop(t, r.victim)
	damageManifests(t, g.dirs[r.victim])
	if outcome := r.restartVictim(t, "manifest", false); !outcome.fetched {
		t.Error("it fetched nothing")
	}
}

func TestRecovery_RejectsUntilPeerHelps(t *testing.T) {
	g := newCorruptedCluster(t)
	g.configure = func(_ int, c *Config) { c.TrailingLogs, c.RepairTimeout = 4, time.Millisecond }
	damageManifests(t, g.dirs[g.victim])
	for i := range g.nodes {
		g.stop(t, i)
	}
	before := readDirTree(t, filepath.Join(g.dirs[g.victim], "raft.stable"))
	var repair *RepairError
	var damaged *DamagedError
	for range 2 {
		err := g.tryStart(t, g.victim, nil, nil)
		if !errors.As(err, &repair) || !errors.As(err, &damaged) || damaged.Index == 0 || repair.Err == nil {
			t.Fatalf("opened: %v", err)
		}
	}
	if after := readDirTree(t, filepath.Join(g.dirs[g.victim], "raft.stable")); !bytes.Equal(before.onlyContent(), after.onlyContent()) {
		t.Error("the vote was changed")
	}
	g.configure = func(_ int, c *Config) { c.TrailingLogs = 4 }
	for i := range g.nodes {
		if i != g.victim {
			g.start(t, i, nil, nil)
		}
	}
	if outcome := g.restartVictim(t, "with the others", false); !outcome.fetched {
		t.Error("it fetched nothing")
	}
}

func (tr *dirTree) onlyContent() []byte {
	for _, content := range tr.contents {
		return content
	}
	return nil
}

// The first node asked has a damaged snapshot. Whichever node has it fails instead of sending it,
// and another one helps.
func TestSnapshotServer_DamagedSnapshotNotSent(t *testing.T) {
	g := newCorruptedCluster(t)
	leader := g.leader(t) // it may lose leadership when the other node fails
	other := 3 - g.victim - leader
	damageTables(t, g.dirs[other])
	asking := &snapshot.Fetcher{
		Node: "asks", Dial: g.listen("asks").Dial, Timeout: waittest.Timeout, Logger: slog.New(slog.DiscardHandler), MinIndex: 1,
	}
	var err error
	if asking.Snapshots, err = snapshot.Open(vfs.Default, t.TempDir(), "asks", "", asking.Logger); err != nil {
		t.Fatal(err)
	}
	if m, err := asking.FetchFrom(t.Context(), g.peers[other].Address); err == nil {
		t.Errorf("%+v was fetched", m)
	}
	waittest.Receive(t, "the damaged node fails", g.nodes[other].Failed())
	if _, err := asking.Run(t.Context(), []string{g.peers[other].Address, g.peers[leader].Address}); err != nil {
		t.Error(err)
	}
	// It repairs itself when it is started again.
	g.stop(t, other)
	g.victim = other
	if outcome := g.restartVictim(t, "the one that was asked", false); !outcome.fetched {
		t.Error("it fetched nothing")
	}
}

func TestSnapshotServer_RejectsInvalidRequests(t *testing.T) {
	g := newCorruptedCluster(t)
	query := func(exchange func(conn net.Conn) error) (string, error) {
		t.Helper()
		conn, err := g.nodes[g.leader(t)].config.Network.Dial(g.peers[g.leader(t)].Address, waittest.Timeout)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(waittest.Timeout))
		if err := exchange(conn); err != nil {
			return "", err
		}
		var r snapshot.Reply
		err = frame.ReadJSON(conn, &r)
		return r.Rejection, err
	}
	for name, q := range map[string]snapshot.Request{
		"cluster":    {Cluster: "another"},
		"entries up": {MinIndex: 1 << 40},
	} {
		if rejection, err := query(func(conn net.Conn) error { return frame.WriteJSON(conn, snapshot.RequestMagic, q) }); err != nil || !strings.Contains(rejection, name) {
			t.Errorf("%q, error %v", rejection, err)
		}
	}
	for name, bytes := range map[string][]byte{
		"another magic": []byte("tenuto-ask-2...................."),
		"no question":   append([]byte(snapshot.RequestMagic), 0, 0, 0, 0, 0, 0, 0, 0),
		"a huge one":    append([]byte(snapshot.RequestMagic), 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0),
	} {
		if rejection, err := query(func(conn net.Conn) error { _, err := conn.Write(bytes); return err }); err == nil {
			t.Errorf("%s: answered with %q", name, rejection)
		}
	}
	// A peer that says nothing more blocks nobody: the test closes the partition.
	conn, err := g.nodes[g.leader(t)].config.Network.Dial(g.peers[g.leader(t)].Address, waittest.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(snapshot.RequestMagic[:3])); err != nil {
		t.Fatal(err)
	}
}

// At which index a log has to continue: what is in neither the snapshots nor the log is fetched,
// and a log that is shorter than before is rejected.
func TestRecovery_FindsGapBetweenSnapshotAndLog(t *testing.T) {
	for name, c := range map[string]struct {
		first, last uint64   // of the log
		names       []string // of the directory of snapshots
		believed    []*snapshot.Manifest
		applied     uint64
		least       uint64 // index to ask for; 0 if there is no gap
		damaged     bool
	}{
		"nothing at all":                         {},
		"a log from the beginning":               {first: 1, last: 9, applied: 7},
		"a snapshot and the log behind":          {first: 6, last: 9, names: []string{snapshotDirName(5)}, believed: []*snapshot.Manifest{{Index: 5, Applied: 5}}, applied: 5},
		"a log that overlaps":                    {first: 3, last: 9, names: []string{snapshotDirName(5)}, believed: []*snapshot.Manifest{{Index: 5, Applied: 6}}, applied: 6},
		"no snapshot":                            {first: 6, last: 9, least: 5},
		"the snapshot is lost":                   {first: 3, last: 9, names: []string{snapshotDirName(5) + snapshot.QuarantineSuffix}, applied: 8, least: 2},
		"an older one is left":                   {first: 6, last: 9, names: []string{snapshotDirName(2), snapshotDirName(5) + snapshot.QuarantineSuffix}, believed: []*snapshot.Manifest{{Index: 2, Applied: 2}}, applied: 2, least: 5},
		"an older one is left that reaches":      {first: 3, last: 9, names: []string{snapshotDirName(2), snapshotDirName(5) + snapshot.QuarantineSuffix}, believed: []*snapshot.Manifest{{Index: 2, Applied: 2}}, applied: 2},
		"the log is empty, the snapshot lost":    {names: []string{snapshotDirName(5) + snapshot.QuarantineSuffix}, least: 5},
		"the log is empty, an older one left":    {names: []string{snapshotDirName(2), snapshotDirName(5) + snapshot.QuarantineSuffix}, believed: []*snapshot.Manifest{{Index: 2, Applied: 2}}, applied: 2, least: 5},
		"the log was replaced, snapshot lost":    {first: 1, last: 3, names: []string{snapshotDirName(5) + snapshot.QuarantineSuffix}, least: 5},
		"what was applied is not in the log":     {first: 1, last: 3, applied: 4, damaged: true},
		"what a name says that is no snapshot's": {first: 1, last: 3, names: []string{"lost+found", "9-9"}, applied: 3},
	} {
		fs := vfs.NewMem()
		snapshots, err := snapshot.Open(fs, "", "n1", "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.names {
			if err := fs.MkdirAll(fs.PathJoin(snapshots.Dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		log := raft.NewInmemStore()
		for index := c.first; index <= c.last && index > 0; index++ {
			if err := log.StoreLog(&raft.Log{Index: index}); err != nil {
				t.Fatal(err)
			}
		}
		r := &stateLoader{&Config{}, snapshots, log, nil, &stats{}}
		gap, err := r.findGap(c.applied, c.believed)
		var damaged *DamagedError
		if errors.As(err, &damaged) != c.damaged || err != nil && !c.damaged {
			t.Errorf("%s: %v", name, err)
		}
		if (gap == nil) != (c.least == 0) || gap != nil && gap.minIndex != c.least {
			t.Errorf("%s: the gap is %+v, want one up to %d", name, gap, c.least)
		}
	}
}

func snapshotDirName(index uint64) string { return fmt.Sprintf(snapshot.NameFormat, index, 1) }

func TestFetchSnapshot_ChecksStream(t *testing.T) {
	fs := vfs.NewMem()
	from := mustOpenNode(t, fs, "from")
	if err := errors.Join(from.applyInstances(50), from.snapshot()); err != nil {
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
	to := mustOpenNode(t, fs, "to")
	for at := 0; at < len(sent); at += len(sent)/53 + 1 {
		flipped := bytes.Clone(sent)
		flipped[at] ^= 4
		for what, stream := range map[string][]byte{"flipped": flipped, "cut off": sent[:at]} {
			if _, err := to.snapshots.Fetch(bytes.NewReader(stream), 1); err == nil {
				t.Fatalf("%s at byte %d of %d: accepted", what, at, len(sent))
			}
		}
	}
	if _, err := to.snapshots.Fetch(bytes.NewReader(sent), 2); err == nil {
		t.Error("a sample that is too old was accepted")
	}
	if left, err := fs.List(to.snapshots.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, error %v", left, err)
	}
	if m, err := to.snapshots.Fetch(bytes.NewReader(sent), 1); err != nil || m.Index != 1 {
		t.Errorf("%+v, error %v", m, err)
	}
	if all, err := to.snapshots.Manifests(); err != nil || len(all) != 1 {
		t.Errorf("%d snapshots, error %v", len(all), err)
	}
}

func TestSnapshots_QuarantineDetectsDamagedTable(t *testing.T) {
	fs := vfs.NewMem()
	n := mustOpenNode(t, fs, "n")
	if err := errors.Join(n.applyInstances(50), n.snapshot()); err != nil {
		t.Fatal(err)
	}
	all, err := n.snapshots.Manifests()
	if err != nil || len(all) != 1 {
		t.Fatalf("%d snapshots, error %v", len(all), err)
	}
	want := func(what string, want bool) {
		t.Helper()
		if got, err := n.snapshots.HasDamagedFile(); err != nil || got != want {
			t.Errorf("%s: %t, error %v", what, got, err)
		}
	}
	want("no snapshot was put aside", false)
	if err := n.snapshots.Quarantine(all[0].ID, errors.New("a test says so")); err != nil {
		t.Fatal(err)
	}
	want("its tables are whole", false)
	for _, f := range all[0].Files {
		if snapshot.IsImmutable(f.Name) {
			path := fs.PathJoin(n.snapshots.Dir, all[0].ID+snapshot.QuarantineSuffix, snapshot.FilesDir, f.Name)
			content, err := diskfile.Read(fs, path)
			if err != nil {
				t.Fatal(err)
			}
			content[len(content)/2] ^= 1
			if err := diskfile.Write(fs, path, content); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	want("a table is damaged", true)
}
