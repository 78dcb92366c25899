package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// chunkBytesMax is the size at which a chunk of a history takes no further
// event: a reader of a few events in the middle reads no more than that in vain.
const chunkBytesMax = 64 << 10

// The fields of a chunk.
const (
	fieldChunkBefore = 1
	fieldChunkAfter  = 2
	fieldChunkEvent  = 3
)

// chunk is a run of events of one execution, as the store has it: the events
// that were new when the instance was written.
type chunk struct {
	before uint64 // the link before the first event
	after  uint64 // that of the last event
	events [][]byte
}

// nextChunk splits events: into those that go into one chunk, at least one, and
// the rest.
func nextChunk(events [][]byte) (head, rest [][]byte) {
	size := 0
	for i, event := range events {
		if size += len(event); i > 0 && size > chunkBytesMax {
			return events[:i], events[i:]
		}
	}
	return events, nil
}

// chunksOf returns into how many chunks events are split.
func chunksOf(events [][]byte) (n uint64) {
	for len(events) > 0 {
		_, events = nextChunk(events)
		n++
	}
	return n
}

func (c *chunk) appendTo(b []byte) []byte {
	b = protowire.AppendTag(b, fieldChunkBefore, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.before)
	b = protowire.AppendTag(b, fieldChunkAfter, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.after)
	for _, event := range c.events {
		b = protowire.AppendTag(b, fieldChunkEvent, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}

// parse reads a chunk and holds its events against the chain. They are parts of
// the record.
func (c *chunk) parse(record []byte) error {
	ok := each(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == fieldChunkBefore && wire == protowire.Fixed64Type:
			c.before, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkAfter && wire == protowire.Fixed64Type:
			c.after, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkEvent && wire == protowire.BytesType:
			event, _ := protowire.ConsumeBytes(value)
			c.events = append(c.events, event[:len(event):len(event)])
		}
	})
	if !ok || len(c.events) == 0 || chainEvents(c.before, c.events) != c.after {
		return fmt.Errorf("a chunk of %d events: %w", len(c.events), ErrCorrupt)
	}
	return nil
}
