package yardstick

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// The figures of [Commit] and [Packed].
const (
	CommitP50     = "commit p50"
	CommitP99     = "commit p99"
	PackedRecords = "packed records"
)

const (
	// PackedEach is how many records [Packed] puts into an entry: as many as
	// the journal does at most.
	PackedEach = 256
	// Entries on their way at once: what serves one node and three about best.
	packedInFlight = 8
	// Runs before anything is measured.
	warmUp = 20
	// Groups that may lose their leader.
	attemptsMax = 3
)

// Commit measures, n times and one at a time, how long a raft.Apply of one
// record takes in a group of so many nodes.
func Commit(nodes, recordBytes, n int) *measure.Subject {
	return &measure.Subject{
		Name:        "yardstick: " + one(nodes, "commit"),
		Description: fmt.Sprintf("one raft.Apply of a record of %d bytes at a time, %s, a state machine that does nothing", recordBytes, many(nodes)),
		Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
			return withLeader(ctx, dir, nodes, func(leader *raft.Raft) (*measure.Result, error) {
				return commits(ctx, leader, randomBytes(recordBytes), n)
			})
		},
	}
}

func commits(ctx context.Context, leader *raft.Raft, record []byte, n int) (*measure.Result, error) {
	latency := &measure.Histogram{}
	for i := range warmUp + n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := leader.Apply(record, 0).Error(); err != nil {
			return nil, err
		}
		if i >= warmUp {
			latency.Record(time.Since(began))
		}
	}
	result := &measure.Result{}
	result.AddLatency("commit", latency, "", "")
	return result, nil
}

// Packed measures how many records a second a group of so many nodes commits,
// with 256 of them in an entry, for n entries.
func Packed(nodes, recordBytes, n int) *measure.Subject {
	return &measure.Subject{
		Name: "yardstick: " + one(nodes, "packed"),
		Description: fmt.Sprintf("raft.Apply of entries of %d records of %d bytes, %d on their way, %s, a state machine that does nothing",
			PackedEach, recordBytes, packedInFlight, many(nodes)),
		Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
			return withLeader(ctx, dir, nodes, func(leader *raft.Raft) (*measure.Result, error) {
				return packed(leader, randomBytes(PackedEach*recordBytes), n)
			})
		},
	}
}

func packed(leader *raft.Raft, entry []byte, n int) (*measure.Result, error) {
	if err := applyAll(leader, entry, warmUp); err != nil {
		return nil, err
	}
	result := &measure.Result{}
	meter := measure.StartMeter()
	if err := applyAll(leader, entry, n); err != nil {
		return nil, err
	}
	meter.Stop(result, PackedRecords, n*PackedEach)
	return result, nil
}

// applyAll proposes n entries, with a few on their way at a time.
func applyAll(leader *raft.Raft, entry []byte, n int) error {
	underWay := make(chan raft.ApplyFuture, packedInFlight-1)
	go func() {
		defer close(underWay)
		for range n {
			underWay <- leader.Apply(entry, 0)
		}
	}()
	var errs []error
	for future := range underWay {
		if err := future.Error(); err != nil && len(errs) == 0 {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withLeader runs with the leader of a new group, and again with that of
// another if the leadership is lost meanwhile.
func withLeader(ctx context.Context, dir string, nodes int, run func(*raft.Raft) (*measure.Result, error)) (result *measure.Result, err error) {
	for attempt := range attemptsMax {
		result, err = withGroup(ctx, filepath.Join(dir, strconv.Itoa(attempt)), nodes, run)
		if !errors.Is(err, raft.ErrLeadershipLost) && !errors.Is(err, raft.ErrNotLeader) {
			break
		}
	}
	return result, err
}

func withGroup(ctx context.Context, dir string, nodes int, run func(*raft.Raft) (*measure.Result, error)) (*measure.Result, error) {
	g, err := newGroup(ctx, dir, nodes)
	if err != nil {
		return nil, err
	}
	leader, err := g.leader(ctx)
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	result, err := run(leader)
	return result, errors.Join(err, g.close())
}

// randomBytes are as hard to compress as can be.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func many(nodes int) string {
	if nodes == 1 {
		return "one node"
	}
	return fmt.Sprintf("%d nodes in one process", nodes)
}

func one(nodes int, what string) string {
	if nodes == 1 {
		return what
	}
	return fmt.Sprintf("%s, %d nodes", what, nodes)
}
