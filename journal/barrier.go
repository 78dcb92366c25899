package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// barriers are the callers of Barrier that wait for the next verification: as
// many as there are goroutines in Barrier, and those that gave up since the last
// one.
type barriers struct {
	mu      sync.Mutex
	waiting []chan error
	arrived chan struct{} // a token when somebody waits
}

func newBarriers() *barriers {
	return &barriers{arrived: make(chan struct{}, 1)}
}

func (b *barriers) join() chan error {
	ch := make(chan error, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, ch)
	select {
	case b.arrived <- struct{}{}:
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

func (b *barriers) answer(err error) {
	for _, ch := range b.takeAll() {
		ch <- err
	}
}

// Barrier makes local reads linearizable: when it returns nil, a majority has
// confirmed, since the call, that this node leads, and everything committed
// before the call is applied here. All who wait when a verification begins
// share it, so its cost does not grow with the callers. It returns ErrNotLeader
// on any other node, ErrClosed, a *FencedError, or ctx's error.
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

// verify serves Barrier until ctx ends.
func (j *Journal) verify(ctx context.Context) {
	defer func() { j.barriers.answer(ErrClosed) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.barriers.arrived:
		}
		shared := j.barriers.takeAll()
		err := j.verifyOnce(ctx)
		if ctx.Err() != nil {
			err = ErrClosed
		}
		for _, ch := range shared {
			ch <- err
		}
	}
}

// verifyOnce is the read index of Raft: note what is committed, make sure that
// no other leader can have committed more before now, wait until it is applied.
func (j *Journal) verifyOnce(ctx context.Context) error {
	if err := j.fence.err(); err != nil {
		return err
	}
	r := j.reign.Load()
	if r == nil {
		return ErrNotLeader
	}
	committed := j.raft.CommitIndex()
	if err := j.verifyReign(ctx, r); err != nil {
		return err
	}
	return j.fsm.await(ctx, j.lastCommand(committed))
}

// verifyReign returns nil when a majority has confirmed, to questions put since
// the call, that it knows of no later leader than this one. What the library
// verifies rests on answers to older questions too: it is asked again then, and
// has put new ones meanwhile.
func (j *Journal) verifyReign(ctx context.Context, r *reign) error {
	since := j.acks.begin()
	for ctx.Err() == nil {
		if err := j.raft.VerifyLeader().Error(); err != nil {
			return j.explain(fmt.Errorf("%w: %w", ErrNotLeader, err))
		}
		// Lost and regained while we looked: others may have committed in between.
		if j.raft.CurrentTerm() != r.term {
			return ErrNotLeader
		}
		servers := j.raft.GetConfiguration().Configuration().Servers
		if j.acks.confirmed(servers, raft.ServerID(j.config.Node), r.term, since) {
			return nil
		}
	}
	return ctx.Err()
}

// lastCommand returns the index of the last entry up to committed that reaches
// the state machine: Raft's own entries do not, and would be waited for in vain.
func (j *Journal) lastCommand(committed uint64) uint64 {
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
