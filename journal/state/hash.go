package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Hash returns the SHA-256 of all histories of an instance: for each execution its number and its
// event count, then each event preceded by its length. All integers are eight bytes, big-endian.
// Replicas that have applied the same records have the same hashes. It reads all events. The error
// wraps ErrNotFound if the instance is not known, or is a *StoreError.
func (re *reads) Hash(instance string) ([sha256.Size]byte, error) {
	h := sha256.New()
	latest, err := re.history(instance, 0)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	first, err := re.firstExecution(instance, &latest)
	if errors.Is(err, errDatabaseReplaced) {
		return re.Hash(instance)
	}
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	for number := first; number <= latest.tail.number; number++ {
		x := latest
		if number < latest.tail.number {
			if x, err = re.history(instance, number); err != nil {
				return [sha256.Size]byte{}, err
			}
		}
		writeUint64(h, number)
		writeUint64(h, x.last)
		for _, event := range x.eventsFrom(1, &err) {
			writeBytes(h, event)
		}
		if err != nil {
			return [sha256.Size]byte{}, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// firstExecution returns the number of the first execution in memory or in the store.
func (re *reads) firstExecution(instance string, latest *history) (first uint64, err error) {
	first = latest.tail.number
	re.mu.RLock()
	if in, inMemory := re.instances[instance]; inMemory && len(in.executions) > 0 {
		first = in.executions[0].number
	}
	re.mu.RUnlock()
	if re.store == nil || latest.instanceNumber == 0 {
		return first, nil
	}
	err = re.store.view("read a history", latest.dbNumber, func(r store.Reader) error {
		from, to := chunkKey{instanceNumber: latest.instanceNumber}, chunkKey{instanceNumber: latest.instanceNumber + 1}
		return scanRecords(r, from.appendTo(nil), to.appendTo(nil), func(key, _ []byte) (bool, error) {
			var at chunkKey
			err := at.parse(key)
			first = min(first, at.execution)
			return false, err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("instance %q: %w", instance, err)
	}
	return first, nil
}

// Digest returns the SHA-256 of the whole state at one moment. It covers, in this order:
//
//   - the epoch and the encoded PartitionMetadata
//   - each instance in order of IDs: its ID, the numbers of its latest execution and last event,
//     the hash of that event, which covers all its histories, the number of its attempts, and
//     the attempts
//   - each waiting chained start, in order of the instances to start
//
// IDs, attempts and chained starts are encoded as in a snapshot, preceded by their lengths.
// Replicas that have applied the same records have the same digest. Digest reads the index and no
// history; the hash chain of a history is verified when it is read. The digest is all zeros if the
// store cannot be read.
func (re *reads) Digest() [sha256.Size]byte {
	d := digester{hash: sha256.New()}
	err := re.digestInstances(&d)
	if err != nil {
		return [sha256.Size]byte{}
	}
	for _, target := range slices.Sorted(maps.Keys(d.chainedStarts)) {
		c := d.chainedStarts[target]
		writeBytes(d.hash, c.encode(nil))
	}
	return [sha256.Size]byte(d.hash.Sum(nil))
}

// digester computes a digest of the instances in memory and in the store.
type digester struct {
	hash          hash.Hash
	inMemory      []digestEntry
	purged        map[string]uint64
	chainedStarts map[string]chainedStart
}

// digestEntry is what a digest covers of an instance.
type digestEntry struct {
	id              string
	execution, last uint64
	chainHash       uint64
	attempts        []attempt
}

func newDigestEntry(in *instance) digestEntry {
	d := digestEntry{in.id, in.execution, in.last, in.chainHash, nil}
	if in.attempts != nil {
		d.attempts = in.sortedAttempts()
	}
	return d
}

// digestInstances captures a consistent view and digests its instances.
func (re *reads) digestInstances(d *digester) error {
	if re.store == nil {
		d.capture(re, func() {})
		d.writeInMemoryBelow(nil)
		return nil
	}
	return re.store.view("read everything", 0, func(from store.Reader) (err error) {
		var iter store.Iterator
		d.capture(re, func() {
			iter, err = from.NewIter([]byte{keyInstance}, endOfKind(keyInstance))
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		err = forEachRecord(iter, func(key, record []byte) (bool, error) { return true, d.addStored(string(key[1:]), record) })
		d.writeInMemoryBelow(nil)
		return err
	})
}

// capture copies the state in memory, and calls view under the same lock. Instances in memory
// override the store's versions, so the progress of a flush does not matter.
func (d *digester) capture(m *reads, view func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	view()
	writeUint64(d.hash, m.epoch)
	shared := m.metadata
	shared.ready = readyProtocol{} // see PartitionMetadata: replicas of two builds may differ in it
	writeBytes(d.hash, shared.encode())
	for _, in := range m.instances {
		d.inMemory = append(d.inMemory, newDigestEntry(in))
	}
	d.purged, d.chainedStarts = maps.Clone(m.purged), maps.Clone(m.chainedStarts)
	slices.SortFunc(d.inMemory, func(a, b digestEntry) int { return strings.Compare(a.id, b.id) })
}

// addStored digests the instances in memory that come before a stored one, then the stored one
// unless it is in memory or purged.
func (d *digester) addStored(id string, record []byte) error {
	d.writeInMemoryBelow(&id)
	if len(d.inMemory) > 0 && d.inMemory[0].id == id {
		return nil
	}
	if _, purged := d.purged[id]; purged {
		return nil
	}
	in, err := parseHeader(id, record)
	if err != nil {
		return err
	}
	x := newDigestEntry(in)
	d.write(&x)
	return nil
}

// writeInMemoryBelow digests the instances in memory that come before an ID, or all of them if
// it is nil.
func (d *digester) writeInMemoryBelow(id *string) {
	for len(d.inMemory) > 0 && (id == nil || d.inMemory[0].id < *id) {
		d.write(&d.inMemory[0])
		d.inMemory = d.inMemory[1:]
	}
}

func (d *digester) write(in *digestEntry) {
	writeBytes(d.hash, []byte(in.id))
	writeUint64(d.hash, in.execution)
	writeUint64(d.hash, in.last)
	writeUint64(d.hash, in.chainHash)
	writeUint64(d.hash, uint64(len(in.attempts)))
	for _, a := range in.attempts {
		writeBytes(d.hash, a.encoded)
	}
}

// writeBytes writes bytes preceded by their length.
func writeBytes(h hash.Hash, b []byte) {
	writeUint64(h, uint64(len(b)))
	h.Write(b)
}

func writeUint64(h hash.Hash, v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	h.Write(b[:])
}

// The hash chain of an instance covers all its events. The hash of an event is the XXH64 of its
// bytes, seeded with the hash before it. An execution begins with a hash that binds it to its
// instance, its number and everything before:
//
//	hash(begin of execution) = XXH64(number as 8 bytes big-endian, ID; seed: the last hash, 0 before the first)
//	hash(event)              = XXH64(encoded event; seed: the hash before)
//
// The last hash covers everything that the instance has ever recorded: two replicas with the same
// hash have the same events. It does not protect against an adversary who chooses the bytes.

// VerifyHistories recomputes the hash chain of an instance from all its events, and compares it
// with the recorded one. It returns how many executions and events it has read. The error wraps
// ErrCorrupt if they differ, ErrNotFound if the instance is not known, or is a *StoreError. The
// instance must not change meanwhile.
func VerifyHistories(m *Machine, id string) (executions, events uint64, err error) {
	latest, err := m.history(id, 0)
	if err != nil {
		return 0, 0, err
	}
	recorded := uint64(0)
	if _, err := m.lookup(id, func(in *instance) { recorded = in.chainHash }); err != nil {
		return 0, 0, err
	}
	first, err := m.firstExecution(id, &latest)
	if err != nil {
		return 0, 0, err
	}
	chainHash := uint64(0)
	for number := first; number <= latest.tail.number; number++ {
		x, err := m.history(id, number)
		if err != nil {
			return executions, events, err
		}
		chainHash = hashExecution(chainHash, id, number)
		for _, event := range x.eventsFrom(1, &err) {
			chainHash = hashEvents(chainHash, [][]byte{event})
			events++
		}
		if err != nil {
			return executions, events, err
		}
		executions++
	}
	if chainHash != recorded {
		return executions, events, fmt.Errorf("the hash chain of instance %q ends with %016x, recorded is %016x: %w", id, chainHash, recorded, ErrCorrupt)
	}
	return executions, events, nil
}

// hashExecution returns the hash that precedes the events of an execution.
func hashExecution(chainHash uint64, id string, execution uint64) uint64 {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], execution)
	var d xxhash.Digest
	d.ResetWithSeed(chainHash)
	_, _ = d.Write(number[:]) // a hash never fails
	_, _ = d.WriteString(id)
	return d.Sum64()
}

// hashEvents returns the hash of the last of some events.
func hashEvents(chainHash uint64, events [][]byte) uint64 {
	var d xxhash.Digest
	for _, event := range events {
		d.ResetWithSeed(chainHash)
		_, _ = d.Write(event)
		chainHash = d.Sum64()
	}
	return chainHash
}

// EncodedEvents yields the encoded events of an execution as they are stored, from one up to the
// last at the beginning of the iteration. They must not be changed. An error ends it, as in Events.
func (m *Machine) EncodedEvents(instance string, execution, from uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		h, err := m.history(instance, execution)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, encoded := range h.eventsFrom(from, &err) {
			if !yield(encoded, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// A View is the stored state of a machine right after one entry. One goroutine at a time may use
// it.
type View struct {
	Index uint64 // of that entry

	machine  *Machine
	mu       sync.Mutex // no read is in progress when it is closed
	snapshot store.Snapshot
	closed   bool
}

// Close frees what the view holds. It may be called more than once.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	return v.snapshot.Close()
}

func (v *View) view(op string, f func(store.Reader) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return &StoreError{Op: op, Err: store.ErrClosed}
	}
	return v.snapshot.View(op, f)
}

// A RangeDigest is the digest of the instances in a range of IDs.
type RangeDigest struct {
	// To is the end of the range, excluded; "" if it includes the last instance.
	To                       string
	Instances, Events, Bytes uint64
	// Digest is the SHA-256 of "tenuto range 1", 0x00, and the digest of each instance. A digest of
	// an instance is the SHA-256 of "tenuto instance 1", 0x00, the number of executions; for each
	// its number, its last event_id and its digest; the length and the bytes of the ID, and of the
	// header. The header is that of the store format without fields that are local to a replica.
	// Integers take eight bytes, big-endian.
	Digest [sha256.Size]byte
	Each   []InstanceDigest
}

// An InstanceDigest is the digest of one instance.
type InstanceDigest struct {
	ID     string
	Digest [sha256.Size]byte
	// History is the digest of its histories, up to an event of its latest execution: the SHA-256
	// of "tenuto history 1", 0x00, the length and the bytes of the ID, and what Digest has of
	// executions.
	History                [sha256.Size]byte
	Execution, LastEventID uint64
	// Damage says how the replica contradicts itself, from an event on; nil if it does not.
	Damage *Damage
}

// Damage is a contradiction in the stored state of an instance.
type Damage struct {
	Execution, EventID uint64 // EventID is 0 if only the header is wrong
	Reason             string
}

// An ExecutionDigest is the digest of the history of an execution.
type ExecutionDigest struct {
	Number, LastEventID uint64
	Digest              [sha256.Size]byte
}

// Compare returns the digest of the instances from an ID on up to another, which is excluded; ""
// means up to the last. It ends earlier after some instances or bytes, if these are not 0, but not
// before the first instance. It reads the histories, verifies them, and derives the headers from
// them. With each, the result has all instances, otherwise those that are damaged. The error is a
// *StoreError.
func (v *View) Compare(from, to string, instancesMax int, bytesMax uint64, each bool) (*RangeDigest, error) {
	result := &RangeDigest{To: to}
	hash := sha256.New()
	hash.Write([]byte("tenuto range 1\x00"))
	end := endOfKind(keyInstance)
	if to != "" {
		end = idKey(nil, keyInstance, to)
	}
	err := v.view("compare replicas", func(r store.Reader) (err error) {
		iter, err := r.NewIter(idKey(nil, keyInstance, from), end)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		for ok := iter.First(); ok; ok = iter.Next() {
			id := string(iter.Key()[1:])
			if instancesMax > 0 && result.Instances >= uint64(instancesMax) || bytesMax > 0 && result.Instances > 0 && result.Bytes >= bytesMax {
				result.To = id
				break
			}
			value, err := iter.ValueAndErr()
			if err != nil {
				return err
			}
			c := instanceReader{from: r, id: id}
			digest, err := c.read(value)
			if err != nil {
				return err
			}
			hash.Write(digest[:])
			result.Instances++
			result.Events += c.events
			result.Bytes += c.bytes + uint64(len(value))
			if each || c.damage != nil {
				of := InstanceDigest{ID: id, Digest: digest, Damage: c.damage, History: c.historyDigest()}
				if n := len(c.executions); n > 0 {
					of.Execution, of.LastEventID = c.executions[n-1].Number, c.executions[n-1].LastEventID
				}
				result.Each = append(result.Each, of)
			}
		}
		return iter.Error()
	})
	hash.Sum(result.Digest[:0])
	return result, err
}

// Executions returns the digest of each execution of an instance, none if the instance does not
// exist, and how it is damaged. The error is a *StoreError.
func (v *View) Executions(id string) (executions []ExecutionDigest, damage *Damage, err error) {
	err = v.read(id, func(c *instanceReader) { executions, damage = c.executions, c.damage }, nil)
	return executions, damage, err
}

// EventHashes returns the hash of each event of an execution, from one on, at most limit. The hash
// of an event covers it and all events before it in the execution. The error is a *StoreError.
func (v *View) EventHashes(id string, execution, from uint64, limit int) (hashes []uint64, err error) {
	chain := uint64(0)
	err = v.read(id, func(*instanceReader) {}, func(number, event uint64, encoded []byte) {
		if number != execution {
			return
		}
		if event == 1 {
			chain = 0
		}
		if chain = hashEvents(chain, [][]byte{encoded}); event >= from && len(hashes) < limit {
			hashes = append(hashes, chain)
		}
	})
	return hashes, err
}

// Export returns the encoded InstanceSnapshot of an instance, nil if it does not exist. The error
// is a *StoreError, or wraps ErrCorrupt if the instance is damaged.
func (v *View) Export(id string) (encoded []byte, err error) {
	captured := capturedInstance{id: id}
	var damage *Damage
	var header *instance
	err = v.read(id, func(c *instanceReader) { header, damage = c.in, c.damage }, func(number, event uint64, encoded []byte) {
		if event == 1 {
			captured.executions = append(captured.executions, execution{number: number, first: 1})
		}
		if last := len(captured.executions) - 1; last >= 0 {
			captured.executions[last].events = append(captured.executions[last].events, encoded)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case damage != nil:
		return nil, fmt.Errorf("instance %q: %s: %w", id, damage.Reason, ErrCorrupt)
	case header == nil:
		return nil, nil
	}
	e := instanceEncoder{capturedInstance: &captured, condition: header.condition}
	if header.attempts != nil {
		e.attempts = header.sortedAttempts()
	}
	return e.encode(make([]byte, 0, e.size())), nil
}

// read reads an instance and calls found, unless it does not exist.
func (v *View) read(id string, found func(*instanceReader), onEvent func(execution, event uint64, encoded []byte)) error {
	return v.view("read an instance", func(from store.Reader) error {
		value, err := from.Get(idKey(nil, keyInstance, id))
		if value == nil || err != nil {
			return err
		}
		c := instanceReader{from: from, id: id, onEvent: onEvent}
		if _, err := c.read(value); err != nil {
			return err
		}
		found(&c)
		return nil
	})
}

// instanceReader reads and verifies all that a store has of an instance. A contradiction is damage,
// and no error: it does not fail the store.
type instanceReader struct {
	from    store.Reader
	id      string
	onEvent func(execution, event uint64, encoded []byte)

	in            *instance // as its header says; nil if that is damaged
	derived       *instance // as its events say
	executions    []ExecutionDigest
	events, bytes uint64
	damage        *Damage

	chain   uint64
	current hash.Hash // of the last execution
}

func (c *instanceReader) fail(execution, event uint64, format string, args ...any) {
	if c.damage == nil {
		c.damage = &Damage{execution, event, fmt.Sprintf(format, args...)}
	}
}

// read returns the digest of the instance with a stored header.
func (c *instanceReader) read(header []byte) (digest [sha256.Size]byte, err error) {
	key := idKey(nil, keyInstance, c.id)
	record, err := verifyValue(key, header)
	if err == nil {
		c.in, err = parseHeader(c.id, bytes.Clone(record))
	}
	if err != nil {
		c.fail(0, 0, "the header does not match its checksum, or does not decode")
		return sha256.Sum256(header), nil
	}
	if err := c.readHistory(); err != nil {
		return digest, err
	}
	c.endExecution()
	c.checkHeader()
	h := sha256.New()
	h.Write([]byte("tenuto instance 1\x00"))
	c.writeExecutions(h)
	writeBytes(h, []byte(c.id))
	writeBytes(h, comparableHeader(c.in))
	h.Sum(digest[:0])
	return digest, nil
}

func (c *instanceReader) writeExecutions(h hash.Hash) {
	writeUint64(h, uint64(len(c.executions)))
	for i := range c.executions {
		x := &c.executions[i]
		writeUint64(h, x.Number)
		writeUint64(h, x.LastEventID)
		h.Write(x.Digest[:])
	}
}

// historyDigest returns the digest of the histories; see package cluster/proof.
func (c *instanceReader) historyDigest() (digest [sha256.Size]byte) {
	h := sha256.New()
	h.Write([]byte("tenuto history 1\x00"))
	writeBytes(h, []byte(c.id))
	c.writeExecutions(h)
	h.Sum(digest[:0])
	return digest
}

// readHistory reads all events of the instance, up to a chunk that is damaged.
func (c *instanceReader) readHistory() (err error) {
	c.derived = newInstance(c.id)
	number := c.in.instanceNumber
	iter, err := c.from.NewIter(chunkKey{instanceNumber: number}.appendTo(nil), chunkKey{instanceNumber: number + 1}.appendTo(nil))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, iter.Close()) }()
	for ok := iter.First(); ok && c.damage == nil; ok = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		c.bytes += uint64(len(value))
		c.addChunk(iter.Key(), value)
	}
	return iter.Error()
}

// addChunk verifies a chunk and adds its events.
func (c *instanceReader) addChunk(key, value []byte) {
	var at chunkKey
	if err := at.parse(key); err != nil {
		c.fail(0, 0, "a key of the history does not decode")
		return
	}
	number, last := uint64(0), uint64(0)
	if n := len(c.executions); n > 0 {
		number, last = c.executions[n-1].Number, c.executions[n-1].LastEventID
	}
	record, err := verifyValue(key, value)
	var stored chunk
	if err == nil {
		err = stored.parse(bytes.Clone(record))
	}
	switch {
	case err != nil:
		c.fail(at.execution, at.first, "events do not match their checksum, from event %d on", at.first)
	case at.first == 1 && at.execution == number+1:
		c.endExecution()
		c.executions = append(c.executions, ExecutionDigest{Number: at.execution})
		c.current = executionHash(c.id, at.execution)
		c.chain = hashExecution(c.chain, c.id, at.execution)
	case at.execution != number:
		c.fail(number+1, 1, "execution %d begins with event %d, after execution %d", at.execution, at.first, number)
	case at.first != last+1:
		c.fail(number, last+1, "event %d follows event %d", at.first, last)
	}
	if c.damage == nil && stored.hashBefore != c.chain {
		c.fail(at.execution, at.first, "the hash chain is broken before event %d", at.first)
	}
	if c.damage != nil {
		return
	}
	c.chain = stored.hashAfter
	for i, encoded := range stored.events {
		c.addEvent(at.execution, at.first+uint64(i), encoded)
	}
}

func (c *instanceReader) addEvent(execution, event uint64, encoded []byte) {
	c.executions[len(c.executions)-1].LastEventID = event
	c.events++
	writeBytes(c.current, encoded)
	if c.onEvent != nil {
		c.onEvent(execution, event, encoded)
	}
	if c.damage != nil {
		return
	}
	if reason := c.derived.fold(execution, event, encoded); reason != "" {
		c.fail(execution, event, "event %d breaks a rule: %s", event, reason)
		return
	}
	if n := len(c.derived.open); n > 0 && c.derived.open[n-1].id == event && c.derived.open[n-1].needsName() {
		c.derived.open[n-1].name = scheduledName(encoded)
	}
}

// executionHash returns the hash of an execution without events; see package cluster/proof.
func executionHash(id string, number uint64) hash.Hash {
	h := sha256.New()
	h.Write([]byte("tenuto execution 1\x00"))
	writeBytes(h, []byte(id))
	writeUint64(h, number)
	return h
}

// endExecution completes the digest of the last execution.
func (c *instanceReader) endExecution() {
	if n := len(c.executions); n > 0 {
		writeUint64(c.current, c.executions[n-1].LastEventID)
		c.current.Sum(c.executions[n-1].Digest[:0])
	}
}

// checkHeader compares the header with what follows from the events.
func (c *instanceReader) checkHeader() {
	in, last := c.in, ExecutionDigest{}
	if n := len(c.executions); n > 0 {
		last = c.executions[n-1]
	}
	switch {
	case c.damage != nil:
		return
	case last.Number != in.execution || last.LastEventID < in.last:
		c.fail(max(last.Number, 1), last.LastEventID+1, "event %d of execution %d is missing", last.LastEventID+1, max(last.Number, 1))
	case last.LastEventID > in.last || c.chain != in.chainHash:
		c.fail(in.execution, in.last+1, "the header has another last event than the history")
	case in.indexedIn == 0: // of an older build, which lacks fields
		if err := in.completeHeader(c.from); err != nil {
			c.fail(in.execution, 0, "the header cannot be completed")
		}
	}
	c.derived.attempts, c.derived.condition, c.derived.chainHash = in.attempts, in.condition, in.chainHash
	if c.damage == nil && !bytes.Equal(comparableHeader(in), comparableHeader(c.derived)) {
		c.fail(in.execution, 0, "the header does not follow from the events")
	}
}

// comparableHeader returns the header without fields that are local to a replica, the same for
// equal instances on all of them.
func comparableHeader(in *instance) []byte {
	type field struct {
		number protowire.Number
		bytes  []byte
	}
	var fields []field
	for b := in.appendHeader(nil); len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			break // impossible: appendHeader wrote it
		}
		if number != fieldHeaderNumber && number != fieldHeaderChunks && number != fieldHeaderIndexed {
			fields = append(fields, field{number, b[:n]})
		}
		b = b[n:]
	}
	slices.SortStableFunc(fields, func(a, b field) int {
		if a.number == b.number && a.number != fieldHeaderOperation {
			return bytes.Compare(a.bytes, b.bytes) // of a map
		}
		return cmp.Compare(a.number, b.number)
	})
	var header []byte
	for _, f := range fields {
		header = append(header, f.bytes...)
	}
	return header
}
