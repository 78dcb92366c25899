package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

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
	writeBytes(d.hash, m.metadata.encode())
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

// VerifyHistories recomputes the hash chain of an instance from all its events, and compares it with
// the recorded one. It returns how many executions and events it has read. The error wraps ErrCorrupt
// if they differ, ErrNotFound if the instance is not known, or is a *StoreError. The instance must not
// change meanwhile.
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
