package frame

import "hash/crc32"

// A Combiner computes the CRC-32C of two contents after each other, without reading them. Its zero
// value is ready. Calls with the length of the call before cost a fraction of a microsecond.
//
// The checksum register is linear over GF(2): a matrix says what a number of zero bytes do to it
// (zlib has the same method).
type Combiner struct {
	length int64
	zeros  crcMatrix // for length; not valid if that is 0
}

// Combine returns the checksum of a content from those of its two parts and the length of the
// second.
func (c *Combiner) Combine(first, second uint32, length int64) uint32 {
	if length == 0 {
		return first
	}
	if c.length != length {
		c.length, c.zeros = length, zeroBytes(length)
	}
	return c.zeros.times(first) ^ second
}

// zeroBytes returns what a number of zero bytes do, at least one.
func zeroBytes(length int64) crcMatrix {
	power := zeroByte()
	for ; length&1 == 0; length >>= 1 {
		power = power.squared()
	}
	all := power
	for length >>= 1; length > 0; length >>= 1 {
		if power = power.squared(); length&1 == 1 {
			for i, v := range all {
				all[i] = power.times(v)
			}
		}
	}
	return all
}

// crcMatrix has the image of each bit.
type crcMatrix [32]uint32

// zeroByte returns what one byte of zero does.
func zeroByte() (m crcMatrix) {
	m[0] = crc32.Castagnoli // one bit
	for i := 1; i < len(m); i++ {
		m[i] = 1 << (i - 1)
	}
	return m.squared().squared().squared()
}

func (m *crcMatrix) times(v uint32) (image uint32) {
	for i := 0; v != 0; i, v = i+1, v>>1 {
		if v&1 == 1 {
			image ^= m[i]
		}
	}
	return image
}

func (m crcMatrix) squared() (square crcMatrix) {
	for i, v := range m {
		square[i] = m.times(v)
	}
	return square
}
