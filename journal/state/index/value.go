package index

import "encoding/binary"

// The value of an entry says what the key lacks, so that most instances that a query does not
// select need not be read.

// Format numbers the formats of keys and values. An index in another format is built anew. A new
// format needs a new field in the meta record of package state: see fieldStoreIndexed there.
const Format = 2

// waitBits says what an instance waits for, a bit for each kind, and whether an activity is
// failing.
type waitBits uint8

const isFailing waitBits = 1

func waitsFor(k Kind) waitBits { return 1 << k }

// waits returns the bits that every instance has that the query selects.
func (q *Query) waits() (bits waitBits) {
	if q.Waiting != nil && q.Waiting.Kind != 0 {
		bits |= waitsFor(q.Waiting.Kind)
	}
	if q.Failing != nil {
		bits |= waitsFor(Activity) | isFailing
	}
	if q.RequiresTimer() {
		bits |= waitsFor(Timer)
	}
	return bits
}

const valueBytesMax = 2*binary.MaxVarintLen64 + 1

// appendValue appends the value of an entry. What changes while an entry stays is in the list of
// all instances, and in a list by rank: other entries are not written again for it.
func (e *Entries) appendValue(b []byte, t Term, o Order) []byte {
	if o != ByCreated && o != ByUpdated {
		b = binary.AppendVarint(b, e.Created)
	}
	isComplete := t == "" || o == ByUpdated
	if isComplete || e.Ended && o != byRank {
		b = binary.AppendVarint(b, e.Updated-e.Created)
	}
	if isComplete || o == byRank {
		b = append(b, byte(e.waits))
	}
	return b
}

// facts is what an entry says of an instance.
type facts struct {
	created, changed                 int64
	waits                            waitBits
	hasCreated, hasChanged, hasWaits bool
}

// factsOf returns what an entry in an order says.
func factsOf(o Order, rank int64, value []byte) (f facts) {
	next := func() (v int64, ok bool) {
		v, n := binary.Varint(value)
		if n <= 0 {
			return 0, false
		}
		value = value[n:]
		return v, true
	}
	switch o {
	case ByCreated:
		f.created, f.hasCreated = rank, true
	case ByUpdated:
		f.changed, f.hasChanged = rank, true
	default:
		f.created, f.hasCreated = next()
	}
	if o != byRank {
		if age, ok := next(); ok && o == ByUpdated {
			f.created, f.hasCreated = rank-age, true
		} else if ok {
			f.changed, f.hasChanged = f.created+age, true
		}
	}
	if len(value) == 1 {
		f.waits, f.hasWaits = waitBits(value[0]), true
	}
	return f
}

// mayMatch reports whether the query can select an instance.
func (q *Query) mayMatch(f *facts) bool {
	return (!f.hasCreated || q.Created.Contains(f.created)) &&
		(!f.hasChanged || q.Updated.Contains(f.changed) && q.Ended.Contains(f.changed)) &&
		(!f.hasWaits || f.waits&q.waits() == q.waits())
}

// place returns the place of an instance with an ID; false if an entry in an order does not say it.
func (q *Query) place(o Order, rank int64, f *facts, id string) (at Cursor, ok bool) {
	switch q.Order {
	case ByID:
		return Cursor{ID: id}, true
	case ByCreated:
		return Cursor{f.created, id}, f.hasCreated
	case ByUpdated, ByEnded:
		return Cursor{f.changed, id}, f.hasChanged
	}
	return Cursor{rank, id}, o == ByNextTimer
}
