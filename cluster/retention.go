package cluster

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Retention is how long instances are kept after their run has ended, by how it ended. Then the
// leader purges them with everything that belongs to them, and their IDs are free again. Zero means
// forever.
//
// Instances that relatives still need are kept longer: a child until its parent has recorded its
// end, a parent until its children have ended.
type Retention struct {
	Completed  time.Duration
	Failed     time.Duration
	Canceled   time.Duration
	Terminated time.Duration
}

func (r Retention) isNegative() bool {
	return min(r.Completed, r.Failed, r.Canceled, r.Terminated) < 0
}

// forStatus returns how long an instance with that status is kept, 0 for forever.
func (r Retention) forStatus(status journalpb.Status) time.Duration {
	switch status {
	case journalpb.Status_STATUS_COMPLETED:
		return r.Completed
	case journalpb.Status_STATUS_FAILED:
		return r.Failed
	case journalpb.Status_STATUS_CANCELED:
		return r.Canceled
	case journalpb.Status_STATUS_TERMINATED:
		return r.Terminated
	}
	return 0
}

// shortest returns the shortest retention, 0 if everything is kept forever.
func (r Retention) shortest() time.Duration {
	shortest := time.Duration(0)
	for _, d := range []time.Duration{r.Completed, r.Failed, r.Canceled, r.Terminated} {
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

// A store is the part of a journal that a retentionSweeper uses.
type store interface {
	Instance(id string) (*journalpb.Instance, bool)
	Instances() iter.Seq[*journalpb.Instance]
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
	Orphans() iter.Seq[*journalpb.Instance]
	Purge(p *journalpb.Purge, done func(purged int, err error))
}

// A retentionSweeper purges instances whose retention is over, during one leadership. It keeps no
// state: the next leader finds in the journal what is left to purge.
type retentionSweeper struct {
	store           store
	retention       Retention
	epoch           uint64
	now             func() clustertime.Time
	logger          *slog.Logger
	otherPartitions otherPartitions
}

func newRetentionSweeper(g *partition, epoch uint64) *retentionSweeper {
	return &retentionSweeper{store: g.journal, retention: g.config.Retention, epoch: epoch, now: g.journal.Now, logger: g.config.Logger, otherPartitions: otherPartitionsOf(g)}
}

// run sweeps repeatedly until ctx ends.
func (k *retentionSweeper) run(ctx context.Context) {
	shortest := k.retention.shortest()
	if shortest == 0 {
		return
	}
	for ctx.Err() == nil {
		next, err := k.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			k.logger.Warn("cannot purge by retention, will try again", "error", err)
		}
		sleepContext(ctx, max(next.Sub(k.now()), min(sweepIntervalMin, shortest)))
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

// sweep purges what is due, in batches. It returns the earliest time at which another instance can
// be due. That is at most the shortest retention away, because running instances may end meanwhile.
func (k *retentionSweeper) sweep(ctx context.Context) (next clustertime.Time, err error) {
	next = k.now().Add(k.retention.shortest())
	references, err := newReferences(ctx, k.store, k.otherPartitions, k.now())
	if err != nil {
		return next, err
	}
	var batch []string
	visited := 0
	for known := range k.store.Instances() {
		if visited++; visited%sweepScanBatch == 0 {
			sleepContext(ctx, sweepScanPause)
		}
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		due, ok := k.due(known)
		switch {
		case !ok:
		case due.After(k.now()):
			if due.Before(next) {
				next = due
			}
		case !references.isReferenced(known):
			batch = append(batch, known.Instance)
		}
		if len(batch) == sweepBatch {
			if err := k.purge(ctx, batch); err != nil {
				return next, err
			}
			batch = nil
			sleepContext(ctx, sweepBatchPause)
		}
	}
	return next, k.purge(ctx, batch)
}

// due returns when an instance is to be purged, and whether it is to be purged at all.
func (k *retentionSweeper) due(known *journalpb.Instance) (clustertime.Time, bool) {
	retained := k.retention.forStatus(known.Status)
	return clustertime.FromUnixNano(known.UpdatedAt).Add(retained), retained > 0
}

func (k *retentionSweeper) purge(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	purged, err := purge(ctx, k.store, k.epoch, ids)
	if err == nil {
		k.logger.Debug("purged by retention", "instances", purged)
	}
	return err
}

// references finds the ended instances that a relative or another partition still needs. It caches
// what it reads. An outdated cache entry can only keep an instance longer.
type references struct {
	store           store
	otherPartitions otherPartitions
	knownAt         clustertime.Time // from before this node caught up with the other partitions
	// parentsOfOrphans of running children that they do not wait for, or that another partition owns
	parentsOfOrphans map[string]bool
	scanned          map[string]bool // parents whose open operations are in awaited
	openOperations   map[operationKey]bool
}

type operationKey struct {
	instance                        string
	incarnation, execution, eventID uint64
}

func operationKeyOf(ref *journalpb.OperationRef) operationKey {
	return operationKey{ref.GetInstance(), ref.GetIncarnation(), ref.GetExecution(), ref.GetEventId()}
}

// newReferences reads the instances of a store and of the other partitions. now is the store's
// time.
func newReferences(ctx context.Context, s store, o otherPartitions, now clustertime.Time) (*references, error) {
	r := &references{
		store: s, otherPartitions: o, knownAt: now,
		parentsOfOrphans: make(map[string]bool), scanned: make(map[string]bool), openOperations: make(map[operationKey]bool),
	}
	for _, g := range o {
		if err := g.catchUp(ctx); err != nil {
			return nil, fmt.Errorf("read other partitions: %w", err)
		}
		for child := range g.journal.Orphans() {
			r.parentsOfOrphans[child.GetParent().GetInstance()] = true
		}
	}
	for child := range s.Orphans() {
		r.parentsOfOrphans[child.GetParent().GetInstance()] = true
	}
	return r, nil
}

// otherPartitions are the other partitions of the cluster.
type otherPartitions []*partition

func otherPartitionsOf(g *partition) (o otherPartitions) {
	for _, other := range g.partitions {
		if other != g {
			o = append(o, other)
		}
	}
	return o
}

// ownerOf returns the partition among them that owns an instance, nil if none does.
func (o otherPartitions) ownerOf(instance string) *partition {
	for _, g := range o {
		if g.partitionOf(instance) == g {
			return g
		}
	}
	return nil
}

// isReferencedByOthers reports whether another partition still needs an ended instance. Its parent
// there may wait for it. Or a chained start there is not acknowledged yet and would start the
// instance again. An instance created after since counts as referenced, because this node may not
// know what the other partitions say about it.
func (r *references) isReferencedByOthers(known *journalpb.Instance) bool {
	if len(r.otherPartitions) == 0 {
		return false
	}
	if known.CreatedAt >= r.knownAt.UnixNano() {
		return true
	}
	for _, g := range r.otherPartitions {
		if g.journal.HasChainedStart(known.Instance) {
			return true
		}
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	g := r.otherPartitions.ownerOf(parent.Instance)
	if g == nil {
		return false
	}
	for operation := range g.journal.InstanceOperations(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// isReferenced reports whether a relative or another partition still needs an ended instance.
// Running children may need its history, which decides what happens to them. A parent that has not
// recorded the instance's end would start it again.
func (r *references) isReferenced(known *journalpb.Instance) bool {
	if r.parentsOfOrphans[known.Instance] || r.isReferencedByOthers(known) {
		return true
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	if !r.scanned[parent.Instance] {
		r.scanned[parent.Instance] = true
		for operation := range r.store.InstanceOperations(parent.Instance) {
			r.openOperations[operationKeyOf(operation.Ref)] = true
		}
	}
	if r.openOperations[operationKeyOf(parent)] {
		return true
	}
	for operation := range r.store.InstanceOperations(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// purge purges instances and returns how many were purged.
func purge(ctx context.Context, s store, epoch uint64, ids []string) (int, error) {
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

// purge purges the instances that a client names, except those still needed. An earlier attempt of
// a retried purge may have been executed. A retry therefore purges nothing if a run under one of
// the IDs may have begun since.
func (g *partition) purge(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.PurgeRequest) (*clusterpb.Response, error) {
	references, err := newReferences(ctx, g.journal, otherPartitionsOf(g), g.journal.Now())
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, id := range r.Instances {
		known, ok := g.journal.Instance(id)
		if !ok || references.isReferenced(known) {
			continue
		}
		if request.FirstIndex != nil {
			if err := g.checkSameRun(id, "", request.GetFirstIndex()); err != nil {
				return nil, fmt.Errorf("%w: instance %s", err, id)
			}
		}
		ids = append(ids, id)
	}
	purged, err := purge(ctx, g.journal, p.Epoch(), ids)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Purge{Purge: &clusterpb.PurgeResult{Purged: uint32(purged)}}}, nil
}
