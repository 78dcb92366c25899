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

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// tree is a directory of a journal in memory, in which a file may have several
// names: what is damaged under one is under all of them.
type tree struct {
	names    map[string]uint64 // to inodes
	contents map[uint64][]byte
}

func treeOf(t testing.TB, dir string) *tree {
	t.Helper()
	tr := &tree{map[string]uint64{}, map[uint64][]byte{}}
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

// write writes the tree to a directory, which is not there yet.
func (tr *tree) write(t testing.TB, dir string) {
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
	partSnapshots = snapshotsDir
)

var parts = []string{partLog, partVote, partState, partSnapshots}

// inPart are the names of the files of a part that have any bits, sorted.
func (tr *tree) inPart(part string) []string {
	prefix := map[string]string{
		partLog: logFile, partVote: stableFileName,
		partState: stateDir + "/", partSnapshots: snapshotsDir + "/",
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

// randomBit picks a bit of a part: of any file alike, so that the small ones get
// their share.
func (tr *tree) randomBit(r *rand.Rand, part string) bit {
	names := tr.inPart(part)
	name := names[r.IntN(len(names))]
	if tables := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !immutable(name) }); len(tables) > 0 && r.IntN(2) == 0 {
		name = tables[r.IntN(len(tables))] // where the histories are
	}
	return bit{name: name, at: r.IntN(len(tr.contents[tr.names[name]])), mask: 1 << r.IntN(8)}
}

// flipOnDisk flips a bit of a file where it lies.
func flipOnDisk(t testing.TB, dir string, b bit) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, b.name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	_, err = f.ReadAt(one, int64(b.at))
	one[0] ^= b.mask
	if err == nil {
		_, err = f.WriteAt(one, int64(b.at))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// rotten is a group of three of which one node's files rot.
type rotten struct {
	*group
	victim       int
	tree         *tree
	acknowledged int
}

// newRotten starts a group whose nodes have several snapshots, and logs that begin
// behind the older ones.
func newRotten(t *testing.T) *rotten {
	t.Helper()
	g := newTweakedGroup(t, nil, func(_ int, c *Config) {
		c.TrailingLogs = 4
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = 2*time.Second, 2*time.Second, 2*time.Second
	})
	r := &rotten{group: g}
	for range 3 {
		for range 12 {
			r.grow(t)
		}
		g.agree(t)
		for _, j := range g.nodes {
			if err := j.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		r.grow(t)
	}
	g.agree(t)
	r.victim = (g.leader(t) + 1) % 3
	g.stop(t, r.victim)
	r.tree = treeOf(t, g.dirs[r.victim])
	return r
}

// rewrite puts the victim's files there as they were, but for the count of its starts: with
// fewer starts than the others have seen it would be an older copy.
func (r *rotten) rewrite(t *testing.T) {
	t.Helper()
	path := filepath.Join(r.dirs[r.victim], selfFileName)
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

// grow begins one instance.
func (r *rotten) grow(t *testing.T) {
	t.Helper()
	eventually(t, "an append", func() bool {
		leader := r.nodes[r.leader(t)]
		return begun(t, leader, begin(leader.Epoch(), fmt.Sprintf("i-%03d", r.acknowledged)))
	})
	r.acknowledged++
}

// cameBack says how a node came back.
type cameBack struct {
	refused, fenced int
	fetched         bool
}

// comeBack starts the victim until it has everything that the others have: a node
// that fences itself is started again, one that is refused for good is replaced,
// if it may be.
func (r *rotten) comeBack(t *testing.T, what any, mayBeRefused bool) (how cameBack) {
	t.Helper()
	for range 5 {
		if err := r.tryStart(t, r.victim, nil, nil); err != nil {
			wantDefinite(t, what, err)
			var repair *RepairError
			if !mayBeRefused || errors.As(err, &repair) {
				t.Errorf("%v: refused: %v", what, err)
			}
			how.refused++
			if err := os.RemoveAll(r.dirs[r.victim]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		j := r.nodes[r.victim]
		if how.refused > 0 {
			eventually(t, "its new directory is adopted", func() bool {
				return r.nodes[r.leader(t)].AdoptMember(t.Context(), j.config.Node, j.Identity()) == nil
			})
		}
		how.fetched = how.fetched || j.Stats().StateFetches > 0
		if r.whole(t, what) {
			return how
		}
		how.fenced++
		r.stop(t, r.victim)
	}
	t.Fatalf("%v: it does not come back", what)
	return how
}

// whole waits until the victim has all that the others have, and reads it. It
// returns false if the victim has fenced itself.
func (r *rotten) whole(t *testing.T, what any) bool {
	t.Helper()
	j, leader := r.nodes[r.victim], r.nodes[r.leader(t)]
	eventually(t, fmt.Sprint(what, ": equal states, or a fence"), func() bool {
		return j.Err() != nil || j.AppliedIndex() >= leader.AppliedIndex() && j.Digest() == leader.Digest()
	})
	for i := range r.acknowledged {
		id := fmt.Sprintf("i-%03d", i)
		got, err := events(j, id)
		if errors.Is(err, state.ErrCorrupt) {
			eventually(t, fmt.Sprint(what, ": a fence after ", err), func() bool { return j.Err() != nil })
		}
		if j.Err() != nil {
			return false
		}
		want, _ := events(leader, id)
		if err != nil || len(want) != 2 || !slices.EqualFunc(got, want, func(a, b *journalpb.Event) bool { return proto.Equal(a, b) }) {
			t.Errorf("%v: %s is %v, error %v, want %v", what, id, got, err, want)
		}
	}
	return j.Err() == nil
}

func events(j *Journal, id string) (all []*journalpb.Event, err error) {
	for e, err := range j.Events(id, 0, 1) {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

func TestNodeOfThreeWithAFlippedBitServesNothingWrongAndCatchesUpFromItsPeers(t *testing.T) {
	flips := repetitions(280, 24)
	// Not in a bubble: a database that has failed is left behind, and with it its
	// goroutines.
	g := newRotten(t)
	r := rand.New(rand.NewPCG(3, 4))
	refused, fenced, fetched := map[string]int{}, map[string]int{}, map[string]int{}
	for flip := range flips {
		part := parts[flip%len(parts)]
		b := g.tree.randomBit(r, part)
		g.rewrite(t)
		flipOnDisk(t, g.dirs[g.victim], b)
		g.grow(t)
		how := g.comeBack(t, b, part == partLog || part == partVote)
		refused[part] += how.refused
		fenced[part] += how.fenced
		if how.fetched {
			fetched[part]++
		}
		g.stop(t, g.victim)
	}
	t.Logf("%d flips; refused and replaced %v; fenced %v; fetched a snapshot %v", flips, refused, fenced, fetched)
}
