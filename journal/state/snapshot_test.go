package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// randomMachine applies random valid appends of several authors.
func randomMachine(t testing.TB, seed uint64, appends int) (*Machine, []*author) {
	r := rand.New(rand.NewPCG(seed, 1))
	m := newMachine(t)
	var authors []*author
	for i := range 6 {
		authors = append(authors, newAuthor(r, fmt.Sprintf("i-%d", i)))
	}
	for range appends {
		if r.IntN(20) == 0 {
			applyEpoch(t, m)
		}
		a := authors[r.IntN(len(authors))]
		if err := apply(m, a.instance, a.next()...); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	return m, authors
}

func TestRandomHistoriesAreIndexedAsTheirAuthorsSay(t *testing.T) {
	for seed := range uint64(100) {
		m, authors := randomMachine(t, seed, 150)
		for _, a := range authors {
			var got []uint64
			for op := range m.OpenOf(a.instance) {
				got = append(got, op.Ref.EventId)
			}
			want := a.openIDs()
			if !a.running {
				want = nil
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, %s: open %v, want %v", seed, a.instance, got, want)
			}
			if in, ok := m.Instance(a.instance); ok && (in.LastEventId != a.last || in.Execution != a.execution) {
				t.Fatalf("seed %d: %v, want %d.%d", seed, in, a.execution, a.last)
			}
		}
	}
}

func TestRestoredSnapshotIsTheSameState(t *testing.T) {
	for seed := range uint64(100) {
		m, authors := randomMachine(t, seed, 100)
		encoded := write(t, m)
		restored := New()
		if err := restored.Restore(bytes.NewReader(encoded)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if a, b := picture(m), picture(restored); a != b {
			t.Fatalf("seed %d:\n%s\nrestored:\n%s", seed, a, b)
		}
		if !bytes.Equal(write(t, restored), encoded) {
			t.Fatalf("seed %d: the snapshot of the restored state differs", seed)
		}
		// Both go on alike.
		a := authors[0]
		segments := a.next()
		if e1, e2 := apply(m, a.instance, segments...), apply(restored, a.instance, segments...); e1 != nil || e2 != nil {
			t.Fatalf("seed %d: %v, %v", seed, e1, e2)
		}
		if m.Digest() != restored.Digest() {
			t.Fatalf("seed %d: digests differ after a further append", seed)
		}
	}
}

func TestSnapshotStaysAsItWasTaken(t *testing.T) {
	m, authors := randomMachine(t, 7, 100)
	want := write(t, m)
	s := m.Snapshot()
	for range 200 {
		for _, a := range authors {
			if err := apply(m, a.instance, a.next()...); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got bytes.Buffer
	if _, err := s.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("later appends show in an earlier snapshot")
	}
}

func TestDamagedSnapshotIsRefusedAndChangesNothing(t *testing.T) {
	source, _ := randomMachine(t, 3, 40)
	good := write(t, source)
	target, _ := randomMachine(t, 4, 20)
	before := picture(target)
	refuse := func(what string, b []byte) {
		t.Helper()
		if err := target.Restore(bytes.NewReader(b)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for n := range len(good) {
		refuse(fmt.Sprintf("truncated to %d", n), good[:n])
	}
	for n := range len(good) {
		flipped := slices.Clone(good)
		flipped[n] ^= 1 << (n % 8)
		refuse(fmt.Sprintf("bit flipped in byte %d", n), flipped)
	}
	refuse("longer", append(slices.Clone(good), 0))
	if picture(target) != before {
		t.Error("a refused snapshot has changed the state")
	}
}

func TestErrorOfTheReaderIsNotCorruption(t *testing.T) {
	broken := errors.New("broken")
	m, _ := randomMachine(t, 5, 20)
	b := write(t, m)
	r := io.MultiReader(bytes.NewReader(b[:len(b)/2]), errorReader{broken})
	if err := New().Restore(r); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func TestReadersSeeWholeAppendsWhileApplying(t *testing.T) {
	m := newMachine(t)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
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
				for range m.Open() {
				}
				_, _ = m.Snapshot().WriteTo(io.Discard)
			}
		})
	}
	if err := apply(m, "a", segmentOf(1, 1, started("a"), activity())); err != nil {
		t.Error(err)
	}
	for id := uint64(3); id < 400; id += 2 {
		if err := apply(m, "a", segmentOf(1, id, activityDone(id-1), activity())); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	readers.Wait()
}

func write(t testing.TB, m *Machine) []byte {
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
		if err := apply(m, fmt.Sprintf("instance-%d", i), segmentOf(1, 1, started("a"), activity(), activityDone(2))); err != nil {
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
