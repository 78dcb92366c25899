package state

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// command is a decoded Record. Its byte slices are parts of the record.
type command struct {
	epoch  bool // an Epoch; an Append otherwise
	append appendCommand
}

type appendCommand struct {
	instance []byte
	epoch    uint64
	segments []segment
}

type segment struct {
	execution uint64
	first     uint64
	events    [][]byte
}

// parse decodes a Record into c, using the slices that c already has.
func (c *command) parse(record []byte) error {
	c.epoch = false
	c.append.instance, c.append.epoch, c.append.segments = nil, 0, c.append.segments[:0]
	number, wire, n := protowire.ConsumeTag(record)
	if n < 0 || wire != protowire.BytesType {
		return fmt.Errorf("read record: %w", ErrCorrupt)
	}
	body, m := protowire.ConsumeBytes(record[n:])
	if m < 0 || n+m != len(record) {
		return fmt.Errorf("read record: %w", ErrCorrupt)
	}
	switch number {
	case 1:
		if !c.append.parse(body) {
			return fmt.Errorf("read append: %w", ErrCorrupt)
		}
		return nil
	case 2:
		c.epoch = true
		return nil
	default:
		return fmt.Errorf("unknown command %d: %w", number, ErrCorrupt)
	}
}

func (a *appendCommand) parse(b []byte) bool {
	wellFormed := true
	return each(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.BytesType:
			a.instance, _ = protowire.ConsumeBytes(value)
		case number == 2 && wire == protowire.VarintType:
			a.epoch, _ = protowire.ConsumeVarint(value)
		case number == 3 && wire == protowire.BytesType:
			body, _ := protowire.ConsumeBytes(value)
			wellFormed = a.nextSegment().parse(body) && wellFormed
		}
	}) && wellFormed
}

// nextSegment extends the segments by an empty one, with the slice of events
// that an earlier append has left behind.
func (a *appendCommand) nextSegment() *segment {
	n := len(a.segments)
	if n < cap(a.segments) {
		a.segments = a.segments[:n+1]
	} else {
		a.segments = append(a.segments, segment{})
	}
	s := &a.segments[n]
	*s = segment{events: s.events[:0]}
	return s
}

func (s *segment) parse(b []byte) bool {
	return each(b, func(number protowire.Number, wire protowire.Type, value []byte) {
		switch {
		case number == 1 && wire == protowire.VarintType:
			s.execution, _ = protowire.ConsumeVarint(value)
		case number == 2 && wire == protowire.VarintType:
			s.first, _ = protowire.ConsumeVarint(value)
		case number == 3 && wire == protowire.BytesType:
			event, _ := protowire.ConsumeBytes(value)
			// Capped, so that nobody who is handed the event can write
			// behind it.
			s.events = append(s.events, event[:len(event):len(event)])
		}
	})
}
