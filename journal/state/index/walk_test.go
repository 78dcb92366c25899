package index

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
)

// keys are the sorted keys and values of a store, and how often iterators over it were moved.
type keys struct {
	all   [][2][]byte
	moves int
}

func (k *keys) add(id string, e *Entries) {
	e.Each(id, nil, func(key, value []byte) { k.all = append(k.all, [2][]byte{bytes.Clone(key), bytes.Clone(value)}) })
}

func (k *keys) iterator() Iterator { return &keyIterator{keys: k} }

type keyIterator struct {
	*keys
	at int
}

func (i *keyIterator) find(key []byte) int {
	at, _ := slices.BinarySearchFunc(i.all, key, func(e [2][]byte, key []byte) int { return bytes.Compare(e[0], key) })
	return at
}

func (i *keyIterator) moveTo(at int) bool {
	i.moves++
	i.at = at
	return at >= 0 && at < len(i.all)
}

func (i *keyIterator) SeekGE(key []byte) bool { return i.moveTo(i.find(key)) }
func (i *keyIterator) SeekLT(key []byte) bool { return i.moveTo(i.find(key) - 1) }
func (i *keyIterator) Next() bool             { return i.moveTo(i.at + 1) }
func (i *keyIterator) Prev() bool             { return i.moveTo(i.at - 1) }
func (i *keyIterator) Key() []byte            { return i.all[i.at][0] }
func (i *keyIterator) Value() []byte          { return i.all[i.at][1] }

// newTaggedKeys returns the index of instances in many facets, each with all tags but one, and the
// numbers of the facets.
func newTaggedKeys(facets, perFacet, tags int) (k *keys, numbers []uint32) {
	k = new(keys)
	for n := range facets * perFacet {
		r := &Row{ID: fmt.Sprintf("i%06d", n), State: Running, Created: int64(n + 1), Updated: int64(n + 1), Tags: map[string]string{}}
		for tag := range tags {
			if tag != n/facets%tags {
				r.Tags[fmt.Sprint(tag)] = "x"
			}
		}
		k.add(r.ID, EntriesOf(r, uint32(n%facets+1)))
	}
	slices.SortFunc(k.all, func(a, b [2][]byte) int { return bytes.Compare(a[0], b[0]) })
	for n := range facets {
		numbers = append(numbers, uint32(n+1))
	}
	return k, numbers
}

func queryOfTags(n int) *Query {
	q := &Query{Tags: map[string]string{}}
	for tag := range n {
		q.Tags[fmt.Sprint(tag)] = "x"
	}
	return q
}

// Once its budget is spent, a walk examines about one place in each facet, however many lists there
// are, and the next walks, each from where the last one ended, reach the end.
func TestWalk_IsBoundedWithManyFacetsAndLists(t *testing.T) {
	const facets, perFacet = 200, 40
	for _, tags := range []int{1, 3, 9} {
		k, numbers := newTaggedKeys(facets, perFacet, tags+1)
		for o := ByID; o <= ByUpdated; o++ {
			q := queryOfTags(tags)
			q.Order, q.Descending = o, o == ByCreated
			plan := NewPlan(q)
			if len(plan.Driver.Terms) != min(tags, driversMax) || plan.Iterators() > listsMax+1 || plan.IsExact != (tags <= driversMax) {
				t.Fatalf("%d tags: %d drivers, %d iterators, exact %v", tags, len(plan.Driver.Terms), plan.Iterators(), plan.IsExact)
			}
			found, pages := 0, 0
			for after := (*Cursor)(nil); ; pages++ {
				budget := Budget(0)
				k.moves = 0
				w := NewWalk(t.Context(), q, plan.Driver, numbers, after, &budget, k.iterator)
				for {
					at, _, ok := w.Next()
					if !ok {
						break
					}
					if after != nil && q.Compare(at, *after) <= 0 {
						t.Fatalf("%v after %v", at, *after)
					}
					after = &at
					found++
				}
				if most := 2 * facets * (2 + 2*len(plan.Driver.Terms)); k.moves > most {
					t.Fatalf("%d tags, order %d: iterators were moved %d times, want at most %d", tags, o, k.moves, most)
				}
				if w.Paused() == nil {
					break
				}
				after = w.Paused()
			}
			// Each place is examined once, and each page advances by more than one.
			if want := facets * perFacet / (tags + 1); tags <= driversMax && found != want || found < want || pages > facets*perFacet/4 {
				t.Errorf("%d tags, order %d: %d found, want %d; %d pages", tags, o, found, want, pages)
			}
		}
	}
}

// A walk and a collection end with the context, and a collection with its budget, between facets
// that have no entry in the range.
func TestWalk_EndsBetweenFacets(t *testing.T) {
	const facets = 400
	k, numbers := newTaggedKeys(facets, 2, 2)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	q := queryOfTags(1)
	budget := Budget(1 << 30)
	w := NewWalk(canceled, q, NewPlan(q).Driver, numbers, nil, &budget, k.iterator)
	if _, _, ok := w.Next(); k.moves > facets {
		t.Errorf("iterators were moved %d times after the end of the context; found %v", k.moves, ok)
	}
	scan := Scan{Terms: []Term{""}, order: ByCreated, in: Interval{From: 1 << 40}}
	for _, c := range []struct {
		ctx    context.Context
		budget Budget
		most   int
	}{{t.Context(), 1 << 30, facets + 1}, {t.Context(), 10 * seekCost, 10}, {canceled, 1 << 30, 0}} {
		k.moves = 0
		budget := c.budget
		complete := scan.Collect(c.ctx, q, k.iterator(), numbers, 100, &budget, &Candidates{First: NewFirst(q, nil, 10)})
		if complete != (c.most > facets) || k.moves > c.most {
			t.Errorf("budget %d: complete %v after %d moves, want at most %d", c.budget, complete, k.moves, c.most)
		}
	}
	k.moves, budget = 0, 10*seekCost
	if present := scan.Present(k.iterator(), numbers, &budget); k.moves != 10 || len(present) != facets-10 {
		t.Errorf("%d facets are present after %d moves", len(present), k.moves)
	}
}
