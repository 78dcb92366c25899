package state

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
)

// Hash returns the SHA-256 of all histories of an instance: for each execution
// its number and the count of its events, then each event with its length in
// front, all integers as eight bytes, big-endian. Two replicas that have applied
// the same records have the same hashes. The error wraps ErrNotFound if the
// instance is not known.
func (m *Machine) Hash(instance string) ([sha256.Size]byte, error) {
	histories, ok := m.histories(instance)
	if !ok {
		return [sha256.Size]byte{}, fmt.Errorf("instance %q: %w", instance, ErrNotFound)
	}
	return hashOf(histories), nil
}

func hashOf(histories []execution) [sha256.Size]byte {
	h := sha256.New()
	for _, x := range histories {
		writeUint64(h, x.number)
		writeUint64(h, uint64(len(x.events)))
		for _, event := range x.events {
			writeBytes(h, event)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// Digest returns the SHA-256 of the whole state at one moment: the epoch; then
// each instance in order of their IDs, its ID, its Hash, the count of its
// attempts and each of these; then each chained start that waits, in order of
// the instances. IDs, attempts and chained starts are as in a snapshot, with
// the length in front.
func (m *Machine) Digest() [sha256.Size]byte {
	snapshot := m.Snapshot()
	instances, chained := snapshot.sorted()
	h := sha256.New()
	writeUint64(h, snapshot.epoch)
	for i := range instances {
		in := &instances[i]
		writeBytes(h, []byte(in.id))
		sum := hashOf(in.executions)
		h.Write(sum[:])
		attempts := snapshot.attempts[in.id]
		writeUint64(h, uint64(len(attempts)))
		for _, a := range attempts {
			writeBytes(h, a.encoded)
		}
	}
	for i := range chained {
		writeBytes(h, chained[i].encode(nil))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// histories returns the executions of an instance as they are now.
func (m *Machine) histories(instance string) ([]execution, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	in, ok := m.instances[instance]
	if !ok {
		return nil, false
	}
	return append([]execution(nil), in.executions...), true
}

// writeBytes writes bytes with their length in front.
func writeBytes(h hash.Hash, b []byte) {
	writeUint64(h, uint64(len(b)))
	h.Write(b)
}

func writeUint64(h hash.Hash, v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	h.Write(b[:])
}
