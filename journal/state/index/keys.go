package index

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"
)

// A Facet is what rows are counted by at all times.
type Facet struct {
	State         State
	Name, Version string
}

// SelectsFacet reports whether the query can select a row with a facet.
func (q *Query) SelectsFacet(f Facet) bool {
	mustRun := q.Waiting != nil || q.Failing != nil || q.RequiresTimer()
	mustEnd := q.requires(ByEnded) || q.Ended.IsSet()
	return (len(q.States) == 0 || slices.Contains(q.States, f.State)) &&
		(q.Name == "" || q.Name == f.Name) && (q.Version == "" || q.Version == f.Version) &&
		(!mustRun || !f.State.IsEnded()) && (!mustEnd || f.State.IsEnded()) &&
		(q.ErrorCode == "" || f.State == Failed)
}

// A Term names a list of instances that have something in common. It is encoded so that no Term
// begins with another. The empty Term is the list of all instances.
type Term string

// The first byte of a Term is its field.
const (
	termTag         = 't'
	termAttribute   = 'a'
	termParent      = 'p'
	termError       = 'e'
	termWaiting     = 'k' // by kind
	termWaitingName = 'w' // by kind and name
	termFailing     = 'f'
	termFailingCode = 'c'
)

// textBytesMax bounds the texts in a Term. Longer ones are replaced by their hash: whatever a list
// holds is compared with the query.
const textBytesMax = 64

func newTerm(field byte, texts ...string) Term {
	b := []byte{field}
	for _, text := range texts {
		if len(text) > textBytesMax {
			sum := sha256.Sum256([]byte(text))
			text = string(sum[:])
		}
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return Term(b)
}

// byRank sorts the list of a wait by when its operation was scheduled, and that of failing
// activities by the number of failed attempts.
const byRank = ByNextTimer + 1

// orders returns the orders in which a list is stored.
func (t Term) orders() []Order {
	switch {
	case t == "", t[0] == termTag, t[0] == termAttribute, t[0] == termError:
		return fullOrders
	case t[0] == termParent:
		return idOrder
	}
	return rankedOrders
}

var (
	fullOrders   = []Order{ByID, ByCreated, ByUpdated}
	idOrder      = []Order{ByID}
	rankedOrders = []Order{ByID, byRank}
)

// hasOrder reports whether a list is stored in an order.
func (t Term) hasOrder(o Order) bool {
	return t == "" && o == ByNextTimer || slices.Contains(t.orders(), o.stored())
}

// stored returns the order in which what o needs is stored.
func (o Order) stored() Order {
	if o == ByEnded {
		return ByUpdated
	}
	return o
}

// The kinds of the keys, which are their first bytes. They follow each other, so that an iterator
// over the index reads nothing else.
const (
	KindByID      = 'o'
	KindByCreated = 'p'
	KindByUpdated = 'q'
	KindByTimer   = 'r'
	KindList      = 's'
)

// Kinds holds the kinds of all keys of the index.
var Kinds = []byte{KindByID, KindByCreated, KindByUpdated, KindByTimer, KindList}

var kindOf = [...]byte{ByID: KindByID, ByCreated: KindByCreated, ByUpdated: KindByUpdated, ByEnded: KindByUpdated, ByNextTimer: KindByTimer}

// appendPrefix appends what precedes the facet in the keys of a list in an order.
func appendPrefix(b []byte, t Term, o Order) []byte {
	if t == "" {
		return append(b, kindOf[o])
	}
	b = append(b, KindList)
	b = append(b, t...)
	return append(b, byte(o.stored()))
}

const facetBytes = 4

// signBit is inverted so that signed integers sort as unsigned ones.
const signBit = 1 << 63

// appendSuffix appends the rest of a key.
func appendSuffix(b []byte, o Order, facet uint32, rank int64, id string) []byte {
	b = binary.BigEndian.AppendUint32(b, facet)
	if o != ByID {
		b = binary.BigEndian.AppendUint64(b, uint64(rank)^signBit)
	}
	return append(b, id...)
}

// splitSuffix returns the time or number and the ID in the rest of a key; false if it is malformed.
func splitSuffix(suffix []byte, o Order) (rank int64, id []byte, ok bool) {
	if len(suffix) < facetBytes {
		return 0, nil, false
	}
	suffix = suffix[facetBytes:]
	if o == ByID {
		return 0, suffix, true
	}
	if len(suffix) < 8 {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(suffix) ^ signBit), suffix[8:], true
}

// parseSuffix returns the place in the rest of a key after the facet; false if it is malformed.
func parseSuffix(suffix []byte, o Order) (at Cursor, ok bool) {
	rank, id, ok := splitSuffix(suffix, o)
	return Cursor{rank, string(id)}, ok
}

// A ListEntry puts an instance into a list.
type ListEntry struct {
	Term Term
	Rank int64 // see byRank
}

func (e ListEntry) compare(other ListEntry) int {
	return cmp.Or(cmp.Compare(e.Term, other.Term), cmp.Compare(e.Rank, other.Rank))
}

// Entries are the entries of one instance in all lists.
type Entries struct {
	Facet            uint32 // the number of its facet
	Created, Updated int64
	Timer            int64 // of the next timer, if HasTimer
	HasTimer         bool
	Ended            bool
	waits            waitBits
	Lists            []ListEntry // sorted, each once
}

// EntriesOf returns the entries of a row.
func EntriesOf(r *Row, facet uint32) *Entries {
	e := &Entries{Facet: facet, Created: r.Created, Updated: r.Updated, Ended: r.State.IsEnded()}
	e.Timer, e.HasTimer = r.NextTimer()
	add := func(rank int64, field byte, texts ...string) {
		e.Lists = append(e.Lists, ListEntry{newTerm(field, texts...), rank})
	}
	for key, value := range r.Tags {
		add(0, termTag, key, value)
	}
	for name, text := range r.Attributes {
		add(0, termAttribute, name, text)
	}
	if r.ParentID != "" {
		add(0, termParent, r.ParentID)
	}
	if r.ErrorCode != "" {
		add(0, termError, r.ErrorCode)
	}
	for i := range r.Waits {
		w := &r.Waits[i]
		kind := string([]byte{byte(w.Kind)})
		e.waits |= waitsFor(w.Kind)
		add(w.Since, termWaiting, kind)
		if w.Name != "" {
			add(w.Since, termWaitingName, kind, w.Name)
		}
		if w.Kind == Activity && w.Failed > 0 {
			e.waits |= isFailing
			add(int64(w.Failed), termFailing)
			if w.ErrorCode != "" {
				add(int64(w.Failed), termFailingCode, w.ErrorCode)
			}
		}
	}
	slices.SortFunc(e.Lists, ListEntry.compare)
	e.Lists = slices.Compact(e.Lists)
	return e
}

// Each visits the entries of an instance that are not among others, which may be nil, or have
// another value there. Key and value are valid only during the call.
func (e *Entries) Each(id string, others *Entries, visit func(key, value []byte)) {
	var buffer [160 + 2*valueBytesMax]byte // one allocation
	values, key := buffer[:2*valueBytesMax], buffer[2*valueBytesMax:]
	e.each(func(t Term, o Order, rank int64) {
		v := e.appendValue(values[:0:valueBytesMax], t, o)
		if others == nil || !others.hasKey(e.Facet, t, o, rank) || !bytes.Equal(v, others.appendValue(values[valueBytesMax:valueBytesMax], t, o)) {
			visit(appendSuffix(appendPrefix(key[:0], t, o), o, e.Facet, rank, id), v)
		}
	})
}

// EachAbsent visits the keys of an instance that others lack. A key is valid only during the call.
func (e *Entries) EachAbsent(id string, others *Entries, visit func(key []byte)) {
	var buffer [160]byte
	e.each(func(t Term, o Order, rank int64) {
		if others == nil || !others.hasKey(e.Facet, t, o, rank) {
			visit(appendSuffix(appendPrefix(buffer[:0], t, o), o, e.Facet, rank, id))
		}
	})
}

// each visits the list, order and rank of each entry.
func (e *Entries) each(visit func(t Term, o Order, rank int64)) {
	for _, o := range fullOrders {
		visit("", o, e.rank(o, 0))
	}
	if e.HasTimer {
		visit("", ByNextTimer, e.Timer)
	}
	for i, l := range e.Lists {
		for _, o := range l.Term.orders() {
			if o == byRank || i == 0 || e.Lists[i-1].Term != l.Term {
				visit(l.Term, o, e.rank(o, l.Rank))
			}
		}
	}
}

// rank returns the time by which an entry is sorted in a stored order.
func (e *Entries) rank(o Order, own int64) int64 {
	switch o {
	case ByCreated:
		return e.Created
	case ByUpdated:
		return e.Updated
	case ByNextTimer:
		return e.Timer
	case byRank:
		return own
	}
	return 0
}

// hasKey reports whether the entries have a key in a list in a stored order.
func (e *Entries) hasKey(facet uint32, t Term, o Order, rank int64) bool {
	if facet != e.Facet || o != byRank && rank != e.rank(o, 0) {
		return false
	}
	if t == "" {
		return o != ByNextTimer || e.HasTimer
	}
	from := ListEntry{t, rank}
	if o != byRank {
		i := sort.Search(len(e.Lists), func(i int) bool { return e.Lists[i].Term >= t })
		return i < len(e.Lists) && e.Lists[i].Term == t
	}
	_, ok := slices.BinarySearchFunc(e.Lists, from, ListEntry.compare)
	return ok
}

// bounds returns the suffixes in a facet that have a rank in an interval or an ID with a prefix:
// from lower up to but excluding upper.
func bounds(o Order, facet uint32, in Interval, idPrefix string) (lower, upper []byte) {
	lower = binary.BigEndian.AppendUint32(nil, facet)
	upper = binary.BigEndian.AppendUint32(nil, facet+1)
	if o == ByID {
		lower = append(lower, idPrefix...)
		if end := prefixEnd(lower); idPrefix != "" && end != nil {
			upper = end
		}
		return lower, upper
	}
	if in.Before != 0 {
		upper = appendSuffix(nil, o, facet, in.Before, "")
	}
	if in.From != 0 {
		lower = appendSuffix(nil, o, facet, in.From, "")
	}
	return lower, upper
}

// prefixEnd returns the first key after all keys with a prefix; nil if there is none.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
