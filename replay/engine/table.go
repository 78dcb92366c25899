package engine

import "iter"

// smallTableMax is the number of entries that a table holds without a map.
const smallTableMax = 8

// A table is a map optimized for few entries. A Go map with one entry takes hundreds of bytes, in
// every instance in memory.
type table[K comparable, V any] struct {
	entries []entry[K, V] // unordered
	byKey   map[K]V       // replaces entries above smallTableMax entries, until it is empty
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (t *table[K, V]) len() int { return len(t.entries) + len(t.byKey) }

func (t *table[K, V]) get(key K) (value V, ok bool) {
	if t.byKey != nil {
		value, ok = t.byKey[key]
		return value, ok
	}
	for i := range t.entries {
		if t.entries[i].key == key {
			return t.entries[i].value, true
		}
	}
	return value, false
}

func (t *table[K, V]) set(key K, value V) {
	if t.byKey != nil {
		t.byKey[key] = value
		return
	}
	for i := range t.entries {
		if t.entries[i].key == key {
			t.entries[i].value = value
			return
		}
	}
	if len(t.entries) < smallTableMax {
		t.entries = append(t.entries, entry[K, V]{key, value})
		return
	}
	t.byKey = make(map[K]V, 2*smallTableMax)
	for _, e := range t.entries {
		t.byKey[e.key] = e.value
	}
	t.byKey[key] = value
	t.entries = nil
}

func (t *table[K, V]) delete(key K) {
	if t.byKey != nil {
		if delete(t.byKey, key); len(t.byKey) == 0 {
			t.byKey = nil
		}
		return
	}
	for i := range t.entries {
		if t.entries[i].key == key {
			last := len(t.entries) - 1
			t.entries[i] = t.entries[last]
			t.entries[last] = entry[K, V]{}
			t.entries = t.entries[:last]
			return
		}
	}
}

// all yields the entries in no particular order.
func (t *table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, e := range t.entries {
			if !yield(e.key, e.value) {
				return
			}
		}
		for key, value := range t.byKey {
			if !yield(key, value) {
				return
			}
		}
	}
}

// A bitmap is a set of small numbers, one bit each.
type bitmap []uint64

func (b *bitmap) add(n uint64) {
	for uint64(len(*b)) <= n/64 {
		*b = append(*b, 0)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

func (b bitmap) has(n uint64) bool {
	return n/64 < uint64(len(b)) && b[n/64]&(1<<(n%64)) != 0
}
