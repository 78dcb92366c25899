package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// barriers holds the callers of Barrier that wait for the next verification. It also holds the
// callers whose context has ended since the last one.
type barriers struct {
	mu       sync.Mutex
	waiting  []chan error
	arrivals chan struct{} // holds a token when a caller waits
}

func newBarriers() *barriers {
	return &barriers{arrivals: make(chan struct{}, 1)}
}

func (b *barriers) join() chan error {
	ch := make(chan error, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, ch)
	select {
	case b.arrivals <- struct{}{}:
	default:
	}
	return ch
}

func (b *barriers) takeAll() []chan error {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.waiting
	b.waiting = nil
	return all
}

func (b *barriers) resolve(err error) {
	for _, ch := range b.takeAll() {
		ch <- err
	}
}

// Barrier makes local reads linearizable. When it returns nil, a majority has confirmed since the
// call that this node leads, and everything committed before the call is applied here. All callers
// that wait when a verification begins share it, so its cost does not grow with their number.
// Errors: ErrNotLeader on any other node, ErrClosed, a *NodeFailedError, or ctx's error.
func (j *Journal) Barrier(ctx context.Context) error {
	select {
	case <-j.closing:
		return ErrClosed
	default:
	}
	result := j.barriers.join()
	select {
	case err := <-result:
		return err
	case <-j.closing:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("barrier: %w", ctx.Err())
	}
}

// serveBarriers serves Barrier until ctx ends.
func (j *Journal) serveBarriers(ctx context.Context) {
	defer func() { j.barriers.resolve(ErrClosed) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.barriers.arrivals:
		}
		waiters := j.barriers.takeAll()
		err := j.awaitReadIndex(ctx)
		if ctx.Err() != nil {
			err = ErrClosed
		}
		for _, ch := range waiters {
			ch <- err
		}
	}
}

// awaitReadIndex implements Raft's read index: read the commit index, verify that no other leader
// can have committed more, wait until that index is applied.
func (j *Journal) awaitReadIndex(ctx context.Context) error {
	if err := j.failStop.Err(); err != nil {
		return err
	}
	r := j.leadership.Load()
	if r == nil {
		return ErrNotLeader
	}
	committed := j.raft.CommitIndex()
	if err := j.verifyLeadership(ctx, r); err != nil {
		return err
	}
	return j.fsm.await(ctx, j.lastCommandIndex(committed))
}

// verifyLeadership returns nil after a majority has confirmed that it has seen no later term,
// in answers to RPCs begun since the call. The library also counts answers to older RPCs.
// verifyLeadership then asks it again, and each verification sends new RPCs.
func (j *Journal) verifyLeadership(ctx context.Context, r *leadership) error {
	since := j.acks.Next()
	for ctx.Err() == nil {
		if err := j.raft.VerifyLeader().Error(); err != nil {
			return j.wrapFailure(fmt.Errorf("%w: %w", ErrNotLeader, err))
		}
		// Leadership was lost and regained meanwhile: another leader may have committed in between.
		if j.raft.CurrentTerm() != r.term {
			return ErrNotLeader
		}
		servers := j.raft.GetConfiguration().Configuration().Servers
		if j.acks.HasQuorum(servers, raft.ServerID(j.config.Node), r.term, since) {
			return nil
		}
	}
	return ctx.Err()
}

// lastCommandIndex returns the index of the last entry up to committed that reaches the state
// machine. Raft's own entries never reach it, so waiting for one would never end.
func (j *Journal) lastCommandIndex(committed uint64) uint64 {
	reached := j.fsm.appliedIndex()
	for index := committed; index > reached; index-- {
		var log raft.Log
		switch err := j.logs.GetLog(index, &log); {
		case errors.Is(err, raft.ErrLogNotFound):
			return reached // compacted, hence applied
		case err == nil && log.Type == raft.LogCommand:
			return index
		}
	}
	return reached
}
