package journal

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/state"
)

func openClusterClock(c *Config, machine *state.Machine, stable raft.StableStore) *clock.Clock {
	term := func() uint64 { return raftlog.CurrentTerm(stable) }
	return clock.New(c.WallClock, term, machine.Clock(), machine.Epoch(), clock.ReadSample(c.Dir))
}

// clockedFSM passes recorded times to the clock.
type clockedFSM struct {
	*fsm
	clock *clock.Clock
}

// Apply implements raft.FSM.
func (f *clockedFSM) Apply(log *raft.Log) any {
	result := f.fsm.Apply(log)
	f.clock.Observe(f.machine.Clock(), f.machine.Epoch(), log.Term)
	return result
}

// Now returns the cluster time. The leader records it in the journal once a second, and all nodes
// continue it by their monotonic clocks. It never goes back on a node that leads, and setting a
// wall clock does not change it. It runs at the rate of real time, or faster by one part in 2,000
// while it is behind the leader's wall clock. On a node that does not lead it may be behind. Until
// such a node has received a leader's time, Now continues the time that was recorded last before
// the start.
func (j *Journal) Now() clustertime.Time { return j.clock.Now() }

// IsClockCurrent reports whether the cluster time is current: a leader's time was received since
// the start, or this node has begun to lead.
func (j *Journal) IsClockCurrent() bool { return j.clock.IsCurrent() }

// collectClockReadings returns the readings of the other voters that answer within
// clock.RequestTimeout.
func (j *Journal) collectClockReadings(ctx context.Context) (known []clock.Reading) {
	if j.config.Network == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clock.RequestTimeout)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, server := range j.membership().servers {
		if server.Suffrage != raft.Voter || string(server.ID) == j.config.Node {
			continue
		}
		asking.Go(func() {
			r, err := j.requestClockReading(ctx, j.config.resolve(&server))
			if err != nil {
				j.config.Logger.Warn("cannot get cluster time from node", "node", server.ID, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			known = append(known, r)
		})
	}
	asking.Wait()
	return known
}

func (j *Journal) requestClockReading(ctx context.Context, address string) (clock.Reading, error) {
	conn, err := j.config.Network.Dial(address, clock.RequestTimeout)
	if err != nil {
		return clock.Reading{}, err
	}
	return clock.RequestReading(ctx, conn, clock.Request{Cluster: j.config.Cluster, Node: j.config.Node})
}

// commitClockOnPipelineEnd commits the cluster time after a pipeline has ended, until ctx ends. The
// new entry makes Raft open another pipeline at once. Otherwise Raft would send nothing to that
// server until the next entry, or until Config.CommitTimeout has passed.
func (j *Journal) commitClockOnPipelineEnd(ctx context.Context) {
	for {
		select {
		case <-j.clockCommitDue:
		case <-ctx.Done():
			return
		}
		j.recordClock()
		select {
		case <-time.After(pollInterval): // a server may reject every pipeline
		case <-ctx.Done():
			return
		}
	}
}
