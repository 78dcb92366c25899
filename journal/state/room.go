package state

import "github.com/tenuto-dev/tenuto/journal/state/store"

// What a record takes of a batch besides its ID and what is counted of it: the rest of
// its key, the checksum, and for a chunk or a chained start what stands before what it
// carries.
const (
	recordRoom  = store.RecordRoom + historyKeySize + checksumSize
	chunkRoom   = recordRoom + 2*(1+8)
	eventRoom   = 1 + 5 // a tag and the length
	chainedRoom = recordRoom + 64
	numbersRoom = 10 // of the meta record, which are not known yet
)

// room returns how many bytes a flush takes in a batch: at most, and not much less. All
// that it is to write is frozen.
func (f *flush) room() int {
	n := recordRoom + numbersRoom + len(f.meta.appendTo(nil))
	for i := range f.removals {
		n += 2*recordRoom + historyKeySize + len(f.removals[i].id)
	}
	for i := range f.rechained {
		n += chainedRoom + len(f.rechained[i].target)
		if start := f.rechained[i].start; start != nil {
			n += len(start.ref.instance) + len(start.body)
		}
	}
	for i := range f.frozen {
		n += f.frozen[i].room()
	}
	return n
}

// room returns how many bytes an instance takes in a batch, at most.
func (z *frozen) room() int {
	records := 1 + len(z.silenced) + len(z.alarms)
	for _, changed := range []bool{z.was.busy != z.is.busy, z.was.unbegun != z.is.unbegun, z.was.child != z.is.child, z.was.held != z.is.held} {
		if changed {
			records++
		}
	}
	n := records*(recordRoom+len(z.in.id)) + len(z.header)
	for _, x := range z.events {
		n += int(chunksOf(x.events)) * chunkRoom
		for _, event := range x.events {
			n += eventRoom + len(event)
		}
	}
	return n
}
