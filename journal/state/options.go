package state

// Options bound the memory of a machine with a store, and set when it flushes. Zero values mean the
// defaults.
type Options struct {
	// MemoryBytes bounds the memory of clean instances, whose latest state is in the store. They
	// stay in memory so that an append need not read them. Defaults to 128 MiB.
	MemoryBytes int
	// FlushBytes is the number of bytes of records, and of the instances that they change, at which
	// a flush begins. A restart applies fewer bytes of records again. When twice as many wait in
	// memory, Advance blocks. Defaults to 64 MiB.
	FlushBytes int
	// FlushEntries is the maximum number of calls of Advance between two flushes. Defaults to
	// 32768.
	FlushEntries int
	// FlushShare scales FlushBytes and FlushEntries, above 0 and up to 1. Replicas with different
	// shares do not all flush at the same moment. Defaults to 1.
	FlushShare float64
}

func (o Options) withDefaults() Options {
	setDefault(&o.MemoryBytes, 128<<20)
	setDefault(&o.FlushBytes, 64<<20)
	setDefault(&o.FlushEntries, 32<<10)
	if o.FlushShare > 0 {
		o.FlushBytes = max(int(o.FlushShare*float64(o.FlushBytes)), 1)
		o.FlushEntries = max(int(o.FlushShare*float64(o.FlushEntries)), 1)
	}
	return o
}

func setDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}
