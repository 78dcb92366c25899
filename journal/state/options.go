package state

// Options say how much of its state a machine with a store keeps in memory. Zero
// values mean the defaults.
type Options struct {
	// MemoryBytes bounds what is kept in memory of instances that are written,
	// so that they need not be read when they are appended to. Defaults to
	// 128 MiB.
	MemoryBytes int
	// FlushBytes is how many bytes of records, and of the instances that they
	// change, come together between two flushes, and so more than a restart applies
	// again. Twice as much at most waits in memory: then applying waits. Defaults to
	// 64 MiB.
	FlushBytes int
	// FlushEntries is how many Advances lie between two flushes at most. Defaults
	// to 32768.
	FlushEntries int
	// FlushShare is the part of both bounds, above 0 and up to 1, at which a flush
	// begins: replicas that apply the same and have different ones do not all flush at
	// the same moment. Defaults to 1.
	FlushShare float64
}

func (o Options) withDefaults() Options {
	orDefault(&o.MemoryBytes, 128<<20)
	orDefault(&o.FlushBytes, 64<<20)
	orDefault(&o.FlushEntries, 32<<10)
	if o.FlushShare > 0 {
		o.FlushBytes = max(int(o.FlushShare*float64(o.FlushBytes)), 1)
		o.FlushEntries = max(int(o.FlushShare*float64(o.FlushEntries)), 1)
	}
	return o
}

func orDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}
