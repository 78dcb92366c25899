package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// reign is a stretch of leadership, from the commit of its epoch on.
type reign struct {
	term   uint64
	epoch  uint64
	began  time.Time
	cancel context.CancelFunc
	ended  chan struct{} // closed when Lead has returned
}

// follow follows Raft's leadership until ctx ends. Raft keeps only the latest
// change for it, which is enough: a second gain in a row means that leadership
// was lost in between.
func (j *Journal) follow(ctx context.Context) {
	defer j.abdicate()
	opening := newOpening(j)
	defer opening.end()
	var again <-chan time.Time
	clock := time.NewTicker(clockEvery)
	defer clock.Stop()
	for {
		var leading bool
		reopened := j.raft.reopened() // before LeaderCh is asked for
		select {
		case <-ctx.Done():
			return
		case <-reopened: // as a follower
		case <-j.fence.drawn:
			return // for good, even if Raft should elect this node once more
		case leading = <-j.raft.LeaderCh():
		case <-j.disk.changed:
			leading = !j.disk.hangs() && j.raft.State() == raft.Leader
		case <-clock.C:
			j.recordClock()
			continue
		case <-again:
			leading = j.raft.State() == raft.Leader
		}
		again = nil
		opening.begin()
		j.abdicate()
		if !leading {
			opening.end()
			continue
		}
		if err := j.crown(ctx); err != nil && ctx.Err() == nil {
			// Mostly because leadership is lost already. If it is not, nobody
			// else would take it up.
			j.config.Logger.Warn("leadership not taken up", "error", err)
			again = time.After(crownAgain)
			continue
		}
		opening.end()
	}
}

// An opening watches how long a node takes to serve after a change of leadership. While
// it is still ending what it did as the leader before, Raft may elect it once more, and
// nobody would serve. So a leader that does not serve within resignAfter hands leadership
// over, and again for as long as both last.
type opening struct {
	journal *Journal
	pending atomic.Bool
	timer   *time.Timer
}

// resignAfter is longer than a leader takes that is only slow.
const resignAfter = 5 * time.Second

func newOpening(j *Journal) *opening {
	o := &opening{journal: j}
	o.timer = time.AfterFunc(resignAfter, o.late)
	o.timer.Stop()
	return o
}

// begin is called when leadership has changed, or is tried again.
func (o *opening) begin() {
	if !o.pending.Swap(true) {
		o.timer.Reset(resignAfter)
	}
}

// end is called when the node serves, or does not lead and has ended what it did before.
func (o *opening) end() {
	o.pending.Store(false)
	o.timer.Stop()
}

func (o *opening) late() {
	if o.pending.Load() {
		o.journal.resign()
		o.timer.Reset(resignAfter)
	}
}

// resign hands leadership to another node if this one leads without serving.
func (j *Journal) resign() {
	if j.IsLeader() || j.raft.State() != raft.Leader || len(j.raft.GetConfiguration().Configuration().Servers) == 1 {
		return
	}
	j.callers.start(func() {
		j.transfers.Add(1)
		defer j.transfers.Add(-1)
		j.config.Logger.Warn("this node was elected and cannot open its partition; handing leadership over", "after", resignAfter)
		if err := j.raft.LeadershipTransfer().Error(); err != nil {
			j.config.Logger.Warn("leadership not handed over, trying again", "error", err)
			j.awaitTransferOver()
		}
	})
}

// crownAgain is the pause before a leader tries once more to begin its reign.
const crownAgain = 100 * time.Millisecond

// crown begins a reign: everything committed before is applied, the epoch is
// committed, appends are accepted, Lead is called.
func (j *Journal) crown(ctx context.Context) error {
	if err := j.fence.err(); err != nil {
		return err
	}
	if err := j.raft.Barrier(enqueueTimeout).Error(); err != nil {
		return fmt.Errorf("wait for earlier entries: %w", outcome(err))
	}
	begun := j.clock.begin(func() []clockReading { return j.askTime(ctx) })
	future := j.raft.Apply(packEntry(encodeEpoch(j.config.Node, begun.UnixNano())), enqueueTimeout)
	if err := future.Error(); err != nil {
		j.clock.end()
		return fmt.Errorf("commit epoch: %w", outcome(err))
	}
	result, ok := future.Response().(*applied)
	if !ok {
		j.clock.end()
		return fmt.Errorf("commit epoch: %w", j.fence.err())
	}
	reignCtx, cancel := context.WithCancel(ctx)
	r := &reign{term: result.term, epoch: result.outcomes[0], began: time.Now(), cancel: cancel, ended: make(chan struct{})}
	j.clock.lead(r.epoch)
	j.config.Logger.Info("leading", "epoch", r.epoch, "term", r.term)
	j.queue.accept() // first: whoever sees the reign may append
	j.reign.Store(r)
	go func() {
		defer close(r.ended)
		var tending sync.WaitGroup
		tending.Go(func() { j.tend(reignCtx) })
		defer tending.Wait()
		if j.config.Lead != nil {
			j.config.Lead(reignCtx, r.epoch)
		}
	}()
	return nil
}

// abdicate ends the reign, if there is one, and waits for Lead.
func (j *Journal) abdicate() {
	r := j.reign.Swap(nil)
	if r == nil {
		return
	}
	j.queue.refuse(ErrNotLeader)
	r.cancel()
	<-r.ended
	j.clock.end()
	j.config.Logger.Info("no longer leading", "epoch", r.epoch)
}

// enqueueTimeout bounds how long a new leader waits for Raft's main loop to take
// its first entries.
const enqueueTimeout = 10 * time.Second

// IsLeader reports whether this node leads and its epoch is committed: whether
// Append is of any use here. It may have changed when it returns.
func (j *Journal) IsLeader() bool { return j.reign.Load() != nil }

// Leader returns the node that leads and its address, as far as this node
// knows; empty if it does not know.
func (j *Journal) Leader() (node, address string) {
	a, id := j.raft.LeaderWithID()
	address, _ = splitAddress(a)
	return string(id), address
}

// tellLeader calls Config.LeaderChanged until ctx ends.
func (j *Journal) tellLeader(ctx context.Context) {
	changes := make(chan raft.Observation, 1) // those that find it full change nothing
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.LeaderObservation)
		return changed
	})
	j.raft.RegisterObserver(observer)
	defer j.raft.DeregisterObserver(observer)
	for {
		reopened := j.raft.reopened()
		j.config.LeaderChanged()
		select {
		case <-changes:
		case <-reopened:
		case <-ctx.Done():
			return
		}
	}
}

// TransferLeadership hands leadership to the follower that is least behind and
// returns when this node no longer leads. Appends are refused with ErrNotLeader
// meanwhile. When ctx ends first the transfer goes on; the Raft library gives it
// up after the election timeout. It returns ErrNotLeader on a node that does not
// lead and ErrAlone in a group of one.
func (j *Journal) TransferLeadership(ctx context.Context) error {
	return j.transfer(ctx, func() raft.Future { return j.raft.LeadershipTransfer() })
}

// TransferLeadershipTo is TransferLeadership to one node. It returns ErrNotMember
// if that has no vote.
func (j *Journal) TransferLeadershipTo(ctx context.Context, node string) error {
	to := j.roster().find(node)
	if to == nil || to.Suffrage != raft.Voter {
		return ErrNotMember
	}
	return j.transfer(ctx, func() raft.Future { return j.raft.LeadershipTransferToServer(to.ID, to.Address) })
}

// awaitTransferOver returns when Raft has let go of a transfer that has failed. That may
// be long after it has said so: it waits for the node that was to lead, and takes no
// appends meanwhile.
func (j *Journal) awaitTransferOver() {
	for errors.Is(j.raft.Barrier(enqueueTimeout).Error(), raft.ErrLeadershipTransferInProgress) {
		select {
		case <-time.After(lookEvery):
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
		return ErrAlone
	}
	select {
	case <-j.recordClock(): // whoever takes over has heard of it then
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
			j.awaitTransferOver()
		}
	}) {
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	case err := <-result:
		if err != nil && errors.Is(outcome(err), ErrNotLeader) {
			return ErrNotLeader
		}
		if err != nil {
			return fmt.Errorf("transfer leadership: %w", err)
		}
		return nil
	}
}
