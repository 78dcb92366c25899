package replay

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// A table is what a map is, however many entries it has and has had.
func TestTableKeepsWhatAMapKeeps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var kept table[int, int]
	want := map[int]int{}
	for step := range 20_000 {
		key := random.IntN(2 * tableFew)
		if random.IntN(8) == 0 {
			kept.set(key, step)
			want[key] = step
		} else if random.IntN(4) == 0 {
			kept.delete(key)
			delete(want, key)
		}
		value, ok := kept.get(key)
		if wanted, known := want[key]; value != wanted || ok != known {
			t.Fatalf("step %d: %d, %t; want %d, %t", step, value, ok, wanted, known)
		}
		if kept.len() != len(want) || !maps.Equal(maps.Collect(kept.all()), want) {
			t.Fatalf("step %d: %v, want %v", step, maps.Collect(kept.all()), want)
		}
	}
}

func TestTableLetsTheMapOfManyGo(t *testing.T) {
	var kept table[int, *int]
	for i := range 10 * tableFew {
		kept.set(i, new(int))
	}
	for range kept.all() {
		break // an iteration may end early
	}
	for i := range 10 * tableFew {
		kept.delete(i)
	}
	if kept.many != nil || kept.len() != 0 {
		t.Errorf("%d entries, map: %v", kept.len(), kept.many)
	}
	kept.set(1, nil)
	kept.delete(1)
	if kept.few[:1][0] != (entry[int, *int]{}) {
		t.Error("what was deleted is kept")
	}
}
