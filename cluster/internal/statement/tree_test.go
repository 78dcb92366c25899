package statement

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
)

func leavesOf(count int) (leaves []Hash) {
	for i := range count {
		leaves = append(leaves, Leaf(sha256.Sum256(fmt.Append(nil, i))))
	}
	return leaves
}

// The path of each leaf leads to the root, and no other position, size, leaf, path or root does.
func TestTree_VerifiesPaths(t *testing.T) {
	for count := 1; count <= 70; count++ {
		leaves := leavesOf(count)
		root := rootOf(leaves)
		for at, leaf := range leaves {
			path := Path(leaves, at)
			if !VerifyPath(leaf, uint64(at), uint64(count), path, root) {
				t.Fatalf("leaf %d of %d is not verified", at, count)
			}
			for other := range uint64(count) + 2 {
				if other != uint64(at) && VerifyPath(leaf, other, uint64(count), path, root) {
					t.Errorf("leaf %d of %d is verified at %d", at, count, other)
				}
			}
			for i := range path {
				altered := slices.Clone(path)
				altered[i][7] ^= 1
				if VerifyPath(leaf, uint64(at), uint64(count), altered, root) || VerifyPath(leaf, uint64(at), uint64(count), path[:i], root) {
					t.Errorf("leaf %d of %d is verified with another path", at, count)
				}
			}
			if VerifyPath(leaf, uint64(at), uint64(count), append(slices.Clone(path), root), root) || VerifyPath(root, uint64(at), uint64(count), path, root) && count > 1 {
				t.Errorf("leaf %d of %d: a longer path, or the root as a leaf, is verified", at, count)
			}
		}
	}
}

// The roots are those of RFC 9162: the hash of two leaves is that of 0x01 and both.
func TestTree_RootsOfSmallTrees(t *testing.T) {
	var empty Tree
	if root := empty.Root(); hex.EncodeToString(root[:4]) != "e3b0c442" {
		t.Errorf("the root without leaves is %x", root)
	}
	a := leavesOf(3)
	two := sha256.Sum256(slices.Concat([]byte{1}, a[0][:], a[1][:]))
	if three := sha256.Sum256(slices.Concat([]byte{1}, two[:], a[2][:])); rootOf(a[:2]) != two || rootOf(a) != three || rootOf(a[:1]) != a[0] {
		t.Error("the roots of one, two or three leaves are wrong")
	}
}
