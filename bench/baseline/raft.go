package baseline

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

// The metrics of [Commit] and [Packed].
const (
	CommitP50     = "commit p50"
	CommitP99     = "commit p99"
	PackedRecords = "packed records"
)

const (
	// PackedEach is the number of records in an entry of [Packed]: the journal's maximum.
	PackedEach = 256
	// The best number of entries in flight for one node and for three.
	packedInFlight = 8
	// Operations before the measurement.
	warmUp = 20
	// Attempts if a leader is lost.
	attemptsMax = 3
)

// Commit measures n times how long one raft.Apply of one record takes with the given number of
// nodes.
func Commit(nodes, recordBytes, n int) *measure.Subject {
	return &measure.Subject{
		Name:        "baseline: " + subjectName(nodes, "commit"),
		Description: fmt.Sprintf("one raft.Apply of a record of %d bytes at a time, %s, empty state machine", recordBytes, describeNodes(nodes)),
		Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
			return withLeader(ctx, dir, nodes, func(leader *raft.Raft) (*measure.Result, error) {
				return measureCommits(ctx, leader, randomBytes(recordBytes), n)
			})
		},
	}
}

func measureCommits(ctx context.Context, leader *raft.Raft, record []byte, n int) (*measure.Result, error) {
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

// Packed measures how many records a second the given number of nodes commits, with 256
// records in an entry, for n entries.
func Packed(nodes, recordBytes, n int) *measure.Subject {
	return &measure.Subject{
		Name: "baseline: " + subjectName(nodes, "packed"),
		Description: fmt.Sprintf("raft.Apply of entries of %d records of %d bytes, %d in flight, %s, empty state machine",
			PackedEach, recordBytes, packedInFlight, describeNodes(nodes)),
		Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
			return withLeader(ctx, dir, nodes, func(leader *raft.Raft) (*measure.Result, error) {
				return measurePacked(leader, randomBytes(PackedEach*recordBytes), n)
			})
		},
	}
}

func measurePacked(leader *raft.Raft, entry []byte, n int) (*measure.Result, error) {
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

// applyAll proposes n entries with packedInFlight in flight.
func applyAll(leader *raft.Raft, entry []byte, n int) error {
	inFlight := make(chan raft.ApplyFuture, packedInFlight-1)
	go func() {
		defer close(inFlight)
		for range n {
			inFlight <- leader.Apply(entry, 0)
		}
	}()
	var errs []error
	for future := range inFlight {
		if err := future.Error(); err != nil && len(errs) == 0 {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withLeader calls run with the leader of a new cluster, and retries with another cluster if
// leadership is lost.
func withLeader(ctx context.Context, dir string, nodes int, run func(*raft.Raft) (*measure.Result, error)) (result *measure.Result, err error) {
	for attempt := range attemptsMax {
		result, err = withCluster(ctx, filepath.Join(dir, strconv.Itoa(attempt)), nodes, run)
		if !errors.Is(err, raft.ErrLeadershipLost) && !errors.Is(err, raft.ErrNotLeader) {
			break
		}
	}
	return result, err
}

func withCluster(ctx context.Context, dir string, nodes int, run func(*raft.Raft) (*measure.Result, error)) (*measure.Result, error) {
	g, err := newRaftCluster(ctx, dir, nodes)
	if err != nil {
		return nil, err
	}
	leader, err := g.awaitLeader(ctx)
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	result, err := run(leader)
	return result, errors.Join(err, g.close())
}

// randomBytes returns incompressible bytes.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func describeNodes(nodes int) string {
	if nodes == 1 {
		return "one node"
	}
	return fmt.Sprintf("%d nodes in one process", nodes)
}

func subjectName(nodes int, what string) string {
	if nodes == 1 {
		return what
	}
	return fmt.Sprintf("%s, %d nodes", what, nodes)
}
