package state

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"google.golang.org/protobuf/encoding/protowire"
)

// Options say where a machine keeps its state and how much of it in memory. Zero
// values mean the defaults.
type Options struct {
	// Dir is the directory of the store; it is created if need be. Required.
	Dir string
	// FS is the file system. Defaults to that of the operating system.
	FS vfs.FS
	// Logger gets changes of state and what the store warns of. Defaults to
	// slog.Default().
	Logger *slog.Logger
	// MemoryBytes bounds what is kept in memory of instances that are written,
	// so that they need not be read when they are appended to. Defaults to
	// 128 MiB.
	MemoryBytes int
	// CacheBytes bounds the cache of what was read from the store. Defaults to
	// 64 MiB.
	CacheBytes int
	// FlushBytes is how many bytes of records are applied between two flushes,
	// and so about how much a restart applies again. Twice as much at most waits
	// in memory: then applying waits. Defaults to 32 MiB.
	FlushBytes int
	// FlushEntries is how many Advances lie between two flushes at most. Defaults
	// to 32768.
	FlushEntries int
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	orDefault(&o.MemoryBytes, 128<<20)
	orDefault(&o.CacheBytes, 64<<20)
	orDefault(&o.FlushBytes, 32<<20)
	orDefault(&o.FlushEntries, 32<<10)
	return o
}

func orDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

// storeFormat is the number in the meta record: the version of every key and
// value that the package comment describes.
const storeFormat = 1

// store is the embedded database below a machine. It is written by the one flush
// that is under way, and read by anybody.
type store struct {
	options Options

	// mu is held for reading while db is used, for writing while it is replaced.
	mu          sync.RWMutex
	db          *pebble.DB // nil once closed
	incarnation uint64     // of db; the numbers of instances mean nothing in another
	name        string     // the directory of db, in options.Dir
	trial       bool       // what is wrong with db is not wrong with what is in use
	lock        *pebble.Lock

	prober  prober
	closing atomic.Bool // db is being closed
	failure failure
}

// failure is the first thing that went wrong with a store. Behind it nothing is
// written any more.
type failure struct {
	failed chan struct{} // closed
	once   sync.Once
	err    *StoreError
}

func newStore(o Options) *store {
	return &store{options: o, failure: failure{failed: make(chan struct{})}}
}

// fail notes what went wrong, marks a store that is damaged, and returns the
// first thing that did.
func (s *store) fail(op string, err error) error {
	var before *StoreError
	if errors.As(err, &before) && !errors.Is(err, ErrCorrupt) {
		return err // closed, or noted already
	}
	s.failure.once.Do(func() {
		if pebble.IsCorruptionError(err) {
			err = errors.Join(ErrCorrupt, err)
		}
		s.failure.err = &StoreError{Dir: s.options.Dir, Op: op, Err: err}
		if errors.Is(err, ErrCorrupt) && !s.trial {
			if marked := writeSynced(s.options.FS, s.options.Dir, damagedFile, []byte(err.Error()+"\n")); marked != nil {
				s.options.Logger.Error("the damaged state could not be marked", "error", marked)
			}
		}
		close(s.failure.failed)
	})
	return s.failure.err
}

// err returns a *StoreError once something has gone wrong, nil before.
func (s *store) err() error {
	select {
	case <-s.failure.failed:
		return s.failure.err
	default:
		return nil
	}
}

// guarded runs something that may write, in a goroutine of its own, and returns
// an error when it has returned or the store has failed: the database ends the
// goroutine that meets an error behind which it cannot go on, whosever it is,
// and others may then wait for it in vain.
func (s *store) guarded(op string, f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := error(nil)
		returned := false
		defer func() {
			if !returned {
				err = s.err()
			}
			result <- err
		}()
		err = f()
		returned = true
	}()
	select {
	case err := <-result:
		if err != nil {
			return s.fail(op, err)
		}
		return nil
	case <-s.failure.failed:
		return s.failure.err
	}
}

// view runs something that reads. The store stays as it is meanwhile, so f must
// be brief and must not call anybody's code. The incarnation is that of the
// numbers that f uses, 0 if it uses none.
func (s *store) view(op string, incarnation uint64, f func(*pebble.DB) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return &StoreError{Dir: s.options.Dir, Op: op, Err: errClosed}
	}
	if incarnation != 0 && incarnation != s.incarnation {
		return errReplaced
	}
	if err := f(s.db); err != nil {
		return s.fail(op, err)
	}
	return nil
}

// errReplaced says that another database has taken the place of the one that
// numbers were read from.
var errReplaced = errors.New("the store was replaced")

// open opens a database in a directory that nobody else uses.
func (s *store) open(name string) (*pebble.DB, *pebble.Lock, error) {
	fs := s.cutOff(s.options.FS)
	path := fs.PathJoin(s.options.Dir, name)
	if err := errors.Join(s.options.FS.MkdirAll(path, 0o700), syncDir(s.options.FS, s.options.Dir)); err != nil {
		return nil, nil, s.fail("open", err)
	}
	lock, err := pebble.LockDirectory(path, fs)
	if err != nil {
		return nil, nil, s.fail("open", err)
	}
	opened := make(chan *pebble.DB, 1)
	err = s.guarded("open", func() error {
		o, gate := s.pebbleOptions(fs, lock), newCompactionGate()
		o.Experimental.CompactionScheduler = gate
		db, err := pebble.Open(path, o)
		if err != nil {
			return damage(err)
		}
		gate.open()
		opened <- db
		return nil
	})
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return <-opened, lock, nil
}

// damage marks an error of opening a database that is not one of the system: a
// file that is missing or says what no other file agrees with is not always
// called corrupt.
func damage(err error) error {
	var system syscall.Errno
	if errors.As(err, &system) && system != syscall.ENOENT {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// cutOff returns a file system that takes no writes once the store has failed:
// what goes on in a database that is broken must not reach the files.
func (s *store) cutOff(fs vfs.FS) vfs.FS {
	cut := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return s.err()
		}
		return nil
	}))
	return &unwindingFS{cut, s}
}

// compactionGate lets no compaction begin before Open has returned: one that
// fails late pulls the rug from under those that it has begun, and they panic.
type compactionGate struct {
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
}

// newCompactionGate returns a closed gate. The scheduler behind it has no
// goroutine of its own: whatever waits begins when another has ended.
func newCompactionGate() *compactionGate {
	return &compactionGate{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule implements pebble.CompactionScheduler. Who is refused does not ask
// again, and waits.
func (g *compactionGate) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !g.opened.Load() {
		return false, nil
	}
	return g.ConcurrencyLimitScheduler.TrySchedule()
}

// open lets in who waits, as the end of a compaction does.
func (g *compactionGate) open() {
	g.opened.Store(true)
	if granted, handle := g.ConcurrencyLimitScheduler.TrySchedule(); granted {
		handle.Done()
	}
}

// flush returns when everything that was written to a database is on disk.
func (s *store) flush(db *pebble.DB) error {
	var flushed <-chan struct{}
	err := s.guarded("flush", func() (err error) {
		flushed, err = db.AsyncFlush()
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return s.refreshProber()
	case <-s.failure.failed:
		return s.failure.err
	}
}

// unwindingFS ends the goroutine that cannot sync a directory, as Fatalf does:
// the database would panic, in whatever goroutine it is.
type unwindingFS struct {
	vfs.FS
	store *store
}

// OpenDir implements vfs.FS.
func (fs *unwindingFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &unwindingDir{f, fs.store}, nil
}

type unwindingDir struct {
	vfs.File
	store *store
}

// Sync implements vfs.File.
func (d *unwindingDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.store.breakDown("sync a directory", err)
	}
	return nil
}

const memTableBytes = 8 << 20

// pebbleOptions has what was measured; see DESIGN.md. The database takes what its
// memtables and its large batches weigh off the cache, which must not be empty for
// as long as a flush lasts: each lookup would read a filter from disk.
func (s *store) pebbleOptions(fs vfs.FS, lock *pebble.Lock) *pebble.Options {
	o := &pebble.Options{
		FS: fs, Lock: lock, Logger: pebbleLogger{s},
		DisableWAL:                  true,
		CacheSize:                   int64(s.options.CacheBytes + 2*s.options.FlushBytes + 2*memTableBytes),
		FormatMajorVersion:          pebble.FormatTableFormatV6,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 8,
		L0CompactionThreshold:       8,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                1000,
		EventListener: &pebble.EventListener{
			BackgroundError: s.backgroundError,
			DataCorruption:  func(i pebble.DataCorruptionInfo) { _ = s.fail("read "+i.Path, errors.Join(ErrCorrupt, i.Details)) },
			DiskSlow: func(i pebble.DiskSlowInfo) {
				s.options.Logger.Warn("slow disk", "path", i.Path, "duration", i.Duration)
			},
		},
	}
	o.CompactionConcurrencyRange = func() (lower, upper int) { return 1, max(1, runtime.GOMAXPROCS(0)/2) }
	o.Experimental.SpanPolicyFunc = splitByKind
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 8 << 20 << min(i, 2)
	}
	return o
}

// splitByKind ends a table where the keys of another kind begin: one that holds
// nothing but histories, which are written in order of their keys, is moved down
// the levels, and one that holds a single header among them is written again.
func splitByKind(from []byte) (policy pebble.SpanPolicy, end []byte, err error) {
	if len(from) > 0 {
		end = afterAll(from[0])
	}
	return policy, end, nil
}

// pebbleLogger hands on what the database says, and ends the goroutine that
// cannot go on.
type pebbleLogger struct{ *store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.options.Logger.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.options.Logger.Warn(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Fatalf must not return: the database would go on with what it knows to be
// wrong. Ending the goroutine unwinds it and lets go of its locks.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.breakDown("keep the database", fmt.Errorf(format, args...))
}

// backgroundError ends the goroutine of a flush or a compaction that has failed:
// the database would try again at once, for ever, unless it is being closed.
func (s *store) backgroundError(err error) {
	if s.closing.Load() {
		_ = s.fail("write in the background", err)
		return
	}
	s.breakDown("write in the background", err)
}

// breakDown fails the store and ends the goroutine.
func (s *store) breakDown(op string, err error) {
	_ = s.fail(op, err)
	runtime.Goexit()
}

// close closes the database, unless the store has failed: then its goroutines and
// files are left behind, since some may have been ended halfway, and nothing that
// they do reaches the disk.
func (s *store) close() error { return s.replace(nil, nil, "") }

// replace puts another database in the place of the one there is, and closes
// that when nobody reads it any more.
func (s *store) replace(db *pebble.DB, lock *pebble.Lock, name string) error {
	s.prober.mu.Lock()
	err := s.prober.end()
	s.mu.Lock()
	s.db, db = db, s.db
	s.lock, lock = lock, s.lock
	s.name = name
	s.incarnation++
	s.mu.Unlock()
	s.prober.mu.Unlock()
	if db == nil {
		return nil
	}
	return errors.Join(s.quiet(err), s.closeDatabase(db, lock))
}

func (s *store) closeDatabase(db *pebble.DB, lock *pebble.Lock) error {
	err := error(nil)
	if s.err() == nil {
		s.closing.Store(true)
		err = s.quiet(s.guarded("close", db.Close))
		s.closing.Store(false)
	}
	return errors.Join(err, lock.Close())
}

// quiet drops what a store that has failed says in the end.
func (s *store) quiet(err error) error {
	if s.err() != nil {
		return nil
	}
	return err
}

// meta is what the store says of itself.
type meta struct {
	index   uint64 // of the last entry whose records are in the store
	term    uint64 // of that entry
	epoch   uint64
	group   group
	numbers uint64 // that have been given to instances
}

// The fields of the meta record.
const (
	fieldMetaFormat  = 1
	fieldMetaIndex   = 2
	fieldMetaTerm    = 3
	fieldMetaEpoch   = 4
	fieldMetaNumbers = 5
	fieldMetaGroup   = 6
)

func (m *meta) appendTo(b []byte) []byte {
	b = appendUint(b, fieldMetaFormat, storeFormat)
	b = appendUint(b, fieldMetaIndex, m.index)
	b = appendUint(b, fieldMetaTerm, m.term)
	b = appendUint(b, fieldMetaEpoch, m.epoch)
	b = appendUint(b, fieldMetaNumbers, m.numbers)
	b = protowire.AppendTag(b, fieldMetaGroup, protowire.BytesType)
	return protowire.AppendBytes(b, m.group.encode())
}

// parse reads the meta record, or returns a *FormatError.
func (m *meta) parse(dir string, record []byte) error {
	format, groupErr := uint64(0), error(nil)
	ok := each(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		v, _ := protowire.ConsumeVarint(value)
		switch {
		case number == fieldMetaGroup && wire == protowire.BytesType:
			encoded, _ := protowire.ConsumeBytes(value)
			m.group, groupErr = parseGroup(encoded)
		case wire != protowire.VarintType:
		case number == fieldMetaFormat:
			format = v
		case number == fieldMetaIndex:
			m.index = v
		case number == fieldMetaTerm:
			m.term = v
		case number == fieldMetaEpoch:
			m.epoch = v
		case number == fieldMetaNumbers:
			m.numbers = v
		}
	})
	if !ok || groupErr != nil {
		return fmt.Errorf("the meta record: %w", ErrCorrupt)
	}
	if format != storeFormat {
		return &FormatError{Dir: dir, Format: format}
	}
	return nil
}

// get returns the checked record of a key, nil if there is none. It is a copy.
func get(db *pebble.DB, key []byte) (record []byte, err error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	if record, err = checked(key, value); err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(record)), record...), nil
}

// readMeta reads the meta record; that of a new database is empty.
func readMeta(db *pebble.DB, dir string) (m meta, err error) {
	record, err := get(db, []byte{keyMeta})
	if err != nil || record == nil {
		return m, err
	}
	return m, m.parse(dir, record)
}

// scan visits the checked records of the keys in a range, in order, until visit
// returns false. Key and record are its own only while it runs.
func scan(db *pebble.DB, from, to []byte, visit func(key, record []byte) (more bool, err error)) (err error) {
	iter, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	return eachKey(iter, visit)
}

// eachKey visits the checked records that an iterator can reach.
func eachKey(iter *pebble.Iterator, visit func(key, record []byte) (more bool, err error)) error {
	for ok := iter.First(); ok; ok = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		record, err := checked(iter.Key(), value)
		if err != nil {
			return err
		}
		more, err := visit(iter.Key(), record)
		if err != nil || !more {
			return err
		}
	}
	return iter.Error()
}

// lastOf returns the event_id of the last event of an execution, 0 if the store
// has none.
func (s *store) lastOf(incarnation, number, execution uint64) (last uint64, err error) {
	err = s.view("read a history", incarnation, func(db *pebble.DB) (err error) {
		end := place{number, execution, math.MaxUint64}.key(nil)
		iter, err := db.NewIter(&pebble.IterOptions{LowerBound: place{number, execution, 0}.key(nil), UpperBound: end})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		if !iter.Last() {
			return iter.Error()
		}
		c, at, err := readChunk(iter)
		last = at.first + uint64(len(c.events)) - 1
		return err
	})
	return last, err
}

// readChunk reads and verifies the chunk on which an iterator stands. Its events
// are copies.
func readChunk(iter *pebble.Iterator) (c chunk, at place, err error) {
	if err = at.parse(iter.Key()); err != nil {
		return c, at, err
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return c, at, err
	}
	record, err := checked(iter.Key(), value)
	if err != nil {
		return c, at, err
	}
	if err = c.parse(append(make([]byte, 0, len(record)), record...)); err != nil {
		return c, at, fmt.Errorf("execution %d from event %d on: %w", at.execution, at.first, err)
	}
	return c, at, nil
}

// events returns the chunk in which the event at is. The error is errReplaced if
// it is not there.
func (s *store) events(incarnation uint64, at place) (c chunk, start uint64, err error) {
	missing := false
	err = s.view("read a history", incarnation, func(db *pebble.DB) (err error) {
		lower := place{at.number, at.execution, 0}.key(nil)
		iter, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: afterAll(keyHistory)})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		next := at
		next.first++
		if missing = !iter.SeekLT(next.key(nil)); missing {
			return iter.Error()
		}
		var found place
		c, found, err = readChunk(iter)
		start = found.first
		missing = start+uint64(len(c.events)) <= at.first
		return err
	})
	if err == nil && missing {
		err = errReplaced
	}
	return c, start, err
}

// current returns the database, nil once it is closed. Only a flush may use it
// like that: whoever closes or replaces a database has waited for the flushes.
func (s *store) current() *pebble.DB {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.db
}

// removal is what the store has of an instance that is to be removed. In no set
// is it any more, and no timer of it is open.
type removal struct {
	id     string
	number uint64
	chunks uint64
	latest uint64 // execution, the only one if there is one chunk
}

// from takes an instance out of the store.
func (r *removal) from(b *pebble.Batch) error {
	if err := b.Delete(idKey(nil, keyInstance, r.id), nil); err != nil {
		return err
	}
	if r.chunks == 1 { // most are short, and ranges cost their readers more
		return b.Delete(place{r.number, r.latest, 1}.key(nil), nil)
	}
	first, next := place{number: r.number}, place{number: r.number + 1}
	return b.DeleteRange(first.key(nil), next.key(nil), nil)
}
