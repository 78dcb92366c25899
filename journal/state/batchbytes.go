package state

import "github.com/tenuto-dev/tenuto/journal/state/store"

// The parts of a size in a batch that do not depend on IDs and content: the rest of the key, the
// checksum, and the first fields of a chunk or chained start.
const (
	recordOverhead       = store.RecordOverhead + historyKeySize + checksumSize
	chunkOverhead        = recordOverhead + 2*(1+8)
	eventOverhead        = 1 + 5 // a tag and the length
	chainedStartOverhead = recordOverhead + 64
	lastNumberBytes      = 10 // part of the meta record, not known yet
)

// batchBytes returns a close upper bound of the size of the batch of a flush. All instances of the
// flush must be frozen.
func (f *flush) batchBytes() int {
	n := recordOverhead + lastNumberBytes + len(f.meta.appendTo(nil))
	for i := range f.removals {
		n += 2*recordOverhead + historyKeySize + len(f.removals[i].id)
	}
	for i := range f.chainedChanges {
		n += chainedStartOverhead + len(f.chainedChanges[i].target)
		if start := f.chainedChanges[i].start; start != nil {
			n += len(start.ref.instance) + len(start.body)
		}
	}
	for i := range f.frozen {
		n += f.frozen[i].batchBytes()
	}
	return n
}

// batchBytes returns an upper bound of the bytes that an instance takes in a batch.
func (frozen *frozenInstance) batchBytes() int {
	records := 1 + len(frozen.closedTimers) + len(frozen.openedTimers)
	for _, changed := range []bool{frozen.setsBefore.busy != frozen.setsAfter.busy, frozen.setsBefore.unbegun != frozen.setsAfter.unbegun, frozen.setsBefore.child != frozen.setsAfter.child, frozen.setsBefore.hasCondition != frozen.setsAfter.hasCondition} {
		if changed {
			records++
		}
	}
	n := records*(recordOverhead+len(frozen.in.id)) + len(frozen.header)
	for _, x := range frozen.events {
		n += int(countChunks(x.events)) * chunkOverhead
		for _, event := range x.events {
			n += eventOverhead + len(event)
		}
	}
	return n
}
