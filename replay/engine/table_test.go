package engine

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// A table behaves like a map for any number of entries, now and before.
func TestTable_MatchesMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var retained table[int, int]
	want := map[int]int{}
	for step := range 20_000 {
		key := random.IntN(2 * smallTableMax)
		if random.IntN(8) == 0 {
			retained.set(key, step)
			want[key] = step
		} else if random.IntN(4) == 0 {
			retained.delete(key)
			delete(want, key)
		}
		value, ok := retained.get(key)
		if expected, known := want[key]; value != expected || ok != known {
			t.Fatalf("step %d: %d, %t; want %d, %t", step, value, ok, expected, known)
		}
		if retained.len() != len(want) || !maps.Equal(maps.Collect(retained.all()), want) {
			t.Fatalf("step %d: %v, want %v", step, maps.Collect(retained.all()), want)
		}
	}
}

func TestTable_ReleasesMap(t *testing.T) {
	var retained table[int, *int]
	for i := range 10 * smallTableMax {
		retained.set(i, new(int))
	}
	for range retained.all() {
		break // an iteration may end early
	}
	for i := range 10 * smallTableMax {
		retained.delete(i)
	}
	if retained.byKey != nil || retained.len() != 0 {
		t.Errorf("%d entries, map: %v", retained.len(), retained.byKey)
	}
	retained.set(1, nil)
	retained.delete(1)
	if retained.entries[:1][0] != (entry[int, *int]{}) {
		t.Error("a deleted entry is kept in memory")
	}
}
