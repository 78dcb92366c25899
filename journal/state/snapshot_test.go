package state

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// randomModel applies random valid records of several instances.
func randomModel(t testing.TB, seed uint64, records int) *model {
	t.Helper()
	w := newModel(t, seed, newMachine)
	for range records {
		w.step(t)
	}
	return w
}

func TestIndex_MatchesModel(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		models, checkEvery := shorttest.SequentialRounds(20), 1
		if newMachine(t).store != nil { // writing and reading it as a whole takes longer
			models, checkEvery = shorttest.SequentialRounds(8), 10
		}
		var seen strings.Builder
		for seed := range uint64(models) {
			w := newModel(t, seed, newMachine)
			for step := 1; step <= 200; step++ {
				w.step(t)
				if step%checkEvery == 0 {
					w.check(t)
				}
			}
			fmt.Fprintln(&seen, w.actual())
		}
		for _, what := range []string{"unbegun", "orphan", "chained", "failed 3", "suspended true"} {
			if models == 20 && !strings.Contains(seen.String(), what) {
				t.Errorf("no %s in any model", what)
			}
		}
	})
}

func TestSnapshot_RestoresSameState(t *testing.T) {
	for seed := range uint64(shorttest.SequentialRounds(100)) {
		w := randomModel(t, seed, 20+int(seed))
		encoded := encodeSnapshot(t, w.m)
		restored := New()
		if err := restored.Restore(bytes.NewReader(encoded)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if a, b := dumpIndex(w.m), dumpIndex(restored); a != b {
			t.Fatalf("seed %d:\n%s\nrestored:\n%s", seed, a, b)
		}
		if !bytes.Equal(encodeSnapshot(t, restored), encoded) {
			t.Fatalf("seed %d: the snapshot of the restored state differs", seed)
		}
		// The restored machine continues like the original.
		w.m = restored
		for range 50 {
			w.step(t)
			w.check(t)
		}
	}
}

func TestSnapshot_IsImmutable(t *testing.T) {
	w := randomModel(t, 7, 100)
	want := encodeSnapshot(t, w.m)
	s := w.m.Snapshot()
	for range 1000 {
		w.step(t)
	}
	var got bytes.Buffer
	if _, err := s.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("later appends show in an earlier snapshot")
	}
}

func TestRestore_RejectsDamagedSnapshot(t *testing.T) {
	source := randomModel(t, 3, 40).m
	for _, err := range []error{
		applyAppend(source, "z", segmentOf(1, 1, started("z"), activity(), chained("next"))),
		applyAttempt(source, "z", 1, 2, 3),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	good := encodeSnapshot(t, source)
	target := randomModel(t, 4, 20).m
	before := dumpIndex(target)
	reject := func(what string, b []byte) {
		t.Helper()
		if err := target.Restore(bytes.NewReader(b)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step := 32 / shorttest.SequentialRounds(32)
	for n := 0; n < len(good); n += step {
		reject(fmt.Sprintf("truncated to %d", n), good[:n])
	}
	for n := 0; n < len(good); n += step {
		flipped := slices.Clone(good)
		flipped[n] ^= 1 << (n % 8)
		reject(fmt.Sprintf("bit flipped in byte %d", n), flipped)
	}
	reject("longer", append(slices.Clone(good), 0))
	if dumpIndex(target) != before {
		t.Error("a rejected snapshot changed the state")
	}
}

// encodeFrames encodes a snapshot of arbitrary messages, including invalid ones.
func encodeFrames(messages ...proto.Message) []byte {
	var b bytes.Buffer
	out := &snapshotWriter{buffered: bufio.NewWriter(&b), sum: crc32.New(castagnoli)}
	for _, m := range messages {
		encoded := must(proto.Marshal(m))
		out.record(len(encoded), func(b []byte) []byte { return append(b, encoded...) })
	}
	must(out.finish())
	return b.Bytes()
}

func TestRestore_ReadsFormat1(t *testing.T) {
	m := newMachine(t)
	if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
		t.Fatal(err)
	}
	restored := New()
	if err := restored.Restore(bytes.NewReader(encodeFrames(
		&journalpb.SnapshotHeader{Format: 1, Epoch: 1, Instances: 1},
		&journalpb.InstanceSnapshot{Instance: "a", Executions: []*journalpb.Segment{segmentOf(1, 1, started("a"), activity())}},
	))); err != nil {
		t.Fatal(err)
	}
	if a, b := dumpIndex(m), dumpIndex(restored); a != b {
		t.Errorf("%s\nrestored\n%s", a, b)
	}
}

func TestRestore_RejectsInconsistentSnapshot(t *testing.T) {
	header := &journalpb.SnapshotHeader{Format: 2, Epoch: 1, Instances: 1}
	instance := func(attempts ...*journalpb.Attempt) *journalpb.InstanceSnapshot {
		return &journalpb.InstanceSnapshot{
			Instance: "a", Executions: []*journalpb.Segment{segmentOf(1, 1, started("a"), activity(), timer(1), activity())}, Attempts: attempts,
		}
	}
	attempt := func(id string, execution, event uint64) *journalpb.Attempt {
		return &journalpb.Attempt{Ref: &journalpb.OperationRef{Instance: id, Execution: execution, EventId: event}}
	}
	start := func(target string) *journalpb.ChainedStart {
		return &journalpb.ChainedStart{
			Ref: &journalpb.OperationRef{Instance: "a", Execution: 1, EventId: 2}, Chained: &journalpb.OrchestrationChained{Instance: target},
		}
	}
	for name, c := range map[string]struct {
		messages []proto.Message
		ok       bool
	}{
		"as it should be":              {[]proto.Message{header, instance(attempt("a", 1, 2), attempt("a", 1, 4)), start("b"), start("c")}, true},
		"attempt of a timer":           {[]proto.Message{header, instance(attempt("a", 1, 3))}, false},
		"attempt of nothing":           {[]proto.Message{header, instance(attempt("a", 1, 5))}, false},
		"attempt without operation":    {[]proto.Message{header, instance(&journalpb.Attempt{})}, false},
		"attempt of another instance":  {[]proto.Message{header, instance(attempt("b", 1, 2))}, false},
		"attempt of another execution": {[]proto.Message{header, instance(attempt("a", 2, 2))}, false},
		"attempts out of order":        {[]proto.Message{header, instance(attempt("a", 1, 4), attempt("a", 1, 2))}, false},
		"attempt twice":                {[]proto.Message{header, instance(attempt("a", 1, 2), attempt("a", 1, 2))}, false},
		"chained start of what exists": {[]proto.Message{header, instance(), start("a")}, false},
		"chained start of no instance": {[]proto.Message{header, instance(), start("")}, false},
		"chained starts out of order":  {[]proto.Message{header, instance(), start("c"), start("b")}, false},
		"chained start twice":          {[]proto.Message{header, instance(), start("b"), start("b")}, false},
	} {
		if err := New().Restore(bytes.NewReader(encodeFrames(c.messages...))); c.ok != (err == nil) || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A snapshot of a later version is not damaged.
func TestRestore_RejectsOtherFormat(t *testing.T) {
	b := encodeFrames(&journalpb.SnapshotHeader{Format: snapshotFormat + 1})
	var format *FormatError
	if err := New().Restore(bytes.NewReader(b)); !errors.As(err, &format) || format.Format != snapshotFormat+1 || errors.Is(err, ErrCorrupt) {
		t.Errorf("restored: %v; want a FormatError", err)
	}
}

func TestRestore_ReaderErrorIsNotCorruption(t *testing.T) {
	readErr := errors.New("broken")
	b := encodeSnapshot(t, randomModel(t, 5, 20).m)
	r := io.MultiReader(bytes.NewReader(b[:len(b)/2]), errorReader{readErr})
	if err := New().Restore(r); !errors.Is(err, readErr) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func TestRead_SeesWholeAppendsDuringApply(t *testing.T) {
	testBothStorages(t, func(t *testing.T, newMachine newMachineFunc) {
		m := newMachine(t)
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					n := 0
					for _, err := range m.Events("a", 1, 1) {
						if err != nil && !errors.Is(err, ErrNotFound) {
							t.Error(err)
							return
						} else if err == nil {
							n++
						}
					}
					if n%2 != 0 {
						t.Errorf("%d events: half an append", n)
						return
					}
					for range m.OpenOperations() {
					}
					for range m.Orphans() {
					}
					for range m.Chained() {
					}
					m.Digest()
					if m.store == nil {
						_, _ = m.Snapshot().WriteTo(io.Discard)
					}
				}
			})
		}
		if err := applyAppend(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
			t.Error(err)
		}
		for id := uint64(3); id < 160; id += 2 {
			if err := applyAppend(m, "a", segmentOf(1, id, activityDone(id-1), activity())); err != nil {
				t.Error(err)
				break
			}
			if err := applyAttempt(m, "a", 1, id+1, 1); err != nil {
				t.Error(err)
				break
			}
			other := fmt.Sprintf("c-%d", id)
			if err := applyAppend(m, other, segmentOf(1, 1, startedBy("a", 1, 2), chained("x-"+other))); err != nil {
				t.Error(err)
				break
			}
			if id%20 == 1 { // a follower far behind gets a snapshot while it is read
				replaceState(t, m)
			}
		}
		close(stop)
		readers.Wait()
	})
}

// replaceState restores a copy of the state over the state.
func replaceState(t *testing.T, m *Machine) {
	t.Helper()
	if m.store == nil {
		if err := m.Restore(bytes.NewReader(encodeSnapshot(t, m))); err != nil {
			t.Error(err)
		}
		return
	}
	index, _ := m.Applied()
	if err := m.Flush(t.Context(), index); err != nil {
		t.Error(err)
	}
	fs, from := testStoreOf(m).fs, fmt.Sprint("checkpoint-", index)
	if _, err := m.Checkpoint(from); err != nil {
		t.Error(err)
	}
	if err := m.Install(func(to string) error { return copyFiles(fs, from, to) }); err != nil {
		t.Error(err)
	}
}

// installHookStore calls afterInstall as soon as another database is in use.
type installHookStore struct {
	testStore
	afterInstall func()
}

func (s *installHookStore) Install(fill func(dir string) error, read func(store.Reader) error, inUse func()) error {
	err := s.testStore.Install(fill, read, inUse)
	s.afterInstall()
	return err
}

func TestInstall_ReadersSeeNewDatabaseAtOnce(t *testing.T) {
	o := rareFlushOptions(vfs.NewMem())
	o.machine.MemoryBytes = 1 << 20 // the position of the history stays in memory
	s := &installHookStore{testStore: testStore{must(pebblestore.Open(o.Options)), o.FS}}
	m := must(Open(s, o.machine))
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	applyEpoch(t, m)
	for id := uint64(1); id < 6; id += 2 {
		segments := []*journalpb.Segment{segmentOf(1, id, activityDone(id-1), activity())}
		if id == 1 {
			segments[0] = segmentOf(1, 1, started("a"), activity())
		}
		if err := applyAppend(m, "a", segments...); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Advance(id+1, 1), m.Flush(t.Context(), id+1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Checkpoint("checkpoint"); err != nil {
		t.Fatal(err)
	}
	seen := 0
	s.afterInstall = func() {
		for _, err := range m.Events("a", 1, 1) {
			if err != nil {
				t.Error(err)
				return
			}
			seen++
		}
		if _, err := m.Hash("a"); err != nil {
			t.Error(err)
		}
	}
	if err := m.Install(func(to string) error { return copyFiles(o.FS, "checkpoint", to) }); err != nil {
		t.Fatal(err)
	}
	if seen != 6 || m.Err() != nil {
		t.Errorf("%d events, %v", seen, m.Err())
	}
}

func copyFiles(fs vfs.FS, from, to string) error {
	names, err := fs.List(from)
	for _, name := range names {
		err = errors.Join(err, vfs.Copy(fs, fs.PathJoin(from, name), fs.PathJoin(to, name)))
	}
	return err
}

func encodeSnapshot(t testing.TB, m *Machine) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := m.Snapshot().WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("%d bytes of %d: %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func BenchmarkSnapshot(b *testing.B) {
	m := newMachine(b)
	for i := range 100_000 {
		if err := applyAppend(m, fmt.Sprintf("instance-%d", i), segmentOf(1, 1, started("a"), activity(), activityDone(2))); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("take", func(b *testing.B) {
		for b.Loop() {
			m.Snapshot()
		}
	})
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			n, _ := m.Snapshot().WriteTo(io.Discard)
			b.SetBytes(n)
		}
	})
}

// The database is replaced while a history is read, by one of a node that flushed at other moments,
// so its chunks begin with other events. The reader gets the rest of the history all the same.
func TestInstall_ReaderContinuesInOtherChunks(t *testing.T) {
	const events = 6
	fs := vfs.NewMem()
	open := func(dir string, flushAt func(id uint64) bool) *Machine {
		o := rareFlushOptions(fs)
		o.Dir = dir
		m := must(Open(testStore{must(pebblestore.Open(o.Options)), o.FS}, o.machine))
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		applyEpoch(t, m)
		for id := uint64(1); id < events; id += 2 {
			segments := []*journalpb.Segment{segmentOf(1, id, activityDone(id-1), activity())}
			if id == 1 {
				segments[0] = segmentOf(1, 1, started("a"), activity())
			}
			if err := errors.Join(applyAppend(m, "a", segments...), m.Advance(id+1, 1)); err != nil {
				t.Fatal(err)
			}
			if flushAt(id) {
				if err := m.Flush(t.Context(), id+1); err != nil {
					t.Fatal(err)
				}
			}
		}
		return m
	}
	m := open("own", func(uint64) bool { return true })
	other := open("other", func(id uint64) bool { return id+2 > events })
	if _, err := other.Checkpoint("checkpoint"); err != nil {
		t.Fatal(err)
	}
	seen := uint64(0)
	for e, err := range m.Events("a", 1, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if seen++; e.EventId != seen {
			t.Errorf("event %d follows %d", e.EventId, seen-1)
		}
		if seen == 2 {
			if err := m.Install(func(to string) error { return copyFiles(fs, "checkpoint", to) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if seen != events || m.Err() != nil {
		t.Errorf("%d events, %v", seen, m.Err())
	}
}
