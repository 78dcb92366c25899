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

// Retention says how long instances are kept after the end of their run, by how
// it ended. Then the leader purges them, with everything that is kept of them,
// and their IDs are free again. Zero means for ever.
//
// Instances that relatives still need are kept longer: a child until its parent
// has recorded its end, a parent until its children have ended.
type Retention struct {
	Completed  time.Duration
	Failed     time.Duration
	Cancelled  time.Duration
	Terminated time.Duration
}

func (r Retention) negative() bool {
	return min(r.Completed, r.Failed, r.Cancelled, r.Terminated) < 0
}

// of returns for how long an instance with that status is kept, 0 for ever.
func (r Retention) of(status journalpb.Status) time.Duration {
	switch status {
	case journalpb.Status_STATUS_COMPLETED:
		return r.Completed
	case journalpb.Status_STATUS_FAILED:
		return r.Failed
	case journalpb.Status_STATUS_CANCELLED:
		return r.Cancelled
	case journalpb.Status_STATUS_TERMINATED:
		return r.Terminated
	}
	return 0
}

// shortest returns the shortest time for which anything is kept, 0 if all is
// kept for ever.
func (r Retention) shortest() time.Duration {
	shortest := time.Duration(0)
	for _, d := range []time.Duration{r.Completed, r.Failed, r.Cancelled, r.Terminated} {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}

// Sweeps are slow on purpose: what is kept a little longer does no harm, and what
// runs is to notice nothing.
const (
	sweepPauseLeast  = time.Minute // between sweeps, unless Retention is shorter
	sweepBatch       = 100         // instances in one purge
	sweepBatchPause  = 20 * time.Millisecond
	sweepLooked      = 1000 // instances looked at before a pause
	sweepLookedPause = 5 * time.Millisecond
)

// A store is what a keeper needs of a journal.
type store interface {
	Instance(id string) (*journalpb.Instance, bool)
	Instances() iter.Seq[*journalpb.Instance]
	OpenOf(instance string) iter.Seq[*journalpb.Operation]
	Orphans() iter.Seq[*journalpb.Instance]
	Purge(p *journalpb.Purge, done func(purged int, err error))
}

// A keeper purges what has been kept long enough, during one reign. It remembers
// nothing: the next leader sees from the journal what is left to do.
type keeper struct {
	store     store
	retention Retention
	epoch     uint64
	now       func() clustertime.Time
	logger    *slog.Logger
	others    others
}

func newKeeper(g *group, epoch uint64) *keeper {
	return &keeper{store: g.journal, retention: g.config.Retention, epoch: epoch, now: g.journal.Now, logger: g.config.Logger, others: othersOf(g)}
}

// keep sweeps again and again, until ctx ends.
func (k *keeper) keep(ctx context.Context) {
	shortest := k.retention.shortest()
	if shortest == 0 {
		return
	}
	for ctx.Err() == nil {
		next, err := k.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			k.logger.Warn("purge by retention", "error", err)
		}
		pause(ctx, max(next.Sub(k.now()), min(sweepPauseLeast, shortest)))
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sweep purges what is due, in batches, and returns when something will be due
// next, of what is there now and of what may end meanwhile.
func (k *keeper) sweep(ctx context.Context) (next clustertime.Time, err error) {
	next = k.now().Add(k.retention.shortest())
	kin, err := newRelatives(ctx, k.store, k.others, k.now())
	if err != nil {
		return next, err
	}
	var batch []string
	looked := 0
	for known := range k.store.Instances() {
		if looked++; looked%sweepLooked == 0 {
			pause(ctx, sweepLookedPause)
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
		case !kin.need(known):
			batch = append(batch, known.Instance)
		}
		if len(batch) == sweepBatch {
			if err := k.purge(ctx, batch); err != nil {
				return next, err
			}
			batch = nil
			pause(ctx, sweepBatchPause)
		}
	}
	return next, k.purge(ctx, batch)
}

// due tells when an instance is to be purged, and whether it is at all.
func (k *keeper) due(known *journalpb.Instance) (clustertime.Time, bool) {
	kept := k.retention.of(known.Status)
	return clustertime.FromUnix(known.UpdatedAt).Add(kept), kept > 0
}

func (k *keeper) purge(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	purged, err := purge(ctx, k.store, k.epoch, ids)
	if err == nil {
		k.logger.Debug("purged by retention", "instances", purged)
	}
	return err
}

// relatives tells which instances others still need. It remembers what it has
// learned, which errs on the side of keeping.
type relatives struct {
	store   store
	others  others
	since   clustertime.Time // when the others' replicas were caught up with
	parents map[string]bool  // that do not wait, or are in this group and not in that of the child, while children of theirs run
	looked  map[string]bool  // parents whose open operations are in awaited
	awaited map[operationKey]bool
}

type operationKey struct {
	instance                        string
	incarnation, execution, eventID uint64
}

func keyOf(ref *journalpb.OperationRef) operationKey {
	return operationKey{ref.GetInstance(), ref.GetIncarnation(), ref.GetExecution(), ref.GetEventId()}
}

// newRelatives looks at the instances of a store and of the other groups, at a time
// by the store's clock.
func newRelatives(ctx context.Context, s store, o others, now clustertime.Time) (*relatives, error) {
	r := &relatives{
		store: s, others: o, since: now,
		parents: make(map[string]bool), looked: make(map[string]bool), awaited: make(map[operationKey]bool),
	}
	for _, g := range o {
		if err := g.catchUp(ctx); err != nil {
			return nil, fmt.Errorf("look at other groups: %w", err)
		}
		for child := range g.journal.Orphans() {
			r.parents[child.GetParent().GetInstance()] = true
		}
	}
	for child := range s.Orphans() {
		r.parents[child.GetParent().GetInstance()] = true
	}
	return r, nil
}

// others are the other groups of the cluster.
type others []*group

func othersOf(g *group) (o others) {
	for _, other := range g.groups {
		if other != g {
			o = append(o, other)
		}
	}
	return o
}

// holding returns the group among them that an instance belongs to, nil if none does.
func (o others) holding(instance string) *group {
	for _, g := range o {
		if g.of(instance) == g {
			return g
		}
	}
	return nil
}

// elsewhere tells whether another group still needs an instance that has ended:
// its parent there waits for it, or the start that has begun it waits to be
// acknowledged there and would begin it again. Of one that is younger than what is
// known of the others, that is not sure.
func (r *relatives) elsewhere(known *journalpb.Instance) bool {
	if len(r.others) == 0 {
		return false
	}
	if known.CreatedAt >= r.since.UnixNano() {
		return true
	}
	for _, g := range r.others {
		if g.journal.WaitsToStart(known.Instance) {
			return true
		}
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	g := r.others.holding(parent.Instance)
	if g == nil {
		return false
	}
	for operation := range g.journal.OpenOf(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// need tells whether a relative still needs an instance that has ended: it has
// children that run, of which its history may decide what becomes of them, or a
// parent that has not recorded its end and would start it again.
func (r *relatives) need(known *journalpb.Instance) bool {
	if r.parents[known.Instance] || r.elsewhere(known) {
		return true
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	if !r.looked[parent.Instance] {
		r.looked[parent.Instance] = true
		for operation := range r.store.OpenOf(parent.Instance) {
			r.awaited[keyOf(operation.Ref)] = true
		}
	}
	if r.awaited[keyOf(parent)] {
		return true
	}
	for operation := range r.store.OpenOf(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// purge has instances purged and tells how many were.
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

// purge purges what a client has named, but what is still needed. A purge that is repeated
// may have been done before: it removes nothing if a run of one of the IDs may have begun since.
func (g *group) purge(ctx context.Context, p *actors.Partition, request *clusterpb.Request, r *clusterpb.PurgeRequest) (*clusterpb.Response, error) {
	kin, err := newRelatives(ctx, g.journal, othersOf(g), g.journal.Now())
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, id := range r.Instances {
		known, ok := g.journal.Instance(id)
		if !ok || kin.need(known) {
			continue
		}
		if request.FirstIndex != nil {
			if err := g.sameRun(id, "", request.GetFirstIndex()); err != nil {
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
