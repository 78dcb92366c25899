package frame

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestCombine_EqualsChecksumOfAll(t *testing.T) {
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content) // never fails
	var c Combiner
	for _, first := range []int{0, 1, 4, 1000, 1 << 20} {
		for _, second := range []int{0, 1, 2, 7, 255, 1 << 16, 1 << 20, 2<<20 - 3} {
			a, b := content[:first], content[first:first+second]
			got := c.Combine(crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli), int64(second))
			if want := crc32.Checksum(content[:first+second], castagnoli); got != want {
				t.Errorf("%d and %d bytes: %08x, want %08x", first, second, got, want)
			}
		}
	}
}
