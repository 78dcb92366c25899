package replay

import (
	"hash/crc32"
	"math"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// requests are the request IDs of recorded inputs: an input that is repeated is known by
// its own. An execution knows those of its own inputs, and the latest of the executions
// before it. Of the others it knows up to which index of the journal they were recorded, so
// that it can say of which repetitions it does not know whether they are any.
type requests struct {
	// What was recorded under each, as inputKind says; 0: by an execution before, which is
	// not known.
	known map[string]uint32
	order []request // the latest, oldest first
	// So many in order were recorded before this turn, and so are applied.
	settled int
	// Up to which index of the journal everything is applied; 0: not known, and so are
	// the other indexes.
	applied uint64
	// What was recorded at a larger index is known. 0: it is not known since when.
	horizon uint64
	// Up to which index those were recorded that have left order.
	left uint64
}

// A request is one recorded input, and the index at which it was recorded, or a larger one.
type request struct {
	id    string
	index uint64
}

// notApplied is the index of what was recorded at one that is not known. It is at most what
// is applied when it is asked for, and if it was recorded in this turn, it is larger.
const notApplied = math.MaxUint64

const (
	// requestsCarried is how many request IDs the next execution gets, so that an
	// input that is repeated meanwhile is still known.
	requestsCarried = 256
	// requestsMarked is for how many of them one index is recorded, about: the largest. So
	// the indexes take a small part of the space that the IDs do.
	requestsMarked = 16
)

// add remembers the ID of an input that is recorded now; "" is none.
func (r *requests) add(event *journalpb.Event) {
	if id := requestID(event); id != "" {
		r.addAt(id, inputKind(event), notApplied)
	}
}

func (r *requests) addAt(id string, kind uint32, index uint64) {
	if id == "" || r.has(id) {
		return
	}
	if r.known == nil {
		r.known = make(map[string]uint32)
	}
	r.known[id] = kind
	r.order = append(r.order, request{id, index})
}

func (r *requests) has(id string) bool {
	_, known := r.known[id]
	return known
}

// repeats reports whether what was recorded under the ID of an input, which is known, was
// such an input.
func (r *requests) repeats(event *journalpb.Event) bool {
	kind := r.known[requestID(event)]
	return kind == 0 || kind == inputKind(event)
}

// inputKind is a checksum of the type and the name of an input, not 0. Two that differ are
// taken for the same once in two billion.
func inputKind(event *journalpb.Event) uint32 {
	name := event.GetExternalEvent().GetName()
	return crc32.Update(uint32(event.Arm()), crc32.IEEETable, []byte(name)) | 1
}

// settle begins a turn: what is there now was recorded before it. More than can be
// carried leaves order.
func (r *requests) settle() {
	if r.horizon == 0 {
		r.horizon = r.applied // whatever is not known was recorded before
	}
	if r.applied > 0 {
		for i := range r.order[r.settled:] {
			one := &r.order[r.settled+i]
			one.index = min(one.index, r.applied)
		}
	}
	if leave := len(r.order) - requestsCarried; leave >= requestsCarried {
		r.left = r.latest(r.order[:leave])
		r.order = append(r.order[:0], r.order[leave:]...)
	}
	r.settled = len(r.order)
}

// latest returns the largest index of requests, and of those that have left order.
func (r *requests) latest(of []request) uint64 {
	latest := r.left
	for _, one := range of {
		latest = max(latest, one.index)
	}
	return latest
}

// resume takes over what the execution before has recorded.
func (r *requests) resume(started *journalpb.OrchestrationStarted) {
	if started.RequestHorizon > 0 {
		r.horizon = started.RequestHorizon
	}
	if len(started.Inbox) > 0 {
		r.resumeInbox(started)
	}
	indexes := indexesOf(started)
	for i, id := range started.RequestIds {
		r.addAt(id, 0, indexes[i])
	}
}

// resumeInbox takes over those events of the inbox that are not among the latest: they
// are older.
func (r *requests) resumeInbox(started *journalpb.OrchestrationStarted) {
	index := started.RequestHorizon
	if index == 0 {
		index = notApplied
	}
	carried := make(map[string]bool, len(started.RequestIds))
	for _, id := range started.RequestIds {
		carried[id] = true
	}
	for _, event := range started.Inbox {
		if !carried[event.RequestId] {
			r.addAt(event.RequestId, 0, index)
		}
	}
}

// indexesOf returns the index of each request ID that is carried.
func indexesOf(started *journalpb.OrchestrationStarted) []uint64 {
	indexes := make([]uint64, len(started.RequestIds))
	left := indexes
	for _, mark := range started.RequestIdMarks {
		n := min(int(mark.Count), len(left))
		for i := range left[:n] {
			left[i] = mark.Index
		}
		left = left[n:]
	}
	for i := range left {
		left[i] = notApplied
	}
	return indexes
}

// carry gives the next execution what it is to know: the latest requests, and in any case
// those of this turn if the indexes are known, as it is not known yet at which one they will
// be recorded.
func (r *requests) carry(started *journalpb.OrchestrationStarted) {
	from := max(len(r.order)-requestsCarried, 0)
	if r.applied > 0 {
		from = min(from, r.settled)
		started.RequestHorizon = max(r.horizon, min(r.latest(r.order[:from]), r.applied))
		started.RequestIdMarks = r.marks(r.order[from:r.settled])
	}
	for _, one := range r.order[from:] {
		started.RequestIds = append(started.RequestIds, one.id)
	}
}

// marks returns the indexes of requests that are applied. A larger one than that of a
// request is as right, if less exact.
func (r *requests) marks(settled []request) (marks []*journalpb.RequestIdMark) {
	for _, one := range settled {
		index, last := min(one.index, r.applied), len(marks)-1
		if last >= 0 && (marks[last].Index >= index || marks[last].Count < requestsMarked) {
			marks[last].Index = max(marks[last].Index, index)
			marks[last].Count++
			continue
		}
		marks = append(marks, &journalpb.RequestIdMark{Index: index, Count: 1})
	}
	return marks
}
