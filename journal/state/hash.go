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
	h := sha256.New()
	for _, x := range histories {
		writeUint64(h, x.number)
		writeUint64(h, uint64(len(x.events)))
		for _, event := range x.events {
			writeUint64(h, uint64(len(event)))
			h.Write(event)
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// Digest returns the SHA-256 of the whole state at one moment: the epoch, then
// each instance in order of their IDs, its ID with the length in front and its
// Hash.
func (m *Machine) Digest() [sha256.Size]byte {
	view := New()
	snapshot := m.Snapshot()
	for _, in := range snapshot.instances {
		view.instances[in.id] = &instance{id: in.id, executions: in.executions}
	}
	h := sha256.New()
	writeUint64(h, snapshot.epoch)
	for _, id := range view.sortedIDs(view.instances) {
		writeUint64(h, uint64(len(id)))
		h.Write([]byte(id))
		sum, _ := view.Hash(id) // it is there
		h.Write(sum[:])
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

func writeUint64(h hash.Hash, v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	h.Write(b[:])
}
