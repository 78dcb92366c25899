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

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// Hash returns the SHA-256 of all histories of an instance: for each execution
// its number and the count of its events, then each event with its length in
// front, all integers as eight bytes, big-endian. Two replicas that have applied
// the same records have the same hashes. It reads everything. The error wraps
// ErrNotFound if the instance is not known, or is a *StoreError.
func (m *Machine) Hash(instance string) ([sha256.Size]byte, error) {
	h := sha256.New()
	latest, err := m.history(instance, 0)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	first, err := m.firstExecution(instance, &latest)
	if errors.Is(err, errReplaced) {
		return m.Hash(instance)
	}
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	for number := first; number <= latest.tail.number; number++ {
		x := latest
		if number < latest.tail.number {
			if x, err = m.history(instance, number); err != nil {
				return [sha256.Size]byte{}, err
			}
		}
		writeUint64(h, number)
		writeUint64(h, x.last)
		for _, event := range x.from(1, &err) {
			writeBytes(h, event)
		}
		if err != nil {
			return [sha256.Size]byte{}, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// firstExecution returns the number of the first execution that there is.
func (m *Machine) firstExecution(instance string, latest *history) (first uint64, err error) {
	first = latest.tail.number
	m.mu.RLock()
	if in, hot := m.instances[instance]; hot && len(in.executions) > 0 {
		first = in.executions[0].number
	}
	m.mu.RUnlock()
	if m.store == nil || latest.number == 0 {
		return first, nil
	}
	err = m.store.view("read a history", latest.home, func(r store.Reader) error {
		from, to := place{number: latest.number}, place{number: latest.number + 1}
		return scan(r, from.key(nil), to.key(nil), func(key, _ []byte) (bool, error) {
			var at place
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

// Digest returns the SHA-256 of the whole state at one moment: the epoch; what
// is kept of the group, encoded; then
// each instance in order of their IDs, its ID, the numbers of its latest
// execution and of its last event, the link of that event, which stands for all
// of its histories, the count of its attempts and each of these; then each
// chained start that waits, in order of the instances. IDs, attempts and chained
// starts are as in a snapshot, with the length in front. Two replicas that have
// applied the same records have the same digest. It reads the index and no
// history: the chain of a history is verified when that is read. It is all zeros
// if the store cannot be read.
func (m *Machine) Digest() [sha256.Size]byte {
	d := digester{hash: sha256.New()}
	err := m.atOneMoment(&d)
	if err != nil {
		return [sha256.Size]byte{}
	}
	for _, target := range slices.Sorted(maps.Keys(d.chained)) {
		c := d.chained[target]
		writeBytes(d.hash, c.encode(nil))
	}
	return [sha256.Size]byte(d.hash.Sum(nil))
}

// digester computes a digest of the instances in memory and those in the store.
type digester struct {
	hash    hash.Hash
	hot     []digested
	gone    map[string]uint64
	chained map[string]chainedStart
}

// digested is what a digest takes of an instance.
type digested struct {
	id              string
	execution, last uint64
	chain           uint64
	attempts        []attempt
}

func digestedOf(in *instance) digested {
	d := digested{in.id, in.execution, in.last, in.chain, nil}
	if in.attempts != nil {
		d.attempts = in.sortedAttempts()
	}
	return d
}

// atOneMoment takes a view of everything and digests the instances in it.
func (m *Machine) atOneMoment(d *digester) error {
	if m.store == nil {
		d.take(m, func() {})
		d.below(nil)
		return nil
	}
	return m.store.view("read everything", 0, func(from store.Reader) (err error) {
		var iter store.Iterator
		d.take(m, func() {
			iter, err = from.NewIter([]byte{keyInstance}, afterAll(keyInstance))
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, iter.Close()) }()
		err = eachKey(iter, func(key, record []byte) (bool, error) { return true, d.cold(string(key[1:]), record) })
		d.below(nil)
		return err
	})
}

// take notes what is in memory, and calls view while nothing changes there. What
// the store has of those in memory counts for nothing, so it does not matter how
// far a flush has come.
func (d *digester) take(m *Machine, view func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	view()
	writeUint64(d.hash, m.epoch)
	writeBytes(d.hash, m.group.encode())
	for _, in := range m.instances {
		d.hot = append(d.hot, digestedOf(in))
	}
	d.gone, d.chained = maps.Clone(m.gone), maps.Clone(m.chained)
	slices.SortFunc(d.hot, func(a, b digested) int { return strings.Compare(a.id, b.id) })
}

// cold digests an instance that the store has, unless it is in memory or gone,
// and those in memory before it.
func (d *digester) cold(id string, record []byte) error {
	d.below(&id)
	if len(d.hot) > 0 && d.hot[0].id == id {
		return nil
	}
	if _, gone := d.gone[id]; gone {
		return nil
	}
	in, err := parseHeader(id, record)
	if err != nil {
		return err
	}
	x := digestedOf(in)
	d.write(&x)
	return nil
}

// below digests those in memory that come before an ID, all of them for nil.
func (d *digester) below(id *string) {
	for len(d.hot) > 0 && (id == nil || d.hot[0].id < *id) {
		d.write(&d.hot[0])
		d.hot = d.hot[1:]
	}
}

func (d *digester) write(in *digested) {
	writeBytes(d.hash, []byte(in.id))
	writeUint64(d.hash, in.execution)
	writeUint64(d.hash, in.last)
	writeUint64(d.hash, in.chain)
	writeUint64(d.hash, uint64(len(in.attempts)))
	for _, a := range in.attempts {
		writeBytes(d.hash, a.encoded)
	}
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
