package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/snapshot"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// dirTree is a directory of a journal in memory. A file may have several names, and damage under
// one is visible under all.
type dirTree struct {
	names    map[string]uint64 // to inodes
	contents map[uint64][]byte
}

func readDirTree(t testing.TB, dir string) *dirTree {
	t.Helper()
	tr := &dirTree{map[string]uint64{}, map[uint64][]byte{}}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var stat syscall.Stat_t
		if err := syscall.Stat(path, &stat); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		tr.names[name] = stat.Ino
		tr.contents[stat.Ino], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// write writes the tree to a directory that does not exist yet.
func (tr *dirTree) write(t testing.TB, dir string) {
	t.Helper()
	written := map[uint64]string{}
	for name, inode := range tr.names {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if first, linked := written[inode]; linked {
			err = errors.Join(err, os.Link(first, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, tr.contents[inode], 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		written[inode] = path
	}
}

// The parts of a node's directory in which bits are flipped.
const (
	partLog       = "log"
	partVote      = "vote"
	partState     = stateDir
	partSnapshots = snapshot.DirName
)

var parts = []string{partLog, partVote, partState, partSnapshots}

// filesInPart are the names of the non-empty files of a part, sorted.
func (tr *dirTree) filesInPart(part string) []string {
	prefix := map[string]string{
		partLog: raftlog.FileName, partVote: raftlog.StableFileName,
		partState: stateDir + "/", partSnapshots: snapshot.DirName + "/",
	}[part]
	var names []string
	for name, inode := range tr.names {
		if strings.HasPrefix(name, prefix) && len(tr.contents[inode]) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// randomBit picks a bit of a part. Each file is equally likely, so that small files are hit too.
func (tr *dirTree) randomBit(r *rand.Rand, part string) raftlogtest.Bit {
	names := tr.filesInPart(part)
	name := names[r.IntN(len(names))]
	if tables := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !snapshot.IsImmutable(name) }); len(tables) > 0 && r.IntN(2) == 0 {
		name = tables[r.IntN(len(tables))] // which hold the histories
	}
	return raftlogtest.Bit{Name: name, At: r.IntN(len(tr.contents[tr.names[name]])), Mask: 1 << r.IntN(8)}
}

// flipBitOnDisk flips a bit of a file in place.
func flipBitOnDisk(t testing.TB, dir string, b raftlogtest.Bit) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, b.Name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	_, err = f.ReadAt(one, int64(b.At))
	one[0] ^= b.Mask
	if err == nil {
		_, err = f.WriteAt(one, int64(b.At))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// corruptedCluster is a partition of three nodes, one of which has damaged files.
type corruptedCluster struct {
	*testCluster
	victim       int
	tree         *dirTree
	acknowledged int
}

// newCorruptedCluster starts a partition whose nodes have several snapshots, and logs that begin
// after the older ones.
func newCorruptedCluster(t *testing.T) *corruptedCluster {
	t.Helper()
	g := newConfiguredTestCluster(t, nil, func(_ int, c *Config) {
		c.TrailingLogs = 4
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = 2*time.Second, 2*time.Second, 2*time.Second
	})
	r := &corruptedCluster{testCluster: g}
	for range 3 {
		for range 12 {
			r.beginInstance(t)
		}
		g.awaitEqualStates(t)
		for _, j := range g.nodes {
			if err := j.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		r.beginInstance(t)
	}
	g.awaitEqualStates(t)
	r.victim = (g.leader(t) + 1) % 3
	g.stop(t, r.victim)
	r.tree = readDirTree(t, g.dirs[r.victim])
	return r
}

// restoreFiles restores the victim's files except its start counter. With fewer starts than the
// others have seen, it would be taken for an older copy.
func (r *corruptedCluster) restoreFiles(t *testing.T) {
	t.Helper()
	path := filepath.Join(r.dirs[r.victim], directoryIDFile)
	counted, err := os.ReadFile(path)
	if err == nil {
		err = os.RemoveAll(r.dirs[r.victim])
	}
	if err != nil {
		t.Fatal(err)
	}
	r.tree.write(t, r.dirs[r.victim])
	if err := os.WriteFile(path, counted, 0o600); err != nil {
		t.Fatal(err)
	}
}

// beginInstance begins one instance.
func (r *corruptedCluster) beginInstance(t *testing.T) {
	t.Helper()
	waittest.Eventually(t, "an append", func() bool {
		leader := r.nodes[r.leader(t)]
		return tryBegin(t, leader, newStartAppend(leader.Epoch(), fmt.Sprintf("i-%03d", r.acknowledged)))
	})
	r.acknowledged++
}

// restartOutcome is how a node came back.
type restartOutcome struct {
	rejected, failed int
	fetched          bool
}

// restartVictim starts the victim until it has everything that the others have. A node that has
// failed is started again; one that is rejected for good is replaced, if that is allowed.
func (r *corruptedCluster) restartVictim(t *testing.T, what any, mayBeRejected bool) (outcome restartOutcome) {
	t.Helper()
	for range 5 {
		if err := r.tryStart(t, r.victim, nil, nil); err != nil {
			wantOpenError(t, what, err)
			var repair *RepairError
			if !mayBeRejected || errors.As(err, &repair) {
				t.Errorf("%v: rejected: %v", what, err)
			}
			outcome.rejected++
			if err := os.RemoveAll(r.dirs[r.victim]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		j := r.nodes[r.victim]
		if outcome.rejected > 0 {
			waittest.Eventually(t, "its new directory is adopted", func() bool {
				return r.nodes[r.leader(t)].AdoptMember(t.Context(), j.config.Node, j.Identity()) == nil
			})
		}
		outcome.fetched = outcome.fetched || j.Stats().StateFetches > 0
		if r.awaitCaughtUp(t, what) {
			return outcome
		}
		outcome.failed++
		r.stop(t, r.victim)
	}
	t.Fatalf("%v: it does not start again", what)
	return outcome
}

// awaitCaughtUp waits until the victim has everything that the others have, and reads it. It
// returns false if the victim has failed.
func (r *corruptedCluster) awaitCaughtUp(t *testing.T, what any) bool {
	t.Helper()
	j, leader := r.nodes[r.victim], r.nodes[r.leader(t)]
	waittest.Eventually(t, fmt.Sprint(what, ": equal states, or a failure"), func() bool {
		return j.Err() != nil || j.AppliedIndex() >= leader.AppliedIndex() && j.Digest() == leader.Digest()
	})
	for i := range r.acknowledged {
		id := fmt.Sprintf("i-%03d", i)
		got, err := readEvents(j, id)
		if errors.Is(err, state.ErrCorrupt) {
			waittest.Eventually(t, fmt.Sprint(what, ": a failure after ", err), func() bool { return j.Err() != nil })
		}
		if j.Err() != nil {
			return false
		}
		want, _ := readEvents(leader, id)
		if err != nil || len(want) != 2 || !slices.EqualFunc(got, want, func(a, b *journalpb.Event) bool { return proto.Equal(a, b) }) {
			t.Errorf("%v: %s is %v, error %v, want %v", what, id, got, err, want)
		}
	}
	return j.Err() == nil
}

func readEvents(j *Journal, id string) (all []*journalpb.Event, err error) {
	for e, err := range j.Events(id, 0, 1) {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

func TestFlippedBit_NodeCatchesUpFromPeers(t *testing.T) {
	flips := waittest.Repetitions(280, 24)
	// Not in a bubble: a failed database is abandoned with its goroutines.
	g := newCorruptedCluster(t)
	r := rand.New(rand.NewPCG(3, 4))
	rejected, nodeFailed, fetched := map[string]int{}, map[string]int{}, map[string]int{}
	for flip := range flips {
		part := parts[flip%len(parts)]
		b := g.tree.randomBit(r, part)
		g.restoreFiles(t)
		flipBitOnDisk(t, g.dirs[g.victim], b)
		g.beginInstance(t)
		outcome := g.restartVictim(t, b, part == partLog || part == partVote)
		rejected[part] += outcome.rejected
		nodeFailed[part] += outcome.failed
		if outcome.fetched {
			fetched[part]++
		}
		g.stop(t, g.victim)
	}
	t.Logf("%d flips; rejected and replaced %v; failed %v; fetched a snapshot %v", flips, rejected, nodeFailed, fetched)
}
