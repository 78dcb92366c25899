package state

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// The hash chain of an instance covers all its events. The hash of an event is the XXH64 of its
// bytes, seeded with the hash before it. An execution begins with a hash that binds it to its
// instance, its number and everything before:
//
//	hash(begin of execution) = XXH64(number as 8 bytes big-endian, ID; seed: the last hash, 0 before the first)
//	hash(event)              = XXH64(encoded event; seed: the hash before)
//
// The last hash covers everything that the instance has ever recorded: two replicas with the same
// hash have the same events. It does not protect against an adversary who chooses the bytes.

// hashExecution returns the hash that precedes the events of an execution.
func hashExecution(chainHash uint64, id string, execution uint64) uint64 {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], execution)
	var d xxhash.Digest
	d.ResetWithSeed(chainHash)
	_, _ = d.Write(number[:]) // a hash never fails
	_, _ = d.WriteString(id)
	return d.Sum64()
}

// hashEvents returns the hash of the last of some events.
func hashEvents(chainHash uint64, events [][]byte) uint64 {
	var d xxhash.Digest
	for _, event := range events {
		d.ResetWithSeed(chainHash)
		_, _ = d.Write(event)
		chainHash = d.Sum64()
	}
	return chainHash
}
