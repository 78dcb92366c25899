package state

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// The index by which instances are queried is part of the store. A flush writes the entries of the
// instances that it writes, and the counts of the facets. Between flushes only these counts are
// kept, in memory.
//
// The header of an instance says in which generation of the index it has entries. A store of an
// older build has none; a store that an older build has changed since has wrong ones. Either lacks
// the generation in its meta record. The index is then built anew, under the next generation: each
// flush adds some of the instances that have no entries yet, and another flush follows at once.

// facet counts the instances with a state, name and version.
type facet struct {
	index.Facet
	number  uint32 // in keys; counted from 1
	count   uint64
	stored  uint64 // the count as of the last flush
	changed bool   // since the last flush began
	// The instances with this facet that are not written yet: those of the present generation, and
	// those of the flush in progress. Some have another facet by now, and some are in it twice.
	dirty, flushing []index.Unwritten[*instance]
}

// facetTable holds all facets that have had an instance.
type facetTable struct {
	byFacet     map[index.Facet]*facet
	all         []*facet // by number
	recorded    int      // how many of all, the first ones, a flush has written or is about to write
	moves       uint64   // how often an instance was given another facet
	generation  uint32   // how often takeChanged was called
	tracksDirty bool     // there is a store
}

func newFacetTable() facetTable { return facetTable{byFacet: map[index.Facet]*facet{}} }

// of returns the facet of an instance.
func (t *facetTable) of(in *instance) *facet {
	key := index.Facet{State: in.runState(), Name: in.name, Version: in.version}
	f := t.byFacet[key]
	if f == nil {
		f = &facet{Facet: key, number: uint32(len(t.all) + 1)}
		t.add(f)
	}
	return f
}

func (t *facetTable) add(f *facet) {
	t.byFacet[f.Facet] = f
	t.all = append(t.all, f)
}

// count counts an instance by its current facet, and no longer by an earlier one.
func (t *facetTable) count(in *instance) {
	if f := in.facet; f != nil && f.State == in.runState() && f.Name == in.name && f.Version == in.version {
		if in.listedExecution != in.execution {
			t.addDirty(in) // its tags may be others
		}
		return
	}
	if in.facet != nil {
		t.moves++
		in.movedAt = t.moves
		t.markMoved(in)
	}
	t.remove(in)
	in.facet = t.of(in)
	in.facet.count++
	in.facet.changed = true
	t.addDirty(in)
}

// addDirty records that an instance is not written yet.
func (t *facetTable) addDirty(in *instance) {
	if in.facet != nil && t.tracksDirty {
		in.listedExecution, in.listedAt, in.listedIn = in.execution, uint32(len(in.facet.dirty)), t.generation
		in.facet.dirty = append(in.facet.dirty, unwrittenOf(in))
	}
}

// markMoved spares queries from reading an instance, which is given another facet, in the list of
// its facet.
func (t *facetTable) markMoved(in *instance) {
	var list []index.Unwritten[*instance]
	switch in.listedIn {
	case t.generation:
		list = in.facet.dirty
	case t.generation - 1:
		list = in.facet.flushing
	}
	if at := int(in.listedAt); at < len(list) && list[at].Instance == in {
		list[at].SetMoved(t.moves)
	}
}

// unwrittenOf returns what a query compares first of an instance that is not written. An instance
// that runs changes later: only its ID, creation, tags and parent are final.
func unwrittenOf(in *instance) index.Unwritten[*instance] {
	u := index.NewUnwritten(in, in.id, in.created)
	for key, value := range in.tags {
		u.AddTag(key, value)
	}
	if in.parent != nil {
		u.AddParent(in.parent.instance)
	}
	if !in.isRunning() {
		u.SetEnded(in.updated)
		for name, encoded := range in.attributes {
			u.AddAttribute(name, attributeText(encoded))
		}
	}
	return u
}

// endFlush records that a flush has ended.
func (t *facetTable) endFlush() {
	for _, f := range t.all {
		f.flushing = nil
	}
}

// remove stops counting an instance.
func (t *facetTable) remove(in *instance) {
	if in.facet != nil {
		in.facet.count--
		in.facet.changed = true
		in.facet = nil
	}
}

// takeChanged begins a generation, and returns the facets whose counts have changed.
func (t *facetTable) takeChanged() (changed []*facet) {
	t.generation++
	for _, f := range t.all {
		f.flushing, f.dirty = f.dirty, nil
		if f.changed {
			f.changed, f.stored = false, f.count
			changed = append(changed, f)
		}
	}
	t.recorded = len(t.all) // a new facet has changed
	return changed
}

// takeNew returns the facets that no flush has taken yet. The numbers of the facets in the store
// must be consecutive: a flush that writes a facet writes all before it.
func (t *facetTable) takeNew() (added []*facet) {
	added = slices.Clone(t.all[t.recorded:])
	t.recorded = len(t.all)
	return added
}

// indexState says how much of the index is built.
type indexState struct {
	generation uint64
	isNew      bool   // the store may hold keys of an earlier generation
	cursor     string // the last instance that was added
	complete   bool
}

// keepEntries remembers the entries of an instance that is about to change.
func (fl *flusher) keepEntries(in *instance) {
	if in.facet == nil && in.execution != 0 {
		fl.facets.count(in)
	} else {
		fl.facets.addDirty(in)
	}
	if in.entries == nil && in.instanceNumber != 0 && in.indexedIn == fl.indexState.generation {
		in.entries = in.newEntries()
	}
}

// newEntries returns the entries of an instance, which must be counted.
func (in *instance) newEntries() *index.Entries {
	if in.tags == nil && in.open == nil && in.attributes == nil && in.parent == nil && in.errorCode == "" {
		return &index.Entries{Facet: in.facet.number, Created: in.created, Updated: in.updated, Ended: !in.isRunning()}
	}
	return index.EntriesOf(in.row(), in.facet.number)
}

// completeHeader adds what headers of older builds lack, from the history.
func (in *instance) completeHeader(from store.Reader) error {
	events := eventReader{from: from, in: in}
	for i := range in.open {
		if op := &in.open[i]; op.since == 0 {
			e, encoded, err := events.read(op.id)
			if err != nil {
				return err
			}
			op.since = e.timestamp
			if op.needsName() {
				op.name = scheduledName(encoded)
			}
		}
	}
	if in.runState() == index.Failed && in.errorCode == "" {
		e, _, err := events.read(in.last)
		if err != nil {
			return err
		}
		in.errorCode = errorCodeIn(e.body, fieldFailedError)
	}
	return nil
}

// eventReader reads events of the latest execution of an instance. It keeps the last chunk that it
// read, so that events in order of their IDs cost one read for each chunk.
type eventReader struct {
	from  store.Reader
	in    *instance
	chunk chunk
	first uint64 // event_id of the first event in chunk
}

// read returns an event. The error is errEventMissing if there is none.
func (r *eventReader) read(id uint64) (e eventFields, encoded []byte, err error) {
	if id < r.first || id-r.first >= uint64(len(r.chunk.events)) {
		if err = r.readChunkWith(id); err != nil {
			return e, nil, err
		}
	}
	encoded = r.chunk.events[id-r.first]
	e, _ = parseEventFields(encoded) // fold has decoded it
	return e, encoded, nil
}

func (r *eventReader) readChunkWith(id uint64) error {
	key := chunkKey{r.in.instanceNumber, r.in.execution, id + 1}
	iter, err := r.from.NewIter(chunkKey{r.in.instanceNumber, r.in.execution, 0}.appendTo(nil), endOfKind(keyHistory))
	if err != nil {
		return err
	}
	defer func() { _ = iter.Close() }() // its error was returned before
	if !iter.SeekLT(key.appendTo(nil)) {
		return r.in.missingEvent(id, iter.Error())
	}
	c, at, err := readChunk(iter)
	if err != nil {
		return err
	}
	if id-at.first >= uint64(len(c.events)) {
		return r.in.missingEvent(id, nil)
	}
	r.chunk, r.first = c, at.first
	return nil
}

func (in *instance) missingEvent(id uint64, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("event %d of instance %q: %w", id, in.id, errEventMissing)
}

// errEventMissing reports that the store lacks an event. It wraps ErrCorrupt.
var errEventMissing = fmt.Errorf("the event is missing: %w", ErrCorrupt)

// The fields of the record of the index, and of that of a facet.
const (
	fieldIndexGeneration = 1
	fieldIndexCursor     = 2
	fieldIndexComplete   = 3
	fieldIndexFormat     = 4

	fieldFacetState   = 1
	fieldFacetName    = 2
	fieldFacetVersion = 3
	fieldFacetCount   = 4
)

func (s *indexState) appendTo(b []byte) []byte {
	b = appendUint(b, fieldIndexGeneration, s.generation)
	b = appendText(b, fieldIndexCursor, s.cursor)
	if s.complete {
		b = appendUint(b, fieldIndexComplete, 1)
	}
	return appendUint(b, fieldIndexFormat, index.Format)
}

func (f *facet) appendTo(b []byte) []byte {
	b = appendUint(b, fieldFacetState, uint64(f.State))
	b = appendText(b, fieldFacetName, f.Name)
	b = appendText(b, fieldFacetVersion, f.Version)
	return appendUint(b, fieldFacetCount, f.stored)
}

func (f *facet) key(b []byte) []byte {
	return binary.BigEndian.AppendUint32(append(b, keyFacet), f.number)
}

// readIndexState reads the state of the index and the facets.
func readIndexState(from store.Reader, meta *storeMeta, facets *facetTable) (s indexState, err error) {
	record, err := getRecord(from, []byte{keyFacet})
	if err != nil {
		return s, err
	}
	generation, _ := intField(record, fieldIndexGeneration)
	complete, _ := intField(record, fieldIndexComplete)
	cursor, ok := stringField(record, fieldIndexCursor)
	if !ok {
		return s, fmt.Errorf("decode the record of the index: %w", ErrCorrupt)
	}
	format, _ := intField(record, fieldIndexFormat)
	if meta.indexGeneration == 0 || meta.indexGeneration != uint64(generation) || format != index.Format {
		empty := meta.lastNumber == 0
		return indexState{generation: uint64(generation) + 1, isNew: record != nil || !empty, complete: empty}, nil
	}
	s = indexState{generation: uint64(generation), cursor: cursor, complete: complete != 0}
	return s, scanRecords(from, []byte{keyFacet, 0}, endOfKind(keyFacet), func(key, record []byte) (bool, error) {
		f := &facet{}
		if !f.parse(key, record) || int(f.number) != len(facets.all)+1 || facets.byFacet[f.Facet] != nil {
			return false, fmt.Errorf("decode facet %d: %w", len(facets.all)+1, ErrCorrupt)
		}
		facets.add(f)
		facets.recorded = len(facets.all)
		return true, nil
	})
}

func (f *facet) parse(key, record []byte) bool {
	if len(key) != 5 {
		return false
	}
	f.number = binary.BigEndian.Uint32(key[1:])
	return eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch wire {
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			if number == fieldFacetState {
				f.State = index.State(v)
			} else if number == fieldFacetCount {
				f.count, f.stored = v, v
			}
		case protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			if number == fieldFacetName {
				f.Name = string(v)
			} else if number == fieldFacetVersion {
				f.Version = string(v)
			}
		}
	})
}

// isBuildDue reports whether a flush is due because the index is not complete.
func (fl *flusher) isBuildDue() bool {
	return fl.store != nil && !fl.indexState.complete && !fl.unpaced && fl.blockers == 0
}

// builtInstance is an instance that a flush adds to the index, with its new header.
type builtInstance struct {
	id      string
	header  []byte
	entries *index.Entries
}

// buildIndex adds the next instances to an incomplete index. It reads them from the store: those
// that this flush writes or removes are left out.
func (fl *flusher) buildIndex(f *flush) error {
	if f.indexState.complete {
		return nil
	}
	page, more, err := fl.store.headersAfter(f.indexState.cursor, fl.options.indexStep)
	if err != nil {
		return err
	}
	fl.mu.Lock()
	f.builtIDs = make(map[string]struct{}, len(page))
	fl.mu.Unlock()
	written := make(map[string]struct{}, len(f.frozen)+len(f.removals))
	for i := range f.frozen {
		written[f.frozen[i].in.id] = struct{}{}
	}
	for i := range f.removals {
		written[f.removals[i].id] = struct{}{}
	}
	for step := range slices.Chunk(page, instancesPerLock) {
		fl.mu.Lock()
		for _, stored := range step {
			if _, ok := written[stored.id]; !ok && stored.indexedIn != f.indexState.generation {
				fl.addToIndex(f, stored)
			}
		}
		fl.mu.Unlock()
		fl.pause(f)
	}
	if len(page) > 0 {
		f.indexState.cursor = page[len(page)-1].id
	}
	if !more {
		f.indexState.cursor, f.indexState.complete = "", true
	}
	return nil
}

// addToIndex adds an instance as the store has it.
func (fl *flusher) addToIndex(f *flush, stored *instance) {
	stored.indexedIn = f.indexState.generation
	counted := fl.facets.of(stored)
	stored.facet = counted
	entries := stored.newEntries()
	counted.stored++
	f.facets = append(f.facets, fl.facets.takeNew()...)
	if !slices.Contains(f.facets, counted) {
		f.facets = append(f.facets, counted)
	}
	f.builtIDs[stored.id] = struct{}{}
	f.built = append(f.built, builtInstance{stored.id, stored.appendHeader(nil), entries})
	if _, purged := fl.purged[stored.id]; purged { // since the flush began
		at := slices.IndexFunc(fl.removals, func(r removal) bool { return r.number == stored.instanceNumber })
		fl.removals[at].entries = entries
		return
	}
	in := fl.instances[stored.id]
	switch {
	case in == nil:
		counted.count++
	case in.dirtyGeneration == fl.generation:
		in.indexedIn, in.entries = stored.indexedIn, entries // it is counted since it is dirty
	default:
		in.indexedIn = stored.indexedIn
		if in.facet == nil {
			in.facet = counted
			counted.count++
		}
	}
}

// hasBuilt reports whether the flush adds an instance to the index.
func (f *flush) hasBuilt(id string) bool {
	_, built := f.builtIDs[id]
	return built
}

// buildStepBytes is how many bytes of headers a flush adds to the index at most, except for the
// last.
const buildStepBytes = 4 << 20

// headersAfter reads the next headers in order of IDs, and reports whether there are more. Only a
// flush removes instances, so none is removed meanwhile.
func (s *recordStore) headersAfter(id string, limit int) (headers []*instance, more bool, err error) {
	err = s.view("build the index", 0, func(from store.Reader) error {
		bytes := 0
		headers, more = nil, false
		lower := append(idKey(nil, keyInstance, id), 0)
		if id == "" {
			lower = []byte{keyInstance}
		}
		return scanRecords(from, lower, endOfKind(keyInstance), func(key, record []byte) (bool, error) {
			if more = len(headers) == limit || bytes >= buildStepBytes; more {
				return false, nil
			}
			bytes += len(record)
			in, err := parseStoredHeader(from, string(key[1:]), record)
			if in != nil {
				headers = append(headers, in)
			}
			return true, err
		})
	})
	return headers, more, err
}

// putIndexState puts the state of the index, the counts, and the instances that are added.
func (w *batchWriter) putIndexState(f *flush) {
	if f.indexState.isNew {
		for _, kind := range index.Kinds {
			w.setErr(w.batch.DeleteRange([]byte{kind}, endOfKind(kind)))
		}
		w.setErr(w.batch.DeleteRange([]byte{keyFacet, 0}, endOfKind(keyFacet)))
		f.indexState.isNew = false
	}
	w.set([]byte{keyFacet}, f.indexState.appendTo)
	for _, counted := range f.facets {
		w.set(counted.key(nil), counted.appendTo)
	}
	for i := range f.built {
		built := &f.built[i]
		w.key = idKey(w.key[:0], keyInstance, built.id)
		w.set(w.key, func(b []byte) []byte { return append(b, built.header...) })
		w.putEntries(built.id, nil, built.entries)
	}
}

// putEntries replaces entries of an instance in the index.
func (w *batchWriter) putEntries(id string, before, after *index.Entries) {
	if before != nil {
		before.EachAbsent(id, after, func(key []byte) { w.setErr(w.batch.Delete(key)) })
	}
	after.Each(id, before, func(key, value []byte) {
		w.set(key, func(b []byte) []byte { return append(b, value...) })
	})
}

// entryOverhead is what a key of the index takes in a batch besides its own bytes.
const entryOverhead = store.RecordOverhead + checksumSize

// entriesBytes returns the bytes that replaced entries take in a batch. Either may be nil.
func entriesBytes(id string, before, after *index.Entries) (n int) {
	if before != nil {
		before.EachAbsent(id, after, func(key []byte) { n += entryOverhead + len(key) })
	}
	if after != nil {
		after.Each(id, before, func(key, value []byte) { n += entryOverhead + len(key) + len(value) })
	}
	return n
}

// indexBytes returns an upper bound of the bytes that putIndexState takes in a batch.
func (f *flush) indexBytes() int {
	n := entryOverhead + 1 + len(f.indexState.appendTo(nil))
	if f.indexState.isNew {
		n += (1 + len(index.Kinds)) * recordOverhead
	}
	for _, counted := range f.facets {
		n += entryOverhead + len(counted.key(nil)) + len(counted.appendTo(nil))
	}
	for i := range f.built {
		built := &f.built[i]
		n += recordOverhead + len(built.id) + len(built.header) + entriesBytes(built.id, nil, built.entries)
	}
	return n
}
