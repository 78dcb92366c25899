package store

// Store is the database below a state machine. The package comment has what it
// guarantees. Every error is an *Error.
type Store interface {
	// View shows f what the store holds. The database stays in use until f has
	// returned, so f must be brief and must not call anybody's code. An error of f
	// is one of the store.
	View(op string, f func(Reader) error) error
	// Write puts what fill says into the store. It need not be on disk. room is how
	// many bytes the keys and values take, and RecordRoom for each of them; a batch that
	// turns out larger is moved as it grows, all of it at once, for which a large one
	// stops the process.
	Write(op string, room int, fill func(Batch) error) error
	// Sync returns when everything that was written is on disk.
	Sync() error
	// Checkpoint makes the directory dir, which is not there yet and on the same
	// file system, a copy of what the last Sync has left, and names the database.
	// Of two checkpoints of one database, files of the same name are the same.
	Checkpoint(dir string) (database string, err error)
	// Install puts another database in the place of the one there is: fill puts the
	// files of a checkpoint into a new directory and syncs them. read is shown the
	// new database before it is taken into use, more than once; if it or fill
	// returns an error, everything is as it was. taken is called when the new
	// database is in use, before anybody is shown it; it must be brief and must not
	// ask the store.
	Install(fill func(dir string) error, read func(Reader) error, taken func()) error
	// Fail says that what was read cannot be right, or another reason not to go
	// on, and returns the first error that the store has met.
	Fail(op string, err error) error
	// Failed returns a channel that is closed when the store cannot be used any
	// more.
	Failed() <-chan struct{}
	// Err returns an *Error once the store cannot be used any more, nil before.
	Err() error
	// Close closes the store. It may be called more than once.
	Close() error
}

// RecordRoom is what a record takes of a batch besides its key and its value, at most.
const RecordRoom = 12

// Reader shows what a store holds.
type Reader interface {
	// Database counts the databases that the store has had, from 1.
	Database() uint64
	// Get returns a copy of the value of a key, nil if there is none.
	Get(key []byte) (value []byte, err error)
	// Probe is a Get for keys most of which are not there, by one goroutine alone.
	// The value may change with the next call, or when the Reader goes.
	Probe(key []byte) (value []byte, err error)
	// NewIter returns an iterator over the keys from one on and before another, to
	// be closed before the Reader goes.
	NewIter(from, to []byte) (Iterator, error)
}

// Iterator stands on a key, or on none at first. Those that move it report
// whether it stands on one now.
type Iterator interface {
	First() bool
	Last() bool
	Next() bool
	// SeekGE moves it to the first key that is not before key.
	SeekGE(key []byte) bool
	// SeekLT moves it to the last key before key.
	SeekLT(key []byte) bool
	// Key and ValueAndErr are where it stands, until it is moved.
	Key() []byte
	ValueAndErr() ([]byte, error)
	// Error says why it stands on no key, nil if there is none.
	Error() error
	Close() error
}

// Batch is a Write that is being put together. Of two that concern a key the
// later counts. It keeps neither keys nor values.
type Batch interface {
	Set(key, value []byte) error
	Delete(key []byte) error
	// DeleteRange deletes the keys from one on and before another.
	DeleteRange(from, to []byte) error
}
