package slots

// Count is how many slots there are. Each group holds a stretch of them, so there can be
// no more groups than that.
const Count = 256

// Of returns the slot of an instance, for ever: FNV-1a of its ID, 64 bits, multiplied
// by 2^64 divided by the golden ratio, so that IDs which differ at their end alone
// spread as well; of that the highest 8 bits.
func Of(id string) int {
	const offset, prime, golden = 14695981039346656037, 1099511628211, 0x9E3779B97F4A7C15
	hash := uint64(offset)
	for i := range len(id) {
		hash = (hash ^ uint64(id[i])) * prime
	}
	return int(hash * golden >> 56)
}

// Group returns which of so many groups an instance belongs to, counted from 0.
func Group(id string, groups int) int {
	if groups <= 1 {
		return 0
	}
	return Of(id) * groups / Count
}
