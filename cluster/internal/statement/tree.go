package statement

import (
	"crypto/sha256"
	"math/bits"
)

// Leaf returns the hash of a leaf of a Merkle tree as in RFC 9162, section 2.1.1. Its content is a
// digest.
func Leaf(digest Hash) Hash { return sha256.Sum256(append([]byte{0}, digest[:]...)) }

func parent(left, right Hash) Hash {
	return sha256.Sum256(append(append([]byte{1}, left[:]...), right[:]...))
}

// A Tree computes the root of a Merkle tree, as in RFC 9162. The zero value has no leaves.
type Tree struct {
	count    uint64
	complete []Hash // the roots of the complete subtrees, the largest first: one for each bit of count
}

// Add adds the next leaf.
func (t *Tree) Add(leaf Hash) {
	for n := t.count; n&1 == 1; n >>= 1 {
		last := len(t.complete) - 1
		leaf = parent(t.complete[last], leaf)
		t.complete = t.complete[:last]
	}
	t.complete = append(t.complete, leaf)
	t.count++
}

// Count returns how many leaves there are.
func (t *Tree) Count() uint64 { return t.count }

// Root returns the root, which without leaves is the SHA-256 of nothing.
func (t *Tree) Root() Hash {
	last := len(t.complete) - 1
	if last < 0 {
		return sha256.Sum256(nil)
	}
	root := t.complete[last]
	for i := last - 1; i >= 0; i-- {
		root = parent(t.complete[i], root)
	}
	return root
}

// Path returns the hashes from a leaf to the root, the nearest first.
func Path(leaves []Hash, at int) []Hash {
	if len(leaves) <= 1 {
		return nil
	}
	split := 1 << (bits.Len(uint(len(leaves)-1)) - 1)
	if at < split {
		return append(Path(leaves[:split], at), rootOf(leaves[split:]))
	}
	return append(Path(leaves[split:], at-split), rootOf(leaves[:split]))
}

func rootOf(leaves []Hash) Hash {
	var t Tree
	for _, leaf := range leaves {
		t.Add(leaf)
	}
	return t.Root()
}

// VerifyPath reports whether a tree of so many leaves with this root has a leaf at a position. It
// is the algorithm of RFC 9162, section 2.1.3.2.
func VerifyPath(leaf Hash, at, count uint64, path []Hash, root Hash) bool {
	if at >= count {
		return false
	}
	position, last := at, count-1
	for _, other := range path {
		if last == 0 {
			return false
		}
		if position&1 == 1 || position == last {
			leaf = parent(other, leaf)
			for position&1 == 0 && position != 0 {
				position, last = position>>1, last>>1
			}
		} else {
			leaf = parent(leaf, other)
		}
		position, last = position>>1, last>>1
	}
	return last == 0 && leaf == root
}
