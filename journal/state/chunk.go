package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// chunkBytesMax is the maximum size in bytes of a chunk with more than one event. It bounds what a
// reader of a few events reads and discards.
const chunkBytesMax = 64 << 10

// The fields of a chunk.
const (
	fieldChunkHashBefore = 1
	fieldChunkHashAfter  = 2
	fieldChunkEvent      = 3
)

// chunk is a stored sequence of events of one execution. A flush writes the new events of an
// instance as one or more chunks.
type chunk struct {
	hashBefore uint64 // the hash before the first event
	hashAfter  uint64 // the hash of the last event
	events     [][]byte
}

// nextChunk splits off the events that go into one chunk, at least one.
func nextChunk(events [][]byte) (head, rest [][]byte) {
	size := 0
	for i, event := range events {
		if size += len(event); i > 0 && size > chunkBytesMax {
			return events[:i], events[i:]
		}
	}
	return events, nil
}

// countChunks returns the number of chunks that the events need.
func countChunks(events [][]byte) (n uint64) {
	for len(events) > 0 {
		_, events = nextChunk(events)
		n++
	}
	return n
}

func (c *chunk) appendTo(b []byte) []byte {
	b = protowire.AppendTag(b, fieldChunkHashBefore, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.hashBefore)
	b = protowire.AppendTag(b, fieldChunkHashAfter, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.hashAfter)
	for _, event := range c.events {
		b = protowire.AppendTag(b, fieldChunkEvent, protowire.BytesType)
		b = protowire.AppendBytes(b, event)
	}
	return b
}

// parse decodes a chunk and verifies its events against the hash chain. The events are parts of
// record.
func (c *chunk) parse(record []byte) error {
	ok := eachField(record, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == fieldChunkHashBefore && wire == protowire.Fixed64Type:
			c.hashBefore, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkHashAfter && wire == protowire.Fixed64Type:
			c.hashAfter, _ = protowire.ConsumeFixed64(value)
		case number == fieldChunkEvent && wire == protowire.BytesType:
			event, _ := protowire.ConsumeBytes(value)
			c.events = append(c.events, event[:len(event):len(event)])
		}
	})
	if !ok || len(c.events) == 0 || hashEvents(c.hashBefore, c.events) != c.hashAfter {
		return fmt.Errorf("verify chunk of %d events: %w", len(c.events), ErrCorrupt)
	}
	return nil
}
