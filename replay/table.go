package replay

import "iter"

// tableFew is the number of entries that a table holds without a map.
const tableFew = 8

// A table is a map optimized for few entries. A Go map with one entry takes hundreds of bytes, in
// every instance in memory.
type table[K comparable, V any] struct {
	few  []entry[K, V] // unordered
	many map[K]V       // replaces few above tableFew entries, until it is empty
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (t *table[K, V]) len() int { return len(t.few) + len(t.many) }

func (t *table[K, V]) get(key K) (value V, ok bool) {
	if t.many != nil {
		value, ok = t.many[key]
		return value, ok
	}
	for i := range t.few {
		if t.few[i].key == key {
			return t.few[i].value, true
		}
	}
	return value, false
}

func (t *table[K, V]) set(key K, value V) {
	if t.many != nil {
		t.many[key] = value
		return
	}
	for i := range t.few {
		if t.few[i].key == key {
			t.few[i].value = value
			return
		}
	}
	if len(t.few) < tableFew {
		t.few = append(t.few, entry[K, V]{key, value})
		return
	}
	t.many = make(map[K]V, 2*tableFew)
	for _, e := range t.few {
		t.many[e.key] = e.value
	}
	t.many[key] = value
	t.few = nil
}

func (t *table[K, V]) delete(key K) {
	if t.many != nil {
		if delete(t.many, key); len(t.many) == 0 {
			t.many = nil
		}
		return
	}
	for i := range t.few {
		if t.few[i].key == key {
			last := len(t.few) - 1
			t.few[i] = t.few[last]
			t.few[last] = entry[K, V]{}
			t.few = t.few[:last]
			return
		}
	}
}

// all yields the entries in no particular order.
func (t *table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, e := range t.few {
			if !yield(e.key, e.value) {
				return
			}
		}
		for key, value := range t.many {
			if !yield(key, value) {
				return
			}
		}
	}
}
