package slots

// Count is the number of hash slots, and therefore the largest number of partitions.
const Count = 256

// Of returns the hash slot of an instance. It multiplies the 64-bit FNV-1a hash of the ID by 2^64/φ
// and returns the highest 8 bits. The multiplication spreads IDs that differ only at their end.
func Of(id string) int {
	const offset, prime, golden = 14695981039346656037, 1099511628211, 0x9E3779B97F4A7C15
	hash := uint64(offset)
	for i := range len(id) {
		hash = (hash ^ uint64(id[i])) * prime
	}
	return int(hash * golden >> 56)
}

// Partition returns the partition of an instance, counted from 0.
func Partition(id string, partitions int) int {
	if partitions <= 1 {
		return 0
	}
	return Of(id) * partitions / Count
}
