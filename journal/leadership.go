package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
)

// leadership is one period of leading, from the commit of its epoch on.
type leadership struct {
	term      uint64
	epoch     uint64
	startedAt time.Time
	cancel    context.CancelFunc
	over      <-chan struct{} // closed by cancel, when IsLeader is false
	ended     chan struct{}   // closed when Lead has returned
}

// leaderships begins and ends the leaderships of this node, and transfers leadership.
type leaderships struct {
	config   *Config
	raft     *raftnode.Node
	failStop *failStop
	disk     *raftlog.Disk
	clock    *clock.Clock
	acks     *transport.Acks
	proposer *proposer
	members  *members
	metadata *metadata
	callers  *goroutineGroup
	closing  chan struct{}
	// collectClockReadings returns the readings of the other voters' clocks.
	collectClockReadings func(context.Context) []clock.Reading

	leadership atomic.Pointer[leadership] // nil on a node that does not lead
	transfers  atomic.Int32               // transfers in progress
}

// followLeadership follows Raft's leadership until ctx ends. Raft keeps only the latest change in
// LeaderCh. That is enough: a second gain in a row implies a loss in between.
func (l *leaderships) followLeadership(ctx context.Context) {
	defer l.stepDown()
	start := newLeaderStartup(l)
	defer start.end()
	var again <-chan time.Time
	recording := time.NewTicker(clock.Interval)
	defer recording.Stop()
	for {
		var leading bool
		reopened := l.raft.Reopened() // before LeaderCh is read
		select {
		case <-ctx.Done():
			return
		case <-reopened: // Raft starts as a follower
		case <-l.failStop.failed:
			return // permanently, even if Raft elects this node again
		case leading = <-l.raft.LeaderCh():
		case <-l.disk.Changed():
			leading = !l.disk.IsStalled() && l.raft.State() == raft.Leader
		case <-recording.C:
			l.metadata.recordClock()
			continue
		case <-again:
			leading = l.raft.State() == raft.Leader
		}
		again = nil
		start.begin()
		l.stepDown()
		if !leading {
			start.end()
			continue
		}
		if err := l.becomeLeader(ctx); err != nil && ctx.Err() == nil {
			// Usually leadership is lost already. If not, no other node would become leader, so try
			// again.
			level := slog.LevelWarn
			if errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnknownOutcome) {
				level = slog.LevelDebug
			}
			l.config.Logger.Log(ctx, level, "cannot start leadership, trying again", "error", err)
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
	leaderships *leaderships
	pending     atomic.Bool
	timer       *time.Timer
}

// leaderStartupTimeout is longer than a slow leader needs to start.
const leaderStartupTimeout = 5 * time.Second

func newLeaderStartup(l *leaderships) *leaderStartup {
	o := &leaderStartup{leaderships: l}
	o.timer = time.AfterFunc(leaderStartupTimeout, o.onTimeout)
	o.timer.Stop()
	return o
}

// begin is called when leadership has changed, or becoming leader is retried.
func (l *leaderStartup) begin() {
	if !l.pending.Swap(true) {
		l.timer.Reset(leaderStartupTimeout)
	}
}

// end is called when the node serves, or does not lead and has ended its previous leadership.
func (l *leaderStartup) end() {
	l.pending.Store(false)
	l.timer.Stop()
}

func (l *leaderStartup) onTimeout() {
	if l.pending.Load() {
		l.leaderships.transferIfNotServing()
		l.timer.Reset(leaderStartupTimeout)
	}
}

// transferIfNotServing transfers leadership to another node if this one leads without serving.
func (l *leaderships) transferIfNotServing() {
	if l.IsLeader() || l.raft.State() != raft.Leader || len(l.raft.GetConfiguration().Configuration().Servers) == 1 {
		return
	}
	l.callers.start(func() {
		l.transfers.Add(1)
		defer l.transfers.Add(-1)
		l.config.Logger.Warn("elected but cannot start leadership, transferring it", "after", leaderStartupTimeout)
		if err := l.raft.LeadershipTransfer().Error(); err != nil {
			l.config.Logger.Warn("leadership transfer failed, trying again", "error", err)
			l.awaitTransferEnd()
		}
	})
}

// becomeLeaderRetryInterval is the pause before becomeLeader is tried again.
const becomeLeaderRetryInterval = 100 * time.Millisecond

// becomeLeader starts a leadership: it waits until everything committed before is applied, commits
// the epoch, accepts appends and calls Lead.
func (l *leaderships) becomeLeader(ctx context.Context) error {
	if err := l.failStop.Err(); err != nil {
		return err
	}
	if err := l.raft.Barrier(enqueueTimeout).Error(); err != nil {
		return fmt.Errorf("wait for earlier entries: %w", outcomeError(err))
	}
	started := l.clock.StartLeading(func() []clock.Reading { return l.collectClockReadings(ctx) })
	future := l.raft.Apply(entry.Pack(entry.EncodeEpoch(l.config.Node, started.UnixNano(), l.config.Protocol)), enqueueTimeout)
	if err := future.Error(); err != nil {
		l.clock.StopLeading()
		return fmt.Errorf("commit epoch: %w", outcomeError(err))
	}
	result, ok := future.Response().(*applyResult)
	if !ok {
		l.clock.StopLeading()
		return fmt.Errorf("commit epoch: %w", l.failStop.Err())
	}
	leadershipCtx, cancel := context.WithCancel(ctx)
	r := &leadership{term: result.term, epoch: result.outcomes[0], startedAt: time.Now(), cancel: cancel, over: leadershipCtx.Done(), ended: make(chan struct{})}
	l.clock.SetLeaderEpoch(r.epoch)
	l.config.Logger.Info("leading", "epoch", r.epoch, "term", r.term)
	l.proposer.queue.accept() // first, so that IsLeader implies that appends are accepted
	l.leadership.Store(r)
	go func() {
		defer close(r.ended)
		var reconciling sync.WaitGroup
		reconciling.Go(func() { l.members.reconcileMembers(leadershipCtx) })
		defer reconciling.Wait()
		if l.config.Lead != nil {
			l.config.Lead(leadershipCtx, r.epoch)
		}
	}()
	return nil
}

// stepDown ends the leadership, if there is one, and waits for Lead.
func (l *leaderships) stepDown() {
	r := l.leadership.Swap(nil)
	if r == nil {
		return
	}
	l.proposer.queue.reject(ErrNotLeader)
	r.cancel()
	<-r.ended
	l.clock.StopLeading()
	l.config.Logger.Info("leadership lost", "epoch", r.epoch)
}

// pollInterval is how often the journal checks for a change that is not signaled.
const pollInterval = 20 * time.Millisecond

// enqueueTimeout bounds how long a new leader waits for Raft's main loop to take its first entries.
const enqueueTimeout = 10 * time.Second

// IsLeader reports whether this node leads and its epoch is committed, so that Append can succeed
// here. The answer may be outdated when it returns.
func (l *leaderships) IsLeader() bool { return l.leadership.Load() != nil }

// Leader returns the leader and its address as far as this node knows; empty if unknown.
func (l *leaderships) Leader() (node, address string) {
	a, id := l.raft.LeaderWithID()
	address, _ = peer.SplitAddress(a)
	return string(id), address
}

// notifyLeaderChanges calls Config.LeaderChanged until ctx ends.
func (l *leaderships) notifyLeaderChanges(ctx context.Context) {
	changes := make(chan raft.Observation, 1) // one pending change is enough
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.LeaderObservation)
		return changed
	})
	l.raft.RegisterObserver(observer)
	defer l.raft.DeregisterObserver(observer)
	for {
		reopened := l.raft.Reopened()
		l.config.LeaderChanged()
		select {
		case <-changes:
		case <-reopened:
		case <-ctx.Done():
			return
		}
	}
}

// isReplicatingTo reports whether this node leads in a term and sends entries to a server. It
// returns false once Raft shuts down. It also returns false during a transfer of leadership: Raft
// then accepts no appends, and waits for the server that it sends entries to.
func (l *leaderships) isReplicatingTo(to raft.Server, term uint64) bool {
	if l.transfers.Load() > 0 || l.raft.State() != raft.Leader || l.raft.CurrentTerm() != term {
		return false
	}
	server := l.members.membership().find(string(to.ID))
	return server != nil && server.Address == to.Address
}
