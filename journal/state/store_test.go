package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// randomLog is the log of a random model: entries of a few records, and what the machine in memory
// shows after each.
type randomLog struct {
	entries [][][]byte
	dumps   []string
}

// recordedLogs collects the records that are applied to a machine.
var recordedLogs = map[*Machine]*[][]byte{}

func newRandomLog(t testing.TB, seed uint64, entries int) *randomLog {
	w := newModel(t, seed, func(testing.TB) *Machine { return New() })
	var records [][]byte
	recordedLogs[w.m] = &records
	defer delete(recordedLogs, w.m)
	s := &randomLog{dumps: []string{dump(t, w.m)}}
	applyEpoch(t, w.m)
	for range entries {
		for range 1 + w.r.IntN(3) {
			w.step(t)
		}
		s.entries = append(s.entries, records)
		s.dumps = append(s.dumps, dump(t, w.m))
		records = nil
	}
	return s
}

// play applies the entries that a machine does not have yet, up to one. It returns false if the
// store has failed.
func (r *randomLog) play(m *Machine, to int) bool {
	from, _ := m.Applied()
	for i := from; i < uint64(to); i++ {
		for _, record := range r.entries[i] {
			var failed *StoreError
			if _, err := m.Apply(record); errors.As(err, &failed) {
				return false
			}
		}
		if m.Advance(i+1, 1) != nil {
			return false
		}
	}
	return true
}

// dump returns everything that a machine shows to its readers.
func dump(t testing.TB, m *Machine) string {
	t.Helper()
	w := &model{m: m}
	all := w.actual()
	for in := range m.Instances() {
		for execution := uint64(1); execution <= in.Execution; execution++ {
			for e, err := range m.Events(in.Instance, execution, 1) {
				if errors.Is(err, ErrNotFound) {
					break // before a purge
				}
				if err != nil {
					t.Fatal(err)
				}
				encoded := must(proto.MarshalOptions{Deterministic: true}.Marshal(e)) // as text, it would take most of the time of many tests
				all = append(all, fmt.Sprintf("%s/%d/%d %d %q", in.Instance, execution, e.EventId, e.TypeNumber(), encoded))
			}
		}
		sum, err := m.Hash(in.Instance)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s hash %x", in.Instance, sum))
	}
	for op := range m.TimersDue(math.MaxInt64) {
		all = append(all, fmt.Sprintf("timer %s/%d/%d at %d", op.Ref.Instance, op.Ref.Execution, op.Ref.EventId, op.FireAt))
	}
	return strings.Join(append(all, fmt.Sprintf("epoch %d digest %x", m.Epoch(), m.Digest())), "\n\t")
}

func (r *randomLog) check(t testing.TB, m *Machine, what string) {
	t.Helper()
	index, _ := m.Applied()
	if got := dump(t, m); got != r.dumps[index] {
		t.Fatalf("%s, entry %d:\n\t%s\nin memory:\n\t%s", what, index, got, r.dumps[index])
	}
}

func TestStore_ShowsSameAsInMemory(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(8)) {
		s := newRandomLog(t, seed, 80)
		m := openMachine(t, tinyOptions(vfs.NewMem()))
		for i := range s.entries {
			s.play(m, i+1)
			if i%7 == 0 {
				s.check(t, m, fmt.Sprint("seed ", seed))
			}
		}
		s.check(t, m, fmt.Sprint("seed ", seed))
	}
}

// A crash at any moment loses the data that was not synced, and possibly only part of it.
func TestStore_CrashLeavesStateOfOneEntry(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(8)) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := newRandomLog(t, seed, 80)
		fs := vfs.NewCrashableMem()
		m := openMachine(t, tinyOptions(fs))
		durable := uint64(0)
		for at := 0; at < len(s.entries); {
			at = min(at+1+r.IntN(20), len(s.entries))
			s.play(m, at)
			if r.IntN(3) == 0 {
				if err := m.Flush(t.Context(), uint64(at)); err != nil {
					t.Fatal(err)
				}
				durable = uint64(at)
			}
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(2) * 50, RNG: r})
			m = openMachine(t, tinyOptions(fs))
			index, _ := m.Applied()
			if index < durable {
				t.Fatalf("seed %d: entry %d was flushed, the store ends with %d", seed, durable, index)
			}
			s.check(t, m, fmt.Sprintf("seed %d after a crash", seed))
			s.play(m, at)
			s.check(t, m, fmt.Sprintf("seed %d after a crash and the log", seed))
		}
	}
}

// The file system fails from its n-th write on, for each n. What is left is the state after an
// entry, never a store that reports damage.
func TestStore_SurvivesCrashAtEveryWrite(t *testing.T) {
	s := newRandomLog(t, 1, 24)
	step := 16 / shorttest.SequentialRounds(16)
	for n := 1; ; n += step {
		fs := vfs.NewCrashableMem()
		cut := &failAfter{}
		cut.left.Store(int64(n))
		durable, done := playUntilFailure(t, s, errorfs.Wrap(fs, cut))
		left := fs.CrashClone(vfs.CrashCloneCfg{})
		m, err := rareFlushOptions(left).open()
		if err != nil {
			t.Fatalf("cut after %d writes: %v", n, err)
		}
		index, _ := m.Applied()
		if index < durable {
			t.Fatalf("cut after %d writes: entry %d was durable, the store ends with %d", n, durable, index)
		}
		s.check(t, m, fmt.Sprintf("cut after %d writes", n))
		s.play(m, len(s.entries))
		s.check(t, m, fmt.Sprintf("cut after %d writes, and the log", n))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if done {
			t.Logf("fewer than %d writes", n)
			return
		}
	}
}

// rareFlushOptions cause flushes only on request.
func rareFlushOptions(fs vfs.FS) machineOptions {
	o := tinyOptions(fs)
	o.machine.FlushBytes = 1 << 20
	return o
}

// playUntilFailure plays a log, with flushes, a checkpoint and its installation, until the file
// system fails. It returns what was flushed.
func playUntilFailure(t testing.TB, s *randomLog, fs vfs.FS) (durable uint64, done bool) {
	t.Helper()
	m, err := rareFlushOptions(fs).open()
	if err != nil {
		return 0, false
	}
	defer func() { _ = m.Close() }()
	for at := 6; at <= len(s.entries); at += 6 {
		if !s.play(m, at) || m.Flush(context.Background(), uint64(at)) != nil {
			return durable, false
		}
		durable = uint64(at)
		if at != 12 {
			continue
		}
		if _, err := m.Checkpoint("checkpoint"); err != nil {
			return durable, false
		}
		if err := m.Install(func(to string) error { return copyFiles(fs, "checkpoint", to) }); err != nil {
			return durable, false
		}
	}
	return durable, m.Close() == nil
}

// failAfter lets a number of writes pass and fails the others.
type failAfter struct{ left atomic.Int64 }

func (f *failAfter) String() string { return "cut" }

func (f *failAfter) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	if f.left.Add(-1) >= 0 {
		return nil
	}
	return errorfs.ErrInjected
}

func TestOpen_RejectsOtherFormat(t *testing.T) {
	o := tinyOptions(vfs.NewMem())
	m := openMachine(t, o)
	applyEpoch(t, m)
	key := []byte{keyMeta}
	if err := m.Flush(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	value := appendValueChecksum(appendUint(nil, fieldStoreFormat, storeFormat+1), 0, key)
	written := m.store.Write("write", 0, func(b store.Batch) error { return b.Set(key, value) })
	if err := errors.Join(written, m.store.Sync(), m.Close()); err != nil {
		t.Fatal(err)
	}
	var format *FormatError
	if _, err := o.open(); !errors.As(err, &format) || format.Format != storeFormat+1 || errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

// flipBit changes one bit of the largest table of a closed store.
func flipBit(t testing.TB, fs vfs.FS, dir string, r *rand.Rand) {
	t.Helper()
	var largest string
	size := int64(0)
	databases := must(fs.List(dir))
	for _, db := range databases {
		if !strings.HasPrefix(db, "db-") {
			continue
		}
		for _, name := range must(fs.List(fs.PathJoin(dir, db))) {
			path := fs.PathJoin(dir, db, name)
			if info := must(fs.Stat(path)); strings.HasSuffix(name, ".sst") && info.Size() > size {
				largest, size = path, info.Size()
			}
		}
	}
	read := must(fs.Open(largest))
	content := must(io.ReadAll(read))
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	content[r.IntN(len(content))] ^= 1 << r.IntN(8)
	if err := fs.Remove(largest); err != nil {
		t.Fatal(err)
	}
	f := must(fs.Create(largest, vfs.WriteCategoryUnspecified))
	_, err := f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A damaged table never shows wrong data: a reader sees the truth, or nothing and the store has
// failed. The next Open then rejects it.
func TestStore_FlippedBitIsNeverServed(t *testing.T) {
	flips := shorttest.SequentialRounds(24)
	s := newRandomLog(t, 5, 60)
	lines := strings.Split(s.dumps[len(s.dumps)-1], "\n\t")
	found := 0
	for seed := range uint64(flips) {
		r := rand.New(rand.NewPCG(seed, 3))
		o := tinyOptions(vfs.NewMem())
		m := must(o.open())
		s.play(m, len(s.entries))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		flipBit(t, o.FS, o.Dir, r)
		m, err := o.open()
		if err == nil {
			for _, line := range dumpReadable(m) {
				if !slices.Contains(lines, line) {
					t.Fatalf("seed %d: shown %q", seed, line)
				}
			}
			err = m.Err()
			_ = m.Close()
		}
		if err == nil {
			continue // in a part that is never read
		}
		found++
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if _, again := o.open(); !errors.Is(again, ErrCorrupt) {
			t.Fatalf("seed %d: a damaged store opens again: %v", seed, again)
		}
		if err := pebblestore.Discard(o.Options); err != nil {
			t.Fatal(err)
		}
		m = must(o.open())
		s.play(m, len(s.entries))
		s.check(t, m, "rebuilt")
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d flipped bits were detected", found, flips)
	if found < flips/2 {
		t.Error("most flips should be detected")
	}
}

// dumpReadable returns what a machine shows, from which a failure may omit lines.
func dumpReadable(m *Machine) []string {
	w := &model{m: m}
	all := w.actual()
	for in := range m.Instances() {
		if sum, err := m.Hash(in.Instance); err == nil {
			all = append(all, fmt.Sprintf("%s hash %x", in.Instance, sum))
		}
	}
	return all
}
