package index

import (
	"encoding/binary"
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// Unwritten is an instance that is in no list yet, with what most queries compare first. There may
// be a hundred thousand: reading each of them would take most of the time of a page.
type Unwritten[T any] struct {
	Instance T
	id       [2]uint64 // the first bytes of its ID
	created  int64
	ended    int64     // 0 while it runs
	terms    signature // of its tags and its parent, and of its attributes if it has ended
	movedAt  uint64    // see SetMoved; accessed atomically
}

// NewUnwritten returns an instance that runs.
func NewUnwritten[T any](instance T, id string, created int64) Unwritten[T] {
	return Unwritten[T]{Instance: instance, id: idPrefixOf(id), created: created}
}

// AddTag adds a tag.
func (u *Unwritten[T]) AddTag(key, value string) { u.terms |= signatureOf(termTag, key, value) }

// AddParent adds the parent.
func (u *Unwritten[T]) AddParent(id string) { u.terms |= signatureOf(termParent, id, "") }

// AddAttribute adds an attribute of an instance that has ended. While it runs, its attributes
// change.
func (u *Unwritten[T]) AddAttribute(name, text string) {
	u.terms |= signatureOf(termAttribute, name, text)
}

// SetMoved records that the instance is in another list since a move, which counts from 1. It may
// be called while filters examine u.
func (u *Unwritten[T]) SetMoved(at uint64) { atomic.StoreUint64(&u.movedAt, at) }

// SetEnded records when it has ended.
func (u *Unwritten[T]) SetEnded(at int64) { u.ended = at }

// signature has two bits for each of some terms, so most instances without a term lack a bit of it.
type signature uint64

var signatureSeed = maphash.MakeSeed()

func signatureOf(field byte, a, b string) signature {
	var h maphash.Hash
	h.SetSeed(signatureSeed)
	_ = h.WriteByte(field) // never fails
	_, _ = h.WriteString(a)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(b)
	sum := h.Sum64()
	return 1<<(sum&63) | 1<<(sum>>6&63)
}

// idPrefixOf returns the first 16 bytes of an ID, in the order of IDs.
func idPrefixOf(id string) (prefix [2]uint64) {
	var b [16]byte
	copy(b[:], id)
	return [2]uint64{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// UnwrittenFilter leaves out most of the instances that a query does not select, or that are after
// all places that a First keeps.
type UnwrittenFilter struct {
	first        *First
	terms        signature   // of tags and the parent
	endedTerms   signature   // of attributes too
	runningOnly  bool        // the query selects no instance that has ended
	moves        uint64      // the moves before the lists were captured
	lower, upper [2]uint64   // of the first bytes of IDs; both included
	times        [3]Interval // of creation, change and end
}

// NewUnwrittenFilter returns a filter for instances that go to a First. moves is how many moves
// there were when their lists were captured.
func NewUnwrittenFilter(q *Query, first *First, moves uint64) *UnwrittenFilter {
	f := &UnwrittenFilter{first: first, moves: moves, upper: idPrefixOf(strings.Repeat("\xff", 16)), times: [3]Interval{q.Created, q.Updated, q.Ended}}
	for key, value := range q.Tags {
		f.terms |= signatureOf(termTag, key, value)
	}
	if q.ParentID != "" {
		f.terms |= signatureOf(termParent, q.ParentID, "")
	}
	f.endedTerms = f.terms
	for name, text := range q.Attributes {
		f.endedTerms |= signatureOf(termAttribute, name, text)
	}
	f.runningOnly = q.Waiting != nil || q.Failing != nil || q.RequiresTimer()
	if q.IDPrefix != "" {
		f.lower, f.upper = idPrefixOf(q.IDPrefix), idPrefixOf(q.IDPrefix+strings.Repeat("\xff", 16))
	}
	return f
}

// MayAdd reports whether the First may keep the instance.
func MayAdd[T any](f *UnwrittenFilter, u *Unwritten[T]) bool {
	if u.ended != 0 && (f.runningOnly || u.terms&f.endedTerms != f.endedTerms || !f.times[1].Contains(u.ended) || !f.times[2].Contains(u.ended)) {
		return false
	}
	if moved := atomic.LoadUint64(&u.movedAt); moved != 0 && moved <= f.moves {
		return false // it is in another list, which was captured with it
	}
	return u.terms&f.terms == f.terms && f.times[0].Contains(u.created) &&
		!isBefore(u.id, f.lower) && !isBefore(f.upper, u.id) && f.first.mayWant(u.id, u.created, u.ended)
}

func isBefore(a, b [2]uint64) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }

// mayWant reports whether the First may keep the place of an instance. If not, because the place is
// after all that it keeps, it has dropped the place.
func (f *First) mayWant(id [2]uint64, created, ended int64) bool {
	at := shortPlace{id: id}
	switch f.query.Order {
	case ByCreated:
		at.key = created
	case ByUpdated, ByEnded:
		if at.key = ended; ended == 0 {
			return true
		}
	case ByNextTimer:
		return true
	}
	if f.after != nil && f.shortAfter.isBehind(at, f.query.Descending) {
		return false
	}
	if len(f.heap.places) == f.limit && at.isBehind(f.shortLast, f.query.Descending) {
		f.more = true
		return false
	}
	return true
}

// shortPlace is a place with the first bytes of its ID.
type shortPlace struct {
	key int64
	id  [2]uint64
}

func shortPlaceOf(at Cursor) shortPlace { return shortPlace{at.Key, idPrefixOf(at.ID)} }

// isBehind reports whether a place certainly comes after another one.
func (p shortPlace) isBehind(other shortPlace, descending bool) bool {
	if descending {
		p, other = other, p
	}
	return p.key > other.key || p.key == other.key && isBefore(other.id, p.id)
}
