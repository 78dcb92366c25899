package raftlogtest

import (
	"math/rand/v2"
	"time"

	"github.com/hashicorp/raft"
)

// Entry is the test entry at an index. Sizes vary, and some have extensions.
func Entry(index uint64) *raft.Log {
	r := rand.New(rand.NewPCG(index, 7))
	log := &raft.Log{
		Index: index, Term: 1 + index/10, Type: raft.LogCommand,
		Data: make([]byte, r.IntN(3000)), AppendedAt: time.Unix(1700000000, int64(index)).UTC(),
	}
	for i := range log.Data {
		log.Data[i] = byte(r.Uint32())
	}
	if index%5 == 0 {
		log.Extensions = []byte("extension")
	}
	return log
}

// Entries returns the test entries from first to last.
func Entries(first, last uint64) []*raft.Log {
	var all []*raft.Log
	for i := first; i <= last; i++ {
		all = append(all, Entry(i))
	}
	return all
}
