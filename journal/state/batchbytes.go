package state

import "github.com/tenuto-dev/tenuto/journal/state/store"

// The bytes that a record takes in a batch besides its ID and its counted content: the rest of its
// key, the checksum, and the leading fields of a chunk or chained start.
const (
	recordOverhead       = store.RecordOverhead + historyKeySize + checksumSize
	chunkOverhead        = recordOverhead + 2*(1+8)
	eventOverhead        = 1 + 5 // a tag and the length
	chainedStartOverhead = recordOverhead + 64
	lastNumberBytes      = 10 // part of the meta record, not known yet
)

// batchBytes returns a close upper bound of the bytes that a flush takes in a batch. Everything to
// be written must be frozen.
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
func (z *frozenInstance) batchBytes() int {
	records := 1 + len(z.closedTimers) + len(z.openedTimers)
	for _, changed := range []bool{z.setsBefore.busy != z.setsAfter.busy, z.setsBefore.unbegun != z.setsAfter.unbegun, z.setsBefore.child != z.setsAfter.child, z.setsBefore.hasCondition != z.setsAfter.hasCondition} {
		if changed {
			records++
		}
	}
	n := records*(recordOverhead+len(z.in.id)) + len(z.header)
	for _, x := range z.events {
		n += int(countChunks(x.events)) * chunkOverhead
		for _, event := range x.events {
			n += eventOverhead + len(event)
		}
	}
	return n
}
