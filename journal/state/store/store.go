package store

// Store is the database below a state machine; the package comment lists its guarantees. Every
// error is an *Error.
type Store interface {
	// View calls f with the contents of the store. The database stays in use until f returns, so f
	// must be brief and must not call user code. An error of f fails the store.
	View(op string, f func(Reader) error) error
	// Write applies the batch that fill fills. The batch need not be on disk when Write returns.
	// sizeHint is the number of bytes of keys and values, plus RecordOverhead for each record. A
	// larger batch is copied as it grows, and copying a large batch can stall the whole process.
	Write(op string, sizeHint int, fill func(Batch) error) error
	// Sync returns when all earlier Writes are on disk.
	Sync() error
	// Checkpoint creates the directory dir with a copy of the store as of the last Sync, and
	// returns the name of the database. dir must not exist and must be on the same file system.
	// Files of the same name in two checkpoints of one database are identical.
	Checkpoint(dir string) (database string, err error)
	// Snapshot returns the contents as of the last Write. Those that it keeps take disk space until
	// it is closed.
	Snapshot() (Snapshot, error)
	// Install replaces the database. fill puts the files of a checkpoint into a new directory and
	// syncs them. read is called with the new database before it is in use, more than once. If fill
	// or read returns an error, the store is unchanged. onInstalled is called when the new database
	// is in use, before any reader sees it. It must be brief and must not use the store.
	Install(fill func(dir string) error, read func(Reader) error, onInstalled func()) error
	// Fail makes the store fail, for example because data that was read cannot be right. It returns
	// the store's first error.
	Fail(op string, err error) error
	// Failed returns a channel that is closed when the store fails.
	Failed() <-chan struct{}
	// Err returns an *Error once the store has failed, nil before.
	Err() error
	// Close closes the store. It may be called more than once.
	Close() error
}

// RecordOverhead is the most that a record takes in a batch besides its key and its value, in
// bytes.
const RecordOverhead = 12

// Snapshot is the contents of a store at one moment. One goroutine at a time may use it.
type Snapshot interface {
	// View is Store.View with these contents. If the database was replaced or closed since, the
	// error wraps ErrClosed.
	View(op string, f func(Reader) error) error
	// Close may be called more than once.
	Close() error
}

// Reader reads the contents of a store.
type Reader interface {
	// DatabaseNumber numbers the databases that the store has had, from 1.
	DatabaseNumber() uint64
	// Get returns a copy of the value of a key, nil if there is none.
	Get(key []byte) (value []byte, err error)
	// Probe is like Get, optimized for keys that mostly do not exist. Only one goroutine may call
	// it. The value is valid until the next call or the end of the Reader.
	Probe(key []byte) (value []byte, err error)
	// NewIter returns an iterator over the keys in [from, to). The caller must close it before the
	// Reader ends.
	NewIter(from, to []byte) (Iterator, error)
}

// Iterator visits keys. A new one is at no key. The methods that move it report whether it is at a
// key.
type Iterator interface {
	First() bool
	Last() bool
	Next() bool
	Prev() bool
	// SeekGE moves to the first key that is at or after key.
	SeekGE(key []byte) bool
	// SeekLT moves to the last key before key.
	SeekLT(key []byte) bool
	// Key and ValueAndErr return the current key and value, valid until the iterator moves.
	Key() []byte
	ValueAndErr() ([]byte, error)
	// Error returns why the iterator is at no key, nil if no error occurred.
	Error() error
	Close() error
}

// Batch is a Write under construction. Of two operations on one key the later counts. A Batch does
// not retain keys or values.
type Batch interface {
	Set(key, value []byte) error
	Delete(key []byte) error
	// DeleteRange deletes the keys in [from, to).
	DeleteRange(from, to []byte) error
}
