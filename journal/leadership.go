package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// leadership is one period of leading, from the commit of its epoch on.
type leadership struct {
	term      uint64
	epoch     uint64
	startedAt time.Time
	cancel    context.CancelFunc
	ended     chan struct{} // closed when Lead has returned
}

// followLeadership follows Raft's leadership until ctx ends. Raft keeps only the latest change in
// LeaderCh. That is enough: a second gain in a row implies a loss in between.
func (j *Journal) followLeadership(ctx context.Context) {
	defer j.stepDown()
	start := newLeaderStartup(j)
	defer start.end()
	var again <-chan time.Time
	recording := time.NewTicker(clock.Interval)
	defer recording.Stop()
	for {
		var leading bool
		reopened := j.raft.Reopened() // before LeaderCh is read
		select {
		case <-ctx.Done():
			return
		case <-reopened: // Raft starts as a follower
		case <-j.failStop.failed:
			return // permanently, even if Raft elects this node again
		case leading = <-j.raft.LeaderCh():
		case <-j.disk.Changed():
			leading = !j.disk.IsStalled() && j.raft.State() == raft.Leader
		case <-recording.C:
			j.recordClock()
			continue
		case <-again:
			leading = j.raft.State() == raft.Leader
		}
		again = nil
		start.begin()
		j.stepDown()
		if !leading {
			start.end()
			continue
		}
		if err := j.becomeLeader(ctx); err != nil && ctx.Err() == nil {
			// Usually leadership is lost already. If not, no other node would become leader, so try
			// again.
			j.config.Logger.Warn("cannot start leadership, trying again", "error", err)
			again = time.After(becomeLeaderRetryInterval)
			continue
		}
		start.end()
	}
}

// leaderStartup bounds how long an elected node may take to serve, that is, to accept appends. Raft
// may elect a node again while it is still ending its previous leadership; then no node serves. A
// leader that does not serve within leaderStartupTimeout transfers leadership. It tries again after
// each further leaderStartupTimeout.
type leaderStartup struct {
	journal *Journal
	pending atomic.Bool
	timer   *time.Timer
}

// leaderStartupTimeout is longer than a slow leader needs to start.
const leaderStartupTimeout = 5 * time.Second

func newLeaderStartup(j *Journal) *leaderStartup {
	o := &leaderStartup{journal: j}
	o.timer = time.AfterFunc(leaderStartupTimeout, o.onTimeout)
	o.timer.Stop()
	return o
}

// begin is called when leadership has changed, or becoming leader is retried.
func (o *leaderStartup) begin() {
	if !o.pending.Swap(true) {
		o.timer.Reset(leaderStartupTimeout)
	}
}

// end is called when the node serves, or does not lead and has ended its previous leadership.
func (o *leaderStartup) end() {
	o.pending.Store(false)
	o.timer.Stop()
}

func (o *leaderStartup) onTimeout() {
	if o.pending.Load() {
		o.journal.transferIfNotServing()
		o.timer.Reset(leaderStartupTimeout)
	}
}

// transferIfNotServing transfers leadership to another node if this one leads without serving.
func (j *Journal) transferIfNotServing() {
	if j.IsLeader() || j.raft.State() != raft.Leader || len(j.raft.GetConfiguration().Configuration().Servers) == 1 {
		return
	}
	j.callers.start(func() {
		j.transfers.Add(1)
		defer j.transfers.Add(-1)
		j.config.Logger.Warn("elected but cannot start leadership, transferring it", "after", leaderStartupTimeout)
		if err := j.raft.LeadershipTransfer().Error(); err != nil {
			j.config.Logger.Warn("leadership transfer failed, trying again", "error", err)
			j.awaitTransferEnd()
		}
	})
}

// becomeLeaderRetryInterval is the pause before becomeLeader is tried again.
const becomeLeaderRetryInterval = 100 * time.Millisecond

// becomeLeader starts a leadership: it waits until everything committed before is applied, commits
// the epoch, accepts appends and calls Lead.
func (j *Journal) becomeLeader(ctx context.Context) error {
	if err := j.failStop.Err(); err != nil {
		return err
	}
	if err := j.raft.Barrier(enqueueTimeout).Error(); err != nil {
		return fmt.Errorf("wait for earlier entries: %w", outcomeError(err))
	}
	started := j.clock.StartLeading(func() []clock.Reading { return j.collectClockReadings(ctx) })
	future := j.raft.Apply(entry.Pack(entry.EncodeEpoch(j.config.Node, started.UnixNano())), enqueueTimeout)
	if err := future.Error(); err != nil {
		j.clock.StopLeading()
		return fmt.Errorf("commit epoch: %w", outcomeError(err))
	}
	result, ok := future.Response().(*applyResult)
	if !ok {
		j.clock.StopLeading()
		return fmt.Errorf("commit epoch: %w", j.failStop.Err())
	}
	leadershipCtx, cancel := context.WithCancel(ctx)
	r := &leadership{term: result.term, epoch: result.outcomes[0], startedAt: time.Now(), cancel: cancel, ended: make(chan struct{})}
	j.clock.SetLeaderEpoch(r.epoch)
	j.config.Logger.Info("leading", "epoch", r.epoch, "term", r.term)
	j.queue.accept() // first, so that IsLeader implies that appends are accepted
	j.leadership.Store(r)
	go func() {
		defer close(r.ended)
		var reconciling sync.WaitGroup
		reconciling.Go(func() { j.reconcileMembers(leadershipCtx) })
		defer reconciling.Wait()
		if j.config.Lead != nil {
			j.config.Lead(leadershipCtx, r.epoch)
		}
	}()
	return nil
}

// stepDown ends the leadership, if there is one, and waits for Lead.
func (j *Journal) stepDown() {
	r := j.leadership.Swap(nil)
	if r == nil {
		return
	}
	j.queue.refuse(ErrNotLeader)
	r.cancel()
	<-r.ended
	j.clock.StopLeading()
	j.config.Logger.Info("leadership lost", "epoch", r.epoch)
}

// pollInterval is how often the journal checks for a change that nobody reports.
const pollInterval = 20 * time.Millisecond

// enqueueTimeout bounds how long a new leader waits for Raft's main loop to take its first entries.
const enqueueTimeout = 10 * time.Second

// IsLeader reports whether this node leads and its epoch is committed, so that Append can succeed
// here. The answer may be outdated when it returns.
func (j *Journal) IsLeader() bool { return j.leadership.Load() != nil }

// Leader returns the leader and its address as far as this node knows; empty if unknown.
func (j *Journal) Leader() (node, address string) {
	a, id := j.raft.LeaderWithID()
	address, _ = peer.SplitAddress(a)
	return string(id), address
}

// notifyLeaderChanges calls Config.LeaderChanged until ctx ends.
func (j *Journal) notifyLeaderChanges(ctx context.Context) {
	changes := make(chan raft.Observation, 1) // one pending change is enough
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.LeaderObservation)
		return changed
	})
	j.raft.RegisterObserver(observer)
	defer j.raft.DeregisterObserver(observer)
	for {
		reopened := j.raft.Reopened()
		j.config.LeaderChanged()
		select {
		case <-changes:
		case <-reopened:
		case <-ctx.Done():
			return
		}
	}
}

// TransferLeadership transfers leadership to the follower that lags least and returns when this
// node no longer leads. Appends are refused with ErrNotLeader meanwhile. If ctx ends first, the
// transfer continues; the Raft library aborts it after the election timeout. It returns
// ErrNotLeader on a node that does not lead and ErrLastVoter on a single node.
func (j *Journal) TransferLeadership(ctx context.Context) error {
	return j.transfer(ctx, func() raft.Future { return j.raft.LeadershipTransfer() })
}

// TransferLeadershipTo is TransferLeadership to a given node. It returns ErrNotMember if that node
// has no vote.
func (j *Journal) TransferLeadershipTo(ctx context.Context, node string) error {
	to := j.membership().find(node)
	if to == nil || to.Suffrage != raft.Voter {
		return ErrNotMember
	}
	return j.transfer(ctx, func() raft.Future { return j.raft.LeadershipTransferToServer(to.ID, to.Address) })
}

// awaitTransferEnd returns when Raft has ended a transfer that has failed. That may be long after
// Raft reported the failure: it still waits for the target, and takes no appends meanwhile.
func (j *Journal) awaitTransferEnd() {
	for errors.Is(j.raft.Barrier(enqueueTimeout).Error(), raft.ErrLeadershipTransferInProgress) {
		select {
		case <-time.After(pollInterval):
		case <-j.closing:
			return
		}
	}
}

func (j *Journal) transfer(ctx context.Context, begin func() raft.Future) error {
	if !j.IsLeader() {
		return ErrNotLeader
	}
	if len(j.raft.GetConfiguration().Configuration().Servers) == 1 {
		return ErrLastVoter
	}
	select {
	case <-j.recordClock(): // so that the next leader has received it
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	}
	result := make(chan error, 1)
	if !j.callers.start(func() {
		j.transfers.Add(1)
		defer j.transfers.Add(-1)
		err := begin().Error()
		result <- err
		if err != nil {
			j.awaitTransferEnd()
		}
	}) {
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	case err := <-result:
		if err != nil && errors.Is(outcomeError(err), ErrNotLeader) {
			return ErrNotLeader
		}
		if err != nil {
			return fmt.Errorf("transfer leadership: %w", err)
		}
		return nil
	}
}
