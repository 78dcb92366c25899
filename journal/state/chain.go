package state

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// The chain of an instance runs through all of its events: the link of an event
// is the XXH64 of the event's bytes, seeded with the link before it. The first
// event of an execution comes after a link of its own, which binds the execution
// to its instance, its number and whatever came before:
//
//	link(begin of execution) = XXH64(number as 8 bytes big-endian, ID; seed: the last link, 0 before the first)
//	link(event)              = XXH64(encoded event; seed: the link before)
//
// So the last link stands for everything that the instance has ever recorded:
// two replicas that agree on it agree on every event. It is no proof against
// somebody who chooses the bytes.

// chainExecution returns the link that the events of an execution come after.
func chainExecution(link uint64, id string, execution uint64) uint64 {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], execution)
	var d xxhash.Digest
	d.ResetWithSeed(link)
	_, _ = d.Write(number[:]) // a hash takes everything
	_, _ = d.WriteString(id)
	return d.Sum64()
}

// chainEvents returns the link of the last of some events.
func chainEvents(link uint64, events [][]byte) uint64 {
	var d xxhash.Digest
	for _, event := range events {
		d.ResetWithSeed(link)
		_, _ = d.Write(event)
		link = d.Sum64()
	}
	return link
}
