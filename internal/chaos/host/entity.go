package host

import (
	"context"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/replay"
)

// The orchestrations that all kinds of clients call. An entity continues as new every EntityInputs
// events. An approval has an externally completed activity. A blocked instance never returns from
// its code.
const (
	Entity   = "chaos.entity"
	Approval = "chaos.approval"
	Blocked  = "chaos.blocked"
)

// Sum is the query that an entity answers. End is the event that ends it; every other event is
// counted.
const (
	Sum = "chaos.sum"
	End = "end"
)

// EntityInputs is the number of events that one execution of an entity takes.
const EntityInputs = 4

// An EntityInput is the input of each execution of an entity, and its output: the sum of its
// updates, and the number of its events.
type EntityInput struct{ Sum, Events int }

var (
	entity   = replay.Orchestration[EntityInput, EntityInput](Entity)
	approval = replay.Orchestration[int, int](Approval)
	blocked  = replay.Orchestration[int, int](Blocked)
	sum      = replay.Query[struct{}, int](Sum)
	approve  = replay.Activity[evidence.Task, evidence.TaskResult]("chaos.approve")
)

func runEntity(ctx *replay.Context, in EntityInput) (EntityInput, error) {
	err := sum.Handle(ctx, func(struct{}) (int, error) { return in.Sum, nil })
	if err == nil {
		err = add.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) {
			in.Sum += n
			return in.Sum, nil
		})
	}
	if err != nil {
		return in, err
	}
	for range EntityInputs {
		event, err := number.Wait(ctx)
		if err != nil || event == End {
			return in, err
		}
		in.Events++
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return in, err
	}
	return in, entity.ContinueAsNew(ctx, in)
}

func runApproval(ctx *replay.Context, value int) (int, error) {
	done, err := approve.Call(ctx, evidence.Task{Label: "approval", Value: value})
	return done.Value, err
}

// askForApproval reports the attempt's token to the ledger.
func (w *Worker) askForApproval(ctx context.Context, task evidence.Task) (evidence.TaskResult, error) {
	effect := w.effectOf(ctx, task)
	effect.Token = replay.ActivityInfo(ctx).Token()
	if err := w.Report(ctx, effect); err != nil {
		return evidence.TaskResult{}, err
	}
	return evidence.TaskResult{}, replay.ErrResultPending
}

// blockingEnabled is set in host processes only. A process that replays histories must not block.
var blockingEnabled atomic.Bool

// runBlocked blocks outside of durable calls, like faulty application code.
func runBlocked(ctx *replay.Context, n int) (int, error) {
	if _, err := work.Call(ctx, evidence.Task{Label: "before", Value: n}); err != nil {
		return 0, err
	}
	if blockingEnabled.Load() {
		select {}
	}
	_, err := number.Wait(ctx)
	return n, err
}
