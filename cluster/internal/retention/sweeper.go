package retention

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Periods are how long instances are kept after their run has ended, by how it ended. Zero means
// forever.
type Periods struct {
	Completed  time.Duration
	Failed     time.Duration
	Canceled   time.Duration
	Terminated time.Duration
}

// forStatus returns how long an instance with that status is kept, 0 for forever.
func (p Periods) forStatus(status journalpb.Status) time.Duration {
	switch status {
	case journalpb.Status_STATUS_COMPLETED:
		return p.Completed
	case journalpb.Status_STATUS_FAILED:
		return p.Failed
	case journalpb.Status_STATUS_CANCELED:
		return p.Canceled
	case journalpb.Status_STATUS_TERMINATED:
		return p.Terminated
	}
	return 0
}

// shortest returns the shortest retention, 0 if everything is kept forever.
func (p Periods) shortest() time.Duration {
	shortest := time.Duration(0)
	for _, d := range []time.Duration{p.Completed, p.Failed, p.Canceled, p.Terminated} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}

// Sweeps are slow on purpose: keeping an instance a little longer does no harm, and running
// instances must not be delayed.
const (
	sweepIntervalMin = time.Minute // between sweeps, unless Retention is shorter
	sweepBatch       = 100         // instances in one purge
	sweepBatchPause  = 20 * time.Millisecond
	sweepScanBatch   = 1000 // instances scanned before a pause
	sweepScanPause   = 5 * time.Millisecond
)

// A Store is the part of a journal that a Sweeper uses.
type Store interface {
	Instance(id string) (*journalpb.Instance, bool)
	Instances() iter.Seq[*journalpb.Instance]
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
	Orphans() iter.Seq[*journalpb.Instance]
	Purge(p *journalpb.Purge, done func(purged int, err error))
}

// A Sweeper purges instances whose retention is over, during one leadership. It keeps no state: the
// next leader finds in the journal the instances that are left to purge.
type Sweeper struct {
	Store Store
	// Periods returns the periods that apply. Changed returns a channel that is closed when they
	// change next.
	Periods         func() Periods
	Changed         func() <-chan struct{}
	Epoch           uint64
	Now             func() clustertime.Time
	Logger          *slog.Logger
	OtherPartitions []Partition
}

// Run sweeps repeatedly until ctx ends. When the periods change, it ends a sweep and begins anew.
func (s *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.runUntilChanged(ctx)
	}
}

// runUntilChanged sweeps repeatedly until the periods change or ctx ends.
func (s *Sweeper) runUntilChanged(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	changed := s.Changed() // before the periods are read
	watching.Go(func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	})
	shortest := s.Periods().shortest()
	if shortest == 0 {
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		next, err := s.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("cannot purge the instances whose retention has passed; trying again in the next sweep", "error", err)
		}
		sleepContext(ctx, max(next.Sub(s.Now()), min(sweepIntervalMin, shortest)))
	}
}

func sleepContext(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sweep purges the instances that are due, in batches. It returns the earliest time at which
// another instance can be due. That is at most the shortest retention away, because running
// instances may end meanwhile.
func (s *Sweeper) sweep(ctx context.Context) (next clustertime.Time, err error) {
	references, err := NewReferences(ctx, s.Store, s.OtherPartitions, s.Now())
	if err != nil {
		return next, err
	}
	periods := s.Periods() // which that has brought up to date
	next = s.Now().Add(periods.shortest())
	var batch []string
	visited := 0
	for known := range s.Store.Instances() {
		if visited++; visited%sweepScanBatch == 0 {
			sleepContext(ctx, sweepScanPause)
		}
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		due, ok := periods.due(known)
		switch {
		case !ok:
		case due.After(s.Now()):
			if due.Before(next) {
				next = due
			}
		case !references.IsReferenced(known):
			batch = append(batch, known.Instance)
		}
		if len(batch) == sweepBatch {
			if err := s.purge(ctx, batch); err != nil {
				return next, err
			}
			batch = nil
			sleepContext(ctx, sweepBatchPause)
		}
	}
	return next, s.purge(ctx, batch)
}

// due returns when an instance is to be purged, and whether it is to be purged at all.
func (p Periods) due(known *journalpb.Instance) (clustertime.Time, bool) {
	retained := p.forStatus(known.Status)
	return clustertime.FromUnixNano(known.UpdatedAt).Add(retained), retained > 0
}

func (s *Sweeper) purge(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	purged, err := Purge(ctx, s.Store, s.Epoch, ids)
	if err == nil {
		s.Logger.Debug("expired instances purged", "instances", purged)
	}
	return err
}

// Purge purges instances and returns how many were purged.
func Purge(ctx context.Context, s Store, epoch uint64, ids []string) (int, error) {
	type outcome struct {
		purged int
		err    error
	}
	outcomes := make(chan outcome, 1)
	s.Purge(&journalpb.Purge{Epoch: epoch, Instances: ids}, func(purged int, err error) {
		outcomes <- outcome{purged, err}
	})
	select {
	case o := <-outcomes:
		return o.purged, o.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
