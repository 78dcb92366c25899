package state

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// What is applied stays in memory, dirty, until a flush writes it: everything
// that is dirty at one moment between two entries of the log, in one batch, with
// the index of the entry. So the store always holds the state behind one entry,
// whatever of the batches a crash leaves.
//
// A flush begins by handing over the list of what is dirty. From then on an
// instance on the list is frozen once: by the flush when its turn comes, or by
// the applier before it changes it. Freezing notes what is to be written and
// costs no more than an append; the bytes are put together and written beside
// the applying. A flush rests between its steps as long as there is time: all
// replicas begin one at the same moment, and heartbeats must not wait for it.

// flushes are the generations of what is dirty: the one that is being applied
// to, and the one that is being written. All of it is guarded by Machine.mu.
type flushes struct {
	index   uint64 // of the last entry that is applied whole
	term    uint64 // of that entry
	partial bool   // a record behind it is applied

	generation uint64 // counted from 1; an instance that is dirty says of which
	entries    int    // of this generation
	dirtyBytes int    // about how much memory and log this generation stands for
	dirty      []*instance
	removals   []removal
	rechained  []chainedChange
	// Instances that were purged and that the store still has, by the
	// generation of the purge.
	gone map[string]uint64

	current *flush // nil if none is under way
	home    uint64 // the database that is written
	numbers uint64 // that were given to instances in it
	commits uint64 // how often the store has changed
	durable uint64 // the index that the store has for certain
	waiters []waiter
	hasty   bool // see Hasten
	running sync.WaitGroup

	rest idleList
}

// waiter waits until an index is durable.
type waiter struct {
	index uint64
	done  chan struct{}
}

// chainedChange is a chained start that waits from now on, or no longer.
type chainedChange struct {
	target string
	start  *chainedStart // nil: no longer
}

// position is where a history has come to.
type position struct{ execution, event uint64 }

// stored is what the store has of an instance, or will have when the flush that
// is under way has ended.
type stored struct {
	number uint64 // by which its history goes; 0: it has never been written
	home   uint64 // the database in which it has that number
	chunks uint64 // of all its executions
	upTo   position
	link   uint64 // of the event at upTo
	sets   memberships
	alarms []alarm
	weight int // about how much memory it takes when it is clean

	dirtied uint64 // the generation that it was made dirty in last
	frozen  uint64 // the generation in which it was written last
	purged  bool

	// Its place among those that are clean.
	older, newer *instance
	idles        bool
}

// settled notes that the store has the instance as it is.
func (s *stored) settled(in *instance) {
	s.upTo, s.link, s.sets = position{in.execution, in.last}, in.chain, in.memberships()
	s.alarms = in.appendAlarms(s.alarms[:0])
}

// appendAlarms appends the open timers.
func (in *instance) appendAlarms(to []alarm) []alarm {
	for i := range in.open {
		if op := &in.open[i]; op.timer() {
			to = append(to, alarm{op.fireAt, in.execution, op.id, in.id})
		}
	}
	return to
}

// flush is one generation on its way into the store.
type flush struct {
	generation uint64
	meta       meta
	list       []*instance
	removals   []removal
	rechained  []chainedChange

	frozen  []frozen // guarded by Machine.mu until all are
	headers []byte   // the newest of them, and room for more

	pace store.Pace
	done chan struct{} // closed
}

// frozen is what is to be written of one instance.
type frozen struct {
	in       *instance // for its ID alone
	number   uint64
	header   []byte
	events   []execution // that are new
	link     uint64      // before the first of them
	chain    uint64      // of the last
	was, is  memberships
	silenced []alarm // timers that are not open any more
	alarms   []alarm // timers that are open now
}

// touch is called before an instance is changed.
func (m *Machine) touch(in *instance) {
	if m.store == nil || in.dirtied == m.generation {
		return
	}
	m.preserve(in)
	m.rest.remove(in)
	in.dirtied = m.generation
	m.dirty = append(m.dirty, in)
	m.dirtyBytes += in.weight
}

// preserve freezes an instance that the flush under way is still to write.
func (m *Machine) preserve(in *instance) {
	if f := m.current; f != nil && in.dirtied == f.generation {
		m.freeze(f, in)
	}
}

// forget is called before an instance that has ended is removed.
func (m *Machine) forget(in *instance) {
	if m.store == nil {
		return
	}
	m.preserve(in)
	m.rest.remove(in)
	in.purged = true
	if in.number != 0 {
		m.removals = append(m.removals, removal{in.id, in.number, in.chunks, in.execution})
		m.gone[in.id] = m.generation
	}
}

// freeze notes what is to be written of an instance, once.
func (m *Machine) freeze(f *flush, in *instance) {
	if in.frozen == f.generation || in.purged || in.execution == 0 {
		return
	}
	in.frozen = f.generation
	if in.number == 0 {
		m.numbers++
		in.number, in.home = m.numbers, m.home
	}
	z := frozen{in: in, number: in.number, link: in.link, chain: in.chain, was: in.sets, is: in.memberships()}
	for i := range in.executions {
		if x := in.executions[i].behind(in.upTo); len(x.events) > 0 {
			z.events = append(z.events, x)
			in.chunks += chunksOf(x.events)
		}
	}
	if before := in.alarms; len(before) > 0 || in.open.hasTimer() {
		in.alarms = nil
		in.settled(in)
		z.silenced, z.alarms = without(before, in.alarms), without(in.alarms, before)
	} else {
		in.settled(in)
	}
	z.header = f.header(in)
	in.weight = idleBytes + len(z.header)
	f.frozen = append(f.frozen, z)
}

// Headers are put together in pieces of headersBytes, each of which has room for one more
// that is not unusually large.
const (
	headersBytes = 64 << 10
	headerRoom   = 1 << 10
)

// header returns the header of an instance as it is.
func (f *flush) header(in *instance) []byte {
	if cap(f.headers)-len(f.headers) < headerRoom {
		f.headers = make([]byte, 0, headersBytes)
	}
	from := len(f.headers)
	f.headers = in.appendHeader(f.headers)
	return f.headers[from:]
}

// behind returns the part of an execution behind a position.
func (x execution) behind(p position) execution {
	switch {
	case x.number < p.execution:
		x.events = nil
	case x.number == p.execution && x.first <= p.event:
		x.events = x.events[min(p.event+1-x.first, uint64(len(x.events))):]
		x.first = p.event + 1
	}
	x.events = x.events[:len(x.events):len(x.events)]
	return x
}

// without returns the alarms that are not among others. There are few of each.
func without(alarms, others []alarm) []alarm {
	var rest []alarm
	for _, a := range alarms {
		if _, found := slices.BinarySearchFunc(others, a, alarm.order); !found {
			rest = append(rest, a)
		}
	}
	return rest
}

// Advance says that the records of the entries up to index are applied, the last
// of which is of term. It begins a flush when it is time for one, and waits for
// the one that is under way only if as much again is dirty as makes a flush. The
// error is a *StoreError.
func (m *Machine) Advance(index, term uint64) error {
	m.mu.Lock()
	m.index, m.term, m.partial = index, term, false
	if m.store == nil {
		m.mu.Unlock()
		return nil
	}
	m.entries++
	m.evictMore()
	m.beginIfDue()
	var behind *flush
	if m.due() {
		behind = m.current
	}
	m.mu.Unlock()
	if behind == nil {
		return m.store.Err()
	}
	select {
	case <-behind.done:
		return m.Advance(index, term)
	case <-m.store.Failed():
		return m.store.Err()
	}
}

// due reports whether so much is dirty that it is time for a flush.
func (m *Machine) due() bool {
	o := &m.options
	return m.dirtyBytes >= o.FlushBytes || m.entries >= o.FlushEntries
}

// beginIfDue begins a flush if there is reason to and it can be done now: between
// two entries, while no other is under way. m.mu is held.
func (m *Machine) beginIfDue() {
	if m.current != nil || m.partial || !m.due() && len(m.waiters) == 0 {
		return
	}
	f := &flush{
		generation: m.generation, meta: meta{index: m.index, term: m.term, epoch: m.epoch, group: m.group},
		list: m.dirty, removals: m.removals, rechained: m.rechained,
		done: make(chan struct{}),
	}
	m.generation++
	m.entries, m.dirtyBytes = 0, 0
	m.dirty, m.removals, m.rechained = nil, nil, nil
	f.frozen = make([]frozen, 0, len(f.list))
	m.current = f
	m.running.Go(func() { m.run(f) })
}

// Flush returns when the store has for certain what was applied up to an index,
// which Advance has to have reached or is to reach soon. It may have more, and may
// take seconds, as a flush rests when there is time. The
// error is ctx's or a *StoreError.
func (m *Machine) Flush(ctx context.Context, index uint64) error {
	if m.store == nil {
		return nil
	}
	m.mu.Lock()
	if m.durable >= index {
		m.mu.Unlock()
		return m.store.Err()
	}
	w := waiter{index, make(chan struct{})}
	m.waiters = append(m.waiters, w)
	m.beginIfDue()
	m.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-m.store.Failed():
		return m.store.Err()
	case <-ctx.Done():
		return fmt.Errorf("flush: %w", ctx.Err())
	}
}

// run takes a flush to its end.
func (m *Machine) run(f *flush) {
	defer close(f.done)
	f.pace = store.StartPace()
	m.inSteps(f, func(in *instance) { m.freeze(f, in) })
	f.meta.numbers = m.numbers // only freezing gives any
	if m.store.Write("write what has changed", f.room(), func(b store.Batch) error { return m.fill(f, b) }) != nil {
		return // m.current stays: nothing is written any more
	}
	m.mu.Lock()
	m.commits++
	for i := range f.removals {
		if id := f.removals[i].id; m.gone[id] == f.generation {
			delete(m.gone, id)
		}
	}
	m.mu.Unlock()
	m.inSteps(f, func(in *instance) { m.settle(f, in) })
	if m.store.Sync() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.durable = f.meta.index
	m.current = nil
	m.wake()
	m.beginIfDue()
}

// wake wakes those whose index is durable.
func (f *flushes) wake() {
	f.waiters = slices.DeleteFunc(f.waiters, func(w waiter) bool {
		if w.index > f.durable {
			return false
		}
		close(w.done)
		return true
	})
}

// stepInstances is how many instances are frozen or settled while everybody else
// waits.
const stepInstances = 128

// inSteps does something with each instance of a flush, and lets others in now and then.
func (m *Machine) inSteps(f *flush, do func(*instance)) {
	for step := range slices.Chunk(f.list, stepInstances) {
		m.mu.Lock()
		for _, in := range step {
			do(in)
		}
		m.mu.Unlock()
		m.pause(f)
	}
}

// pause has a flush rest if it is time to.
func (m *Machine) pause(f *flush) { f.pace.Rest(m.restShare, m.store.Failed(), nil) }

// restShare returns for which part of a whole rest a flush has time: the less, the more
// is dirty again, and none when the machine is about to be closed.
func (m *Machine) restShare() float64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.hasty {
		return 0
	}
	o := &m.options
	dirty := max(float64(m.dirtyBytes)/float64(o.FlushBytes), float64(m.entries)/float64(o.FlushEntries))
	return max(1-dirty, 0)
}

// settle drops from memory what the store has now.
func (m *Machine) settle(f *flush, in *instance) {
	if in.purged || in.frozen != f.generation {
		return
	}
	kept := in.executions[:0]
	for _, x := range in.executions {
		if x = x.behind(in.upTo); len(x.events) > 0 {
			x.events = slices.Clone(x.events) // those before are let go
			kept = append(kept, x)
		}
	}
	clear(in.executions[len(kept):])
	in.executions = kept
	if in.dirtied != f.generation {
		return
	}
	if !in.running() {
		m.evict(in) // most of what has ended is never asked for again
		return
	}
	m.rest.add(in)
	m.evictMore()
}

// fill puts a flush into a batch. It is whole after a crash, or nothing of it and
// of those after it is there.
func (m *Machine) fill(f *flush, b store.Batch) error {
	w := &batchWriter{batch: b}
	for i := range f.removals {
		w.keep(f.removals[i].from(b))
	}
	for i := range f.rechained {
		w.chained(&f.rechained[i])
	}
	for i := range f.frozen {
		w.instance(&f.frozen[i])
		if i%stepInstances == 0 {
			m.pause(f)
		}
	}
	w.set([]byte{keyMeta}, f.meta.appendTo)
	return w.err
}

// batchWriter fills a batch. Its first error stays.
type batchWriter struct {
	batch      store.Batch
	key, value []byte
	err        error
}

func (w *batchWriter) keep(err error) {
	if w.err == nil {
		w.err = err
	}
}

// set puts a key with the record that fill appends.
func (w *batchWriter) set(key []byte, fill func([]byte) []byte) {
	w.value = fill(w.value[:0])
	w.value = appendChecksum(w.value, 0, key)
	w.keep(w.batch.Set(key, w.value))
}

func (w *batchWriter) chained(c *chainedChange) {
	w.key = idKey(w.key[:0], keyChained, c.target)
	if c.start == nil {
		w.keep(w.batch.Delete(w.key))
		return
	}
	w.set(w.key, c.start.encode)
}

func (w *batchWriter) instance(z *frozen) {
	w.key = idKey(w.key[:0], keyInstance, z.in.id)
	w.set(w.key, func(b []byte) []byte { return append(b, z.header...) })
	w.member(keyBusy, z.in.id, z.was.busy, z.is.busy)
	w.member(keyUnbegun, z.in.id, z.was.unbegun, z.is.unbegun)
	w.member(keyChild, z.in.id, z.was.child, z.is.child)
	w.member(keyHeld, z.in.id, z.was.held, z.is.held)
	for i := range z.silenced {
		w.key = z.silenced[i].key(w.key[:0])
		w.keep(w.batch.Delete(w.key))
	}
	for i := range z.alarms {
		w.key = z.alarms[i].key(w.key[:0])
		w.set(w.key, nothing)
	}
	link := z.link
	for _, x := range z.events {
		link = w.history(z, x, link)
	}
	if link != z.chain {
		w.keep(fmt.Errorf("instance %q changed in memory: %w", z.in.id, ErrCorrupt))
	}
}

func nothing(b []byte) []byte { return b }

// member puts or deletes the key that says that an instance is in a set.
func (w *batchWriter) member(kind byte, id string, was, is bool) {
	if was == is {
		return
	}
	w.key = idKey(w.key[:0], kind, id)
	if is {
		w.set(w.key, nothing)
	} else {
		w.keep(w.batch.Delete(w.key))
	}
}

// history puts the chunks of an execution and returns the last link.
func (w *batchWriter) history(z *frozen, x execution, link uint64) uint64 {
	if x.first == 1 {
		link = chainExecution(link, z.in.id, x.number)
	}
	for events, first := x.events, x.first; len(events) > 0; {
		c := chunk{before: link}
		c.events, events = nextChunk(events)
		c.after = chainEvents(link, c.events)
		w.key = place{z.number, x.number, first}.key(w.key[:0])
		w.set(w.key, c.appendTo)
		link = c.after
		first += uint64(len(c.events))
	}
	return link
}
