package actors

import (
	"context"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/actors/worker"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// leadActivities opens the activities of the partition.
func (p *Partition) leadActivities() *activity.Partition {
	return p.system.activities.Lead(activity.PartitionConfig{
		Context: p.context, ErrStopped: ErrStopped, Epoch: p.epoch, Now: p.now, Logger: p.logger,
		Journal: p.journal, Timers: p.timers, Instances: activityInstances{p},
		Worker: localWorker{p.system.worker, p.config.Partition},
	})
}

// activityInstances implements activity.Instances.
type activityInstances struct{ partition *Partition }

func (a activityInstances) Complete(ref *journalpb.OperationRef, event *journalpb.Event, f activity.Finisher) {
	a.partition.sender.deliverReliably(ref.Instance, completion(ref, event, func(answer Answer) { f.Finish(answer.Dropped) }))
}

func (a activityInstances) DeferUntilRecovered(instance string, f func()) bool {
	return a.partition.recovery.deferUntilRecovered(instance, f)
}

func (a activityInstances) IsRecovered(instance string) bool {
	r := a.partition.recovery
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isRecovered(instance)
}

// CompleteActivity ends an attempt from outside; see [activity.Partition.Complete]. done gets
// [ErrStopped] if the partition is closed.
func (p *Partition) CompleteActivity(c activity.Completion, done func(error)) {
	p.activities.Complete(c, done)
}

// AttemptsOf returns how far the attempts of an activity have come.
func (p *Partition) AttemptsOf(ref *journalpb.OperationRef) activity.Attempts {
	return p.activities.AttemptsOf(ref)
}

// Registration returns what a node has registered, nil if it is not a worker of the partition. The
// caller must not change it.
func (p *Partition) Registration(node string) *clusterpb.RegisterWorker {
	return p.activities.Registration(node)
}

// RunsOnWorker reports whether an attempt runs on a worker of a client that is no node; see
// [activity.Partition.RunsOnWorker].
func RunsOnWorker(p *Partition, id *clusterpb.AttemptID, client string) (runs, known bool) {
	return p.activities.RunsOnWorker(id, client)
}

// WorkerLoads returns how much is in use of each connected worker that is no node; see
// [activity.Partition.Loads].
func WorkerLoads(p *Partition) map[*clusterpb.RegisterWorker]activity.Load {
	return p.activities.Loads()
}

// ServeWorker lets a worker run activities of the partition; see [activity.Partition.ServeWorker].
func (p *Partition) ServeWorker(ctx context.Context, pings session.Pings, in <-chan *clusterpb.FromWorker, out chan<- *clusterpb.ToWorker) error {
	return p.activities.ServeWorker(ctx, pings, in, out)
}

// localWorker implements activity.LocalWorker for one partition.
type localWorker struct {
	*worker.Worker
	partition int
}

func (l localWorker) Handle(leader session.Sender[clusterpb.FromWorker], m *clusterpb.ToWorker) *clusterpb.FromWorker {
	return l.Worker.Handle(l.partition, leader, m)
}

func (l localWorker) Acknowledge(leader session.Sender[clusterpb.FromWorker], id *clusterpb.AttemptID) *clusterpb.FromWorker {
	return l.Worker.Acknowledge(l.partition, leader, id)
}

func (l localWorker) Register(leader session.Sender[clusterpb.FromWorker]) []*clusterpb.FromWorker {
	return l.RegisterLocal(l.partition, leader)
}

func (l localWorker) Unregister(leader session.Sender[clusterpb.FromWorker]) {
	l.Worker.Unregister(l.partition, leader)
}
