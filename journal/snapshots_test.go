package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

var testMembers = raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}}}

// snapshotNode is the state and the snapshots of a node, without Raft.
type snapshotNode struct {
	fs        vfs.FS
	machine   *state.Machine
	snapshots *snapshot.Store
	index     uint64
}

func openNode(fs vfs.FS, dir string) (*snapshotNode, error) {
	log := slog.New(slog.DiscardHandler)
	if err := errors.Join(fs.MkdirAll(dir, 0o700), diskfile.SyncDir(fs, "")); err != nil {
		return nil, err
	}
	n := &snapshotNode{fs: fs}
	var err error
	if n.snapshots, err = snapshot.Open(fs, dir, dir, "", log); err != nil {
		return nil, err
	}
	n.machine, err = openMachine(pebblestore.Options{FS: fs, Dir: fs.PathJoin(dir, stateDir), Logger: log, CacheBytes: 1 << 20}, state.Options{})
	if err != nil {
		return nil, err
	}
	n.index, _ = n.machine.Applied()
	return n, nil
}

// applyInstances applies an epoch and some instances.
func (n *snapshotNode) applyInstances(count int) error {
	records := [][]byte{entry.EncodeEpoch("n1", 1, NewestProtocol)}
	epoch := n.machine.Epoch() + 1
	for i := range count {
		records = append(records, entry.EncodeAppend(newStartAppend(epoch, fmt.Sprintf("i-%d-%d", n.index, i))))
	}
	for _, field := range records {
		entry, err := entry.Unpack(nil, entry.Pack(field))
		if err != nil {
			return err
		}
		if _, err := n.machine.Apply(entry[0]); err != nil {
			return err
		}
	}
	n.index++
	return n.machine.Advance(n.index, 1)
}

// snapshot takes a snapshot as Raft does.
func (n *snapshotNode) snapshot() error {
	f := newFSM(n.machine, n.snapshots, newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {}))
	view, err := f.Snapshot()
	if err != nil {
		return err
	}
	sink, err := n.snapshots.Create(1, n.index, 1, testMembers, 1, nil)
	if err != nil {
		return err
	}
	if err := view.Persist(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// send sends the newest snapshot of a node to another, which installs it.
func (n *snapshotNode) send(to *snapshotNode, transform func([]byte) []byte) error {
	all, err := n.snapshots.List()
	if err != nil || len(all) == 0 {
		return errors.Join(errors.New("nothing to send"), err)
	}
	meta, from, err := n.snapshots.Open(all[0].ID)
	if err != nil {
		return err
	}
	bytes, err := io.ReadAll(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return err
	}
	if int64(len(bytes)) != meta.Size {
		return fmt.Errorf("%d bytes, and the size is %d", len(bytes), meta.Size)
	}
	sink, err := to.snapshots.Create(1, meta.Index, meta.Term, testMembers, 1, nil)
	if err != nil {
		return err
	}
	if _, err := sink.Write(transform(bytes)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	_, source, err := to.snapshots.Open(sink.ID())
	if err != nil {
		return err
	}
	f := newFSM(to.machine, to.snapshots, newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {}))
	err = f.Restore(source)
	to.index, _ = to.machine.Applied()
	return err
}

func unchanged(b []byte) []byte { return b }

func mustOpenNode(t testing.TB, fs vfs.FS, dir string) *snapshotNode {
	t.Helper()
	n, err := openNode(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.machine.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func TestSnapshot_SentAndInstalled(t *testing.T) {
	fs := vfs.NewMem()
	leader, follower := mustOpenNode(t, fs, "leader"), mustOpenNode(t, fs, "follower")
	for round := range 4 {
		if err := errors.Join(leader.applyInstances(200), leader.snapshot(), follower.applyInstances(round), leader.send(follower, unchanged)); err != nil {
			t.Fatal(err)
		}
		if leader.machine.Digest() != follower.machine.Digest() {
			t.Fatalf("round %d: the states differ", round)
		}
	}
	if all, err := leader.snapshots.List(); err != nil || len(all) != snapshot.Max || all[0].Index != 4 {
		t.Errorf("%d snapshots, error %v", len(all), err)
	}
}

// A node takes a snapshot while the leader sends it one of the same entries, which the node then
// rejects.
func TestSnapshot_RejectedOneLeavesOtherAlone(t *testing.T) {
	n := mustOpenNode(t, vfs.NewMem(), "n1")
	if err := n.applyInstances(20); err != nil {
		t.Fatal(err)
	}
	create := func() *snapshot.Sink {
		sink, err := n.snapshots.Create(1, n.index, 1, testMembers, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return sink.(*snapshot.Sink)
	}
	own := create()
	if err := errors.Join(n.machine.Flush(t.Context(), n.index), own.Checkpoint(n.machine)); err != nil {
		t.Fatal(err)
	}
	n.snapshots.LastLocalIndex = func() uint64 { return n.index }
	sent := create()
	if _, err := sent.Write([]byte("a snapshot")); err == nil {
		t.Fatal("it was not rejected")
	}
	if err := errors.Join(sent.Cancel(), own.Close()); err != nil {
		t.Fatal(err)
	}
	again := create()
	if err := errors.Join(again.Checkpoint(n.machine), again.Close()); err != nil {
		t.Fatal(err)
	}
	if all, err := n.snapshots.List(); err != nil || len(all) != 1 || all[0].Index != n.index {
		t.Errorf("%d snapshots, %v", len(all), err)
	}
}

func TestSnapshot_DamagedInTransitNotInstalled(t *testing.T) {
	fs := vfs.NewMem()
	leader := mustOpenNode(t, fs, "leader")
	if err := errors.Join(leader.applyInstances(50), leader.snapshot()); err != nil {
		t.Fatal(err)
	}
	size := 0
	_ = leader.send(mustOpenNode(t, fs, "measure"), func(b []byte) []byte { size = len(b); return b })
	follower := mustOpenNode(t, fs, "follower")
	before := follower.machine.Digest()
	for at := 0; at < size; at += size/97 + 1 {
		for what, damage := range map[string]func([]byte) []byte{
			"flipped": func(b []byte) []byte { b = bytes.Clone(b); b[at] ^= 4; return b },
			"cut off": func(b []byte) []byte { return b[:at] },
		} {
			if err := leader.send(follower, damage); err == nil {
				t.Fatalf("%s at byte %d of %d: accepted", what, at, size)
			}
			if follower.machine.Digest() != before {
				t.Fatalf("%s at byte %d of %d: the state has changed", what, at, size)
			}
		}
	}
}

// Each write of taking, sending and installing a snapshot is the last one once (or every seventh
// is). What is left can be opened, and is the state after an entry.
func TestSnapshot_SurvivesCrashAtEveryWrite(t *testing.T) {
	digests := map[uint64][32]byte{}
	step := 7 / waittest.Repetitions(7, 1)
	for n := 1; ; n += step {
		fs := vfs.NewCrashableMem()
		var writes atomic.Int64
		cut := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			if writes.Add(1) >= int64(n) {
				return errorfs.ErrInjected
			}
			return nil
		}))
		current, done := runSnapshots(cut, digests)
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		for _, dir := range []string{"leader", "follower"} {
			wantRecovered(t, left, dir, n, current, digests)
		}
		if done {
			t.Logf("%d writes", n)
			return
		}
	}
}

// runSnapshots takes two snapshots and sends the second one. It returns the index of the last
// finished snapshot, and whether nothing failed.
func runSnapshots(fs vfs.FS, digests map[uint64][32]byte) (current uint64, done bool) {
	leader, err := openNode(fs, "leader")
	if err != nil {
		return 0, false
	}
	defer func() { _ = leader.machine.Close() }()
	follower, err := openNode(fs, "follower")
	if err != nil {
		return 0, false
	}
	defer func() { _ = follower.machine.Close() }()
	for range 2 {
		if leader.applyInstances(20) != nil {
			return current, false
		}
		digests[leader.index] = leader.machine.Digest()
		if leader.snapshot() != nil {
			return current, false
		}
		current = leader.index
	}
	return current, leader.send(follower, unchanged) == nil
}

// wantRecovered opens what a crash has left of a node, as a journal does without a log.
func wantRecovered(t *testing.T, fs vfs.FS, dir string, n int, current uint64, digests map[uint64][32]byte) {
	t.Helper()
	c := Config{Node: dir, Dir: dir, Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	snapshots, err := snapshot.Open(fs, dir, dir, "", c.Logger)
	if err != nil {
		t.Fatal(err)
	}
	log := raft.NewInmemStore()
	for index := uint64(1); index <= 2; index++ {
		if err := log.StoreLog(&raft.Log{Index: index}); err != nil {
			t.Fatal(err)
		}
	}
	machine, err := (&stateLoader{&c, snapshots, log, func() []raft.Configuration { return nil }, &stats{}}).open(t.Context())
	if err != nil {
		t.Fatalf("cut at write %d: %s: %v", n, dir, err)
	}
	index, _ := machine.Applied()
	if dir == "leader" && index < current {
		t.Fatalf("cut at write %d: snapshot of %d was taken, %d is left", n, current, index)
	}
	if index > 0 && machine.Digest() != digests[index] {
		t.Fatalf("cut at write %d: %s at %d: the state differs", n, dir, index)
	}
	if err := machine.Close(); err != nil {
		t.Fatal(err)
	}
}

// flipBits changes a bit in the middle of each of the largest files that match.
func flipBits(t testing.TB, pattern ...string) (changed int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		changed++
	}
	return changed
}

func TestRecovery_RebuildsStateFromSnapshotAndLog(t *testing.T) {
	c := Config{Dir: t.TempDir()}
	j := openJournal(t, c)
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	if err := j.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, j, newStartAppend(epoch, "b"))
	want := j.Digest()
	closeJournal(t, j)
	// The manifests of the database are not shared with the snapshot.
	if flipBits(t, c.Dir, stateDir, "db-*", "MANIFEST-*") == 0 {
		t.Fatal("nothing to damage")
	}
	again := openJournal(t, c)
	awaitLeadership(t, again)
	for _, id := range []string{"a", "b"} {
		if lastEvent(t, again, id) != 2 {
			t.Errorf("%s is lost", id)
		}
	}
	if again.Epoch() == epoch || want == again.Digest() {
		t.Error("no new leadership began")
	}
}

func TestRecovery_RejectsStateWithoutSnapshot(t *testing.T) {
	c := Config{Dir: t.TempDir(), TrailingLogs: 1}
	j := openJournal(t, c)
	epoch := awaitLeadership(t, j)
	for i := range 20 {
		mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
	}
	if err := j.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	flipBits(t, c.Dir, stateDir, "db-*", "MANIFEST-*")
	flipBits(t, c.Dir, snapshot.DirName, "*", snapshot.FilesDir, "*.sst")
	for range 2 {
		again, err := Open(t.Context(), testConfig(c))
		if err == nil {
			closeJournal(t, again)
			t.Fatal("opened")
		}
		var damaged *DamagedError
		if !errors.As(err, &damaged) || !strings.Contains(damaged.Reason, "no intact snapshot") {
			t.Fatal(err)
		}
	}
}
