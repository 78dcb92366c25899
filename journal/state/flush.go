package state

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Applied changes stay dirty in memory until a flush writes them. A flush writes, in one batch,
// everything that was dirty at one moment between two log entries, and the index of the first of
// these entries. So the store always holds the state after exactly one entry, whichever batches
// survive a crash.
//
// A flush first takes over the list of dirty instances. Each of them is then frozen once: by the
// flush, or by Apply before it changes the instance. Freezing captures what must be written, and
// costs no more than an append. Encoding and writing run concurrently with Apply. A flush pauses
// between its steps while it has time (see pauseShare): all replicas flush at about the same
// moment, and flushes must not delay heartbeats.

// flushState holds two generations of unwritten changes: the one to which Apply adds, and the one
// that a flush writes. flusher.mu guards all fields.
type flushState struct {
	index   uint64 // of the last entry that is applied completely
	term    uint64 // of that entry
	partial bool   // a record of the next entry is applied already

	generation     uint64 // counted from 1; a dirty instance holds the generation that it belongs to
	entries        int    // of this generation
	dirtyBytes     int    // about how many bytes of memory and log this generation takes
	dirty          []*instance
	removals       []removal
	chainedChanges []chainedChange
	// Instances that were purged but are still in the store, by the generation of the purge.
	purged map[string]uint64

	current    *flush // nil if none is in progress
	dbNumber   uint64 // the current database
	lastNumber uint64 // the last number given to an instance in it
	commits    uint64 // how often the store has changed
	durable    uint64 // the index that is on disk for certain
	waiters    []waiter
	unpaced    bool // see DisablePacing
	searched   bool // flushForSearches was called since the last flush began
	flushes    sync.WaitGroup

	blockers    int          // callers of blockFlushes that wait
	cutRequest  *cutRequest  // nil if no checkpoint at a cut is wanted
	pendingView *PendingView // nil if no view at a comparison is wanted
	paused      *PendingView // for which nothing is applied; nil if none
	indexState  indexState

	idle idleList
}

// flusher holds the state in memory and writes it to the store.
type flusher struct {
	// Holds what is not in contents; nil if everything is in memory.
	store   *recordStore
	options Options

	mu sync.RWMutex
	contents
	flushState
}

// waiter waits until an index is durable.
type waiter struct {
	index uint64
	done  chan struct{}
}

// chainedChange adds or removes a waiting chained start.
type chainedChange struct {
	target string
	start  *chainedStart // nil: removed
}

// position is the end of a history.
type position struct{ execution, event uint64 }

// storedState is what the store holds of an instance, or will hold after the flush in progress.
type storedState struct {
	instanceNumber uint64 // identifies its history; 0: it has never been written
	dbNumber       uint64 // the database in which it has that number
	chunks         uint64 // of all its executions
	upTo           position
	storedHash     uint64 // of the event at upTo
	sets           memberships
	timers         []timerKey
	memBytes       int // about how much memory it takes when it is clean

	// Its entries in the index in the store while it is dirty; nil if it has none.
	entries   *index.Entries
	indexedIn uint64 // the index generation in which the store holds entries of it, 0 for none

	dirtyGeneration  uint64 // the generation in which it was last made dirty
	frozenGeneration uint64 // the generation in which it was last written
	purged           bool

	// Its neighbors in the idle list.
	older, newer *instance
	isIdle       bool

	listedExecution uint64 // its latest when it was last added to facet.dirty
	listedAt        uint32 // where it was added
	listedIn        uint32 // facetTable.generation then
	movedAt         uint64 // facetTable.moves when it was last given another facet
	facet           *facet // by which it is counted; nil if it is not
}

// markStored records that the store has the instance as it is.
func (s *storedState) markStored(in *instance) {
	s.upTo, s.storedHash, s.sets = position{in.execution, in.last}, in.chainHash, in.memberships()
	s.timers = in.appendTimers(s.timers[:0])
}

// appendTimers appends the open timers.
func (in *instance) appendTimers(to []timerKey) []timerKey {
	for i := range in.open {
		if op := &in.open[i]; op.isTimer() {
			to = append(to, timerKey{op.fireAt, in.execution, op.id, in.id})
		}
	}
	return to
}

// flush is one generation while it is being written to the store.
type flush struct {
	generation     uint64
	meta           storeMeta
	instances      []*instance
	removals       []removal
	chainedChanges []chainedChange

	facets       []*facet // those whose counts have changed
	built        []builtInstance
	builtIDs     map[string]struct{} // of built; guarded by flusher.mu
	indexState   indexState          // after the flush
	frozen       []frozenInstance    // guarded by flusher.mu until all are frozen
	headerBuffer []byte              // the next header is appended here

	pacer store.Pacer
	atEnd func()        // called when the flush is on disk, before the next one; nil: nothing to do
	done  chan struct{} // closed when the flush has ended
}

// frozenInstance is what is to be written of one instance.
type frozenInstance struct {
	in                    *instance // for its ID alone
	number                uint64
	header                []byte
	events                []execution // the new ones
	hashBefore            uint64      // before the first of them
	hashAfter             uint64      // of the last
	setsBefore, setsAfter memberships
	closedTimers          []timerKey // timers that are no longer open
	openedTimers          []timerKey // newly open timers
	// Its entries in the index; nil if the store has none yet.
	entriesBefore, entriesAfter *index.Entries
}

// markDirty must be called before an instance is changed.
func (fl *flusher) markDirty(in *instance) {
	if fl.store == nil || in.dirtyGeneration == fl.generation {
		return
	}
	fl.freezeForFlush(in)
	fl.idle.remove(in)
	fl.keepEntries(in)
	in.dirtyGeneration = fl.generation
	fl.dirty = append(fl.dirty, in)
	fl.dirtyBytes += in.memBytes
}

// freezeForFlush freezes an instance that the flush in progress has yet to write.
func (fl *flusher) freezeForFlush(in *instance) {
	if f := fl.current; f != nil && in.dirtyGeneration == f.generation {
		fl.freeze(f, in)
	}
}

// recordRemoval must be called before an instance that has ended is removed.
func (fl *flusher) recordRemoval(in *instance) {
	if fl.store == nil {
		return
	}
	fl.freezeForFlush(in)
	fl.idle.remove(in)
	in.purged = true
	if in.instanceNumber != 0 {
		fl.keepEntries(in)
		fl.removals = append(fl.removals, removal{in.id, in.instanceNumber, in.chunks, in.execution, in.sets, in.timers, in.entries})
		fl.purged[in.id] = fl.generation
	}
}

// freeze captures what is to be written of an instance, once per flush.
func (fl *flusher) freeze(f *flush, in *instance) {
	if in.frozenGeneration == f.generation || in.purged || in.execution == 0 {
		return
	}
	in.frozenGeneration = f.generation
	if in.instanceNumber == 0 {
		fl.lastNumber++
		in.instanceNumber, in.dbNumber = fl.lastNumber, fl.dbNumber
	}
	frozen := frozenInstance{in: in, number: in.instanceNumber, hashBefore: in.storedHash, hashAfter: in.chainHash, setsBefore: in.sets, setsAfter: in.memberships()}
	for i := range in.executions {
		if x := in.executions[i].after(in.upTo); len(x.events) > 0 {
			frozen.events = append(frozen.events, x)
			in.chunks += countChunks(x.events)
		}
	}
	if before := in.timers; len(before) > 0 || in.open.hasTimer() {
		in.timers = nil
		in.markStored(in)
		frozen.closedTimers, frozen.openedTimers = timersWithout(before, in.timers), timersWithout(in.timers, before)
	} else {
		in.markStored(in)
	}
	in.keepOperationNames()
	frozen.entriesBefore, frozen.entriesAfter = in.entries, in.newEntries()
	in.entries, in.indexedIn = frozen.entriesAfter, fl.indexState.generation
	frozen.header = f.appendHeader(in)
	in.memBytes = idleBytes + len(frozen.header)
	f.frozen = append(f.frozen, frozen)
}

// Headers share buffers of headerBufferBytes. A buffer with less than headerReserve free takes no
// further header.
const (
	headerBufferBytes = 64 << 10
	headerReserve     = 1 << 10
)

// appendHeader returns the current header of an instance.
func (f *flush) appendHeader(in *instance) []byte {
	if cap(f.headerBuffer)-len(f.headerBuffer) < headerReserve {
		f.headerBuffer = make([]byte, 0, headerBufferBytes)
	}
	from := len(f.headerBuffer)
	f.headerBuffer = in.appendHeader(f.headerBuffer)
	return f.headerBuffer[from:]
}

// after returns the part of an execution after a position.
func (e execution) after(p position) execution {
	switch {
	case e.number < p.execution:
		e.events = nil
	case e.number == p.execution && e.first <= p.event:
		e.events = e.events[min(p.event+1-e.first, uint64(len(e.events))):]
		e.first = p.event + 1
	}
	e.events = e.events[:len(e.events):len(e.events)]
	return e
}

// timersWithout returns the timers that are not in others. Both are short.
func timersWithout(timers, others []timerKey) []timerKey {
	var rest []timerKey
	for _, a := range timers {
		if _, found := slices.BinarySearchFunc(others, a, timerKey.compareByEvent); !found {
			rest = append(rest, a)
		}
	}
	return rest
}

// Advance records that all records of the entries up to index are applied; term is that of the
// last. It starts a flush when one is due. It waits for the flush in progress only if another is
// already due. The error is a *StoreError.
func (fl *flusher) Advance(index, term uint64) error {
	fl.mu.Lock()
	fl.index, fl.term, fl.partial = index, term, false
	if fl.store == nil {
		fl.mu.Unlock()
		return nil
	}
	fl.entries++
	fl.evictExcess()
	fl.serveCutRequest()
	paused := fl.servePendingView()
	fl.startFlushIfDue()
	var inFlight *flush
	if fl.isFlushDue() {
		inFlight = fl.current
	}
	fl.mu.Unlock()
	if paused != nil {
		fl.awaitResumed(paused)
	}
	if inFlight == nil {
		return fl.store.Err()
	}
	select {
	case <-inFlight.done:
		return fl.Advance(index, term)
	case <-fl.store.Failed():
		return fl.store.Err()
	}
}

// flushForSearches begins a flush if there are many dirty instances, and hurries the one in
// progress.
func (fl *flusher) flushForSearches() {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.searched = true
	fl.startFlushIfDue()
}

// slowsSearches reports whether there are searches, and many dirty instances for them to examine.
func (fl *flusher) slowsSearches() bool { return fl.searched && len(fl.dirty) > fl.options.searchedMax }

// isFlushDue reports whether enough is dirty for a flush.
func (fl *flusher) isFlushDue() bool {
	o := &fl.options
	return fl.dirtyBytes >= o.FlushBytes || fl.entries >= o.FlushEntries
}

// startFlushIfDue starts a flush if one is due, awaited or wanted by searches, no other is in
// progress, and the last entry is applied completely. fl.mu must be held.
func (fl *flusher) startFlushIfDue() {
	if fl.current != nil || fl.partial || fl.holdsFlush() || !fl.isFlushDue() && len(fl.waiters) == 0 && !fl.slowsSearches() && !fl.isBuildDue() {
		return
	}
	fl.startFlush(nil)
}

// startFlush starts a flush; none may be in progress. It calls atEnd, unless that is nil, when the
// flush is on disk, before the next one starts. fl.mu must be held.
func (fl *flusher) startFlush(atEnd func()) {
	f := &flush{
		generation: fl.generation, meta: storeMeta{index: fl.index, term: fl.term, epoch: fl.epoch, metadata: fl.metadata},
		instances: fl.dirty, removals: fl.removals, chainedChanges: fl.chainedChanges,
		facets: fl.facets.takeChanged(), indexState: fl.indexState, atEnd: atEnd, done: make(chan struct{}),
	}
	f.meta.indexGeneration = fl.indexState.generation
	fl.generation++
	fl.entries, fl.dirtyBytes, fl.searched = 0, 0, false
	fl.dirty, fl.removals, fl.chainedChanges = nil, nil, nil
	f.frozen = make([]frozenInstance, 0, len(f.instances))
	fl.current = f
	fl.flushes.Go(func() { fl.runFlush(f) })
}

// Flush returns when everything applied up to index is on disk in the store. Advance must have
// reached index, or must reach it soon. Flush may take seconds, because a flush pauses while it has
// time. Later changes may be on disk, too. The error is ctx's or a *StoreError.
func (fl *flusher) Flush(ctx context.Context, index uint64) error {
	if fl.store == nil {
		return nil
	}
	fl.mu.Lock()
	if fl.durable >= index {
		fl.mu.Unlock()
		return fl.store.Err()
	}
	w := waiter{index, make(chan struct{})}
	fl.waiters = append(fl.waiters, w)
	fl.startFlushIfDue()
	fl.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-fl.store.Failed():
		return fl.store.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush: %w", ctx.Err())
	}
}

// runFlush runs a flush to its end.
func (fl *flusher) runFlush(f *flush) {
	defer close(f.done)
	f.pacer = store.StartPacer()
	fl.forEachInBatches(f, func(in *instance) { fl.freeze(f, in) })
	f.meta.lastNumber = fl.lastNumber // only freezing assigns numbers
	if fl.buildIndex(f) != nil {
		return // the store has failed
	}
	if fl.store.Write("write changes", f.batchBytes(), func(b store.Batch) error { return fl.fillBatch(f, b) }) != nil {
		return // fl.current stays set, so that no further flush starts
	}
	fl.mu.Lock()
	fl.commits++
	fl.indexState = f.indexState
	for i := range f.removals {
		if id := f.removals[i].id; fl.purged[id] == f.generation {
			delete(fl.purged, id)
		}
	}
	fl.mu.Unlock()
	fl.forEachInBatches(f, func(in *instance) { fl.trimWritten(f, in) })
	if fl.store.Sync() != nil {
		return
	}
	if f.atEnd != nil {
		f.atEnd()
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.durable = f.meta.index
	fl.current = nil
	fl.facets.endFlush()
	fl.notifyWaiters()
	fl.startFlushIfDue()
}

// notifyWaiters wakes the waiters whose index is durable.
func (f *flushState) notifyWaiters() {
	f.waiters = slices.DeleteFunc(f.waiters, func(w waiter) bool {
		if w.index > f.durable {
			return false
		}
		close(w.done)
		return true
	})
}

// instancesPerLock is how many instances are frozen or trimmed while the machine is locked.
const instancesPerLock = 128

// forEachInBatches calls do with each instance of a flush, and releases the lock in between.
func (fl *flusher) forEachInBatches(f *flush, do func(*instance)) {
	for step := range slices.Chunk(f.instances, instancesPerLock) {
		fl.mu.Lock()
		for _, in := range step {
			do(in)
		}
		fl.mu.Unlock()
		fl.pause(f)
	}
}

// pause pauses the flush if its pacer requires a pause.
func (fl *flusher) pause(f *flush) { f.pacer.Pause(fl.pauseShare, fl.store.Failed(), nil) }

// pauseShare returns the share of a full pause that a flush may take, from 0 to 1. It shrinks as
// new changes accumulate, and is 0 when the machine is about to be closed.
func (fl *flusher) pauseShare() float64 {
	fl.mu.RLock()
	defer fl.mu.RUnlock()
	if fl.unpaced || fl.pendingView != nil {
		return 0
	}
	o := &fl.options
	dirty := max(float64(fl.dirtyBytes)/float64(o.FlushBytes), float64(fl.entries)/float64(o.FlushEntries))
	if fl.searched && fl.current != nil {
		dirty = max(dirty, float64(len(fl.dirty)+len(fl.current.instances))/float64(o.searchedMax)-1)
	}
	return max(1-dirty, 0)
}

// trimWritten drops from memory what the store now holds.
func (fl *flusher) trimWritten(f *flush, in *instance) {
	if in.purged || in.frozenGeneration != f.generation {
		return
	}
	retained := in.executions[:0]
	for _, x := range in.executions {
		if x = x.after(in.upTo); len(x.events) > 0 {
			x.events = slices.Clone(x.events) // releases the array with the written ones
			retained = append(retained, x)
		}
	}
	clear(in.executions[len(retained):])
	in.executions = retained
	if in.dirtyGeneration != f.generation {
		return
	}
	in.entries = nil
	if !in.isRunning() {
		fl.evict(in) // most ended instances are never read again
		return
	}
	fl.idle.add(in)
	fl.evictExcess()
}

// fillBatch puts a flush into a batch. After a crash the store holds the whole batch, or neither it
// nor any later one.
func (fl *flusher) fillBatch(f *flush, b store.Batch) error {
	w := &batchWriter{batch: b}
	w.putIndexState(f)
	for i := range f.removals {
		w.setErr(f.removals[i].writeTo(b))
	}
	for i := range f.chainedChanges {
		w.putChainedStart(&f.chainedChanges[i])
	}
	for i := range f.frozen {
		w.putInstance(&f.frozen[i])
		if i%instancesPerLock == 0 {
			fl.pause(f)
		}
	}
	w.set([]byte{keyMeta}, f.meta.appendTo)
	return w.err
}

// batchWriter fills a batch and keeps its first error.
type batchWriter struct {
	batch      store.Batch
	key, value []byte
	err        error
}

func (w *batchWriter) setErr(err error) {
	if w.err == nil {
		w.err = err
	}
}

// set puts a key with the record that fill appends.
func (w *batchWriter) set(key []byte, fill func([]byte) []byte) {
	w.value = fill(w.value[:0])
	w.value = appendValueChecksum(w.value, 0, key)
	w.setErr(w.batch.Set(key, w.value))
}

func (w *batchWriter) putChainedStart(c *chainedChange) {
	w.key = idKey(w.key[:0], keyChained, c.target)
	if c.start == nil {
		w.setErr(w.batch.Delete(w.key))
		return
	}
	w.set(w.key, c.start.encode)
}

func (w *batchWriter) putInstance(frozen *frozenInstance) {
	w.key = idKey(w.key[:0], keyInstance, frozen.in.id)
	w.set(w.key, func(b []byte) []byte { return append(b, frozen.header...) })
	w.putEntries(frozen.in.id, frozen.entriesBefore, frozen.entriesAfter)
	for kind := range frozen.setsBefore.without(frozen.setsAfter).kinds() {
		w.key = idKey(w.key[:0], kind, frozen.in.id)
		w.setErr(w.batch.Delete(w.key))
	}
	for kind := range frozen.setsAfter.without(frozen.setsBefore).kinds() {
		w.key = idKey(w.key[:0], kind, frozen.in.id)
		w.set(w.key, emptyValue)
	}
	for i := range frozen.closedTimers {
		w.key = frozen.closedTimers[i].appendTo(w.key[:0])
		w.setErr(w.batch.Delete(w.key))
	}
	for i := range frozen.openedTimers {
		w.key = frozen.openedTimers[i].appendTo(w.key[:0])
		w.set(w.key, emptyValue)
	}
	chainHash := frozen.hashBefore
	for _, x := range frozen.events {
		chainHash = w.putHistory(frozen, x, chainHash)
	}
	if chainHash != frozen.hashAfter {
		w.setErr(fmt.Errorf("hash chain mismatch in memory of instance %q: %w", frozen.in.id, ErrCorrupt))
	}
}

func emptyValue(b []byte) []byte { return b }

// putHistory puts the chunks of an execution and returns the last hash.
func (w *batchWriter) putHistory(frozen *frozenInstance, x execution, chainHash uint64) uint64 {
	if x.first == 1 {
		chainHash = hashExecution(chainHash, frozen.in.id, x.number)
	}
	for events, first := x.events, x.first; len(events) > 0; {
		c := chunk{hashBefore: chainHash}
		c.events, events = nextChunk(events)
		c.hashAfter = hashEvents(chainHash, c.events)
		w.key = chunkKey{frozen.number, x.number, first}.appendTo(w.key[:0])
		w.set(w.key, c.appendTo)
		chainHash = c.hashAfter
		first += uint64(len(c.events))
	}
	return chainHash
}

// The parts of a size in a batch that do not depend on IDs and content: the rest of the key, the
// checksum, and the first fields of a chunk or chained start.
const (
	recordOverhead       = store.RecordOverhead + historyKeySize + checksumSize
	chunkOverhead        = recordOverhead + 2*(1+8)
	eventOverhead        = 1 + 5 // a tag and the length
	chainedStartOverhead = recordOverhead + 64
	lastNumberBytes      = 10 // part of the meta record, not known yet
)

// batchBytes returns a close upper bound of the size of the batch of a flush. All instances of the
// flush must be frozen.
func (f *flush) batchBytes() int {
	n := recordOverhead + lastNumberBytes + len(f.meta.appendTo(nil))
	for i := range f.removals {
		n += f.removals[i].batchBytes()
	}
	n += f.indexBytes()
	for i := range f.chainedChanges {
		n += chainedStartOverhead + len(f.chainedChanges[i].target)
		if start := f.chainedChanges[i].start; start != nil {
			n += len(start.ref.instance) + len(start.body)
		}
	}
	for i := range f.frozen {
		n += f.frozen[i].batchBytes()
	}
	return n
}

// batchBytes returns an upper bound of the bytes that an instance takes in a batch.
func (frozen *frozenInstance) batchBytes() int {
	records := 1 + len(frozen.closedTimers) + len(frozen.openedTimers)
	records += frozen.setsBefore.without(frozen.setsAfter).count() + frozen.setsAfter.without(frozen.setsBefore).count()
	n := records*(recordOverhead+len(frozen.in.id)) + len(frozen.header)
	n += entriesBytes(frozen.in.id, frozen.entriesBefore, frozen.entriesAfter)
	for _, x := range frozen.events {
		n += int(countChunks(x.events)) * chunkOverhead
		for _, event := range x.events {
			n += eventOverhead + len(event)
		}
	}
	return n
}

// idleBytes is about how many bytes of memory an instance takes in addition to the size of its
// header on disk.
const idleBytes = 800

// idleList is a cache of clean instances, whose latest state is in the store. They are ordered by
// their last change.
type idleList struct {
	oldest, newest *instance
	count          int
	bytes          int
}

func (l *idleList) add(in *instance) {
	l.remove(in)
	in.isIdle, in.older, in.newer = true, l.newest, nil
	if l.newest != nil {
		l.newest.newer = in
	} else {
		l.oldest = in
	}
	l.newest = in
	l.count++
	l.bytes += in.memBytes
}

func (l *idleList) remove(in *instance) {
	if !in.isIdle {
		return
	}
	if in.older != nil {
		in.older.newer = in.newer
	} else {
		l.oldest = in.newer
	}
	if in.newer != nil {
		in.newer.older = in.older
	} else {
		l.newest = in.older
	}
	in.isIdle, in.older, in.newer = false, nil, nil
	l.count--
	l.bytes -= in.memBytes
}

// evictExcess evicts the longest idle instances until the idle list is within MemoryBytes.
func (fl *flusher) evictExcess() {
	for fl.idle.bytes > fl.options.MemoryBytes {
		fl.evict(fl.idle.oldest)
	}
}

// evict removes a clean instance from memory.
func (fl *flusher) evict(in *instance) {
	fl.idle.remove(in)
	fl.updateSets(in, in.memberships(), memberships{})
	delete(fl.instances, in.id)
}
