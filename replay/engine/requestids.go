package engine

import (
	"hash/crc32"
	"math"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// requestIDs holds the request IDs of recorded inputs, by which repeated inputs are detected. An
// execution has the IDs of its own inputs and the latest ones of earlier executions. Of older IDs
// it has only the journal index up to which they were recorded. So it can report that a repeated
// input may have been recorded (see [Forgotten]).
type requestIDs struct {
	// known maps each ID to the inputChecksum of its input; 0 if an earlier execution recorded the
	// input, because its checksum is not carried over.
	known  map[string]uint32
	recent []request // the latest, oldest first
	// appliedCount is how many of recent were recorded before this turn, and so are applied.
	appliedCount int
	// appliedIndex is the journal index up to which everything is applied; 0: unknown, and so are
	// the other indexes.
	appliedIndex uint64
	// horizon: every ID recorded at a larger index is known. 0: unknown.
	horizon uint64
	// droppedIndex is an upper bound of the indexes of IDs that were removed from recent.
	droppedIndex uint64
}

// A request is one recorded input, with an upper bound of its journal index.
type request struct {
	id    string
	index uint64
}

// notApplied is the index of a request whose index is not known yet. It is lowered to the applied
// index later.
const notApplied = math.MaxUint64

const (
	// requestsCarriedMax is the number of request IDs that the next execution receives.
	requestsCarriedMax = 256
	// requestsPerMark is about how many request IDs share one recorded index, the largest of their
	// indexes. So the indexes take little space compared with the IDs.
	requestsPerMark = 16
)

// add adds the ID of an input that is being recorded, if it has one.
func (r *requestIDs) add(event *journalpb.Event) {
	if id := event.InputRequestID(); id != "" {
		r.addAt(id, inputChecksum(event), notApplied)
	}
}

func (r *requestIDs) addAt(id string, kind uint32, index uint64) {
	if id == "" || r.has(id) {
		return
	}
	if r.known == nil {
		r.known = make(map[string]uint32)
	}
	r.known[id] = kind
	r.recent = append(r.recent, request{id, index})
}

func (r *requestIDs) has(id string) bool {
	_, known := r.known[id]
	return known
}

// HasKnownID reports whether the execution x has recorded an input with the request ID of the
// message.
func (m *Message) HasKnownID(x *Execution) bool { return x.requestIDs.has(m.Event.InputRequestID()) }

// isRepeat reports whether the input recorded under the known ID had the same type and name.
func (r *requestIDs) isRepeat(event *journalpb.Event) bool {
	kind := r.known[event.InputRequestID()]
	return kind == 0 || kind == inputChecksum(event)
}

// inputChecksum returns a non-zero checksum of the type and name of an input. Two different inputs
// collide once in two billion.
func inputChecksum(event *journalpb.Event) uint32 {
	name := event.GetExternalEvent().GetName()
	return crc32.Update(uint32(event.TypeNumber()), crc32.IEEETable, []byte(name)) | 1
}

// beginTurn begins a turn: everything in recent was recorded before it. It drops the oldest of
// recent if there are more than can be carried.
func (r *requestIDs) beginTurn() {
	if r.horizon == 0 {
		r.horizon = r.appliedIndex // older IDs are unknown
	}
	if r.appliedIndex > 0 {
		for i := range r.recent[r.appliedCount:] {
			one := &r.recent[r.appliedCount+i]
			one.index = min(one.index, r.appliedIndex)
		}
	}
	if excess := len(r.recent) - requestsCarriedMax; excess >= requestsCarriedMax {
		r.droppedIndex = r.latestIndex(r.recent[:excess])
		r.recent = append(r.recent[:0], r.recent[excess:]...)
	}
	r.appliedCount = len(r.recent)
}

// latestIndex returns the largest index of the given requests and of those removed from recent.
func (r *requestIDs) latestIndex(info []request) uint64 {
	latest := r.droppedIndex
	for _, one := range info {
		latest = max(latest, one.index)
	}
	return latest
}

// restore adds what earlier executions have recorded.
func (r *requestIDs) restore(started *journalpb.OrchestrationStarted) {
	if started.RequestHorizon > 0 {
		r.horizon = started.RequestHorizon
	}
	if len(started.Inbox) > 0 {
		r.restoreInbox(started)
	}
	indexes := indexesOf(started)
	for i, id := range started.RequestIds {
		r.addAt(id, 0, indexes[i])
	}
}

// restoreInbox adds inbox events whose IDs are not among the carried ones; they are older.
func (r *requestIDs) restoreInbox(started *journalpb.OrchestrationStarted) {
	index := started.RequestHorizon
	if index == 0 {
		index = notApplied
	}
	carried := make(map[string]bool, len(started.RequestIds))
	for _, id := range started.RequestIds {
		carried[id] = true
	}
	for _, event := range started.Inbox {
		kind := uint32(0)
		if len(carried) == 0 { // the first execution of a run has recorded it
			kind = inputChecksum(&journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: event}})
		}
		if !carried[event.RequestId] {
			r.addAt(event.RequestId, kind, index)
		}
	}
}

// indexesOf returns the index of each carried request ID.
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

// carryOver sets what the next execution needs: the latest requests, and always those of this turn
// if indexes are known, because their own index is not known yet.
func (r *requestIDs) carryOver(started *journalpb.OrchestrationStarted) {
	from := max(len(r.recent)-requestsCarriedMax, 0)
	if r.appliedIndex > 0 {
		from = min(from, r.appliedCount)
		started.RequestHorizon = max(r.horizon, min(r.latestIndex(r.recent[:from]), r.appliedIndex))
		started.RequestIdMarks = r.indexMarks(r.recent[from:r.appliedCount])
	}
	for _, one := range r.recent[from:] {
		started.RequestIds = append(started.RequestIds, one.id)
	}
}

// indexMarks returns the indexes of applied requests. The index of a mark may be larger than that
// of a request in it: it is an upper bound.
func (r *requestIDs) indexMarks(done []request) (marks []*journalpb.RequestIdMark) {
	for _, one := range done {
		index, last := min(one.index, r.appliedIndex), len(marks)-1
		if last >= 0 && (marks[last].Index >= index || marks[last].Count < requestsPerMark) {
			marks[last].Index = max(marks[last].Index, index)
			marks[last].Count++
			continue
		}
		marks = append(marks, &journalpb.RequestIdMark{Index: index, Count: 1})
	}
	return marks
}
