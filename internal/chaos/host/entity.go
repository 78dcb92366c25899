package host

import (
	"context"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/replay"
)

// The orchestrations that clients of every kind call: an entity continues as new every
// EntityInputs events; an approval has an activity that is completed from outside; a blocked one
// never returns from its code.
const (
	Entity   = "chaos.entity"
	Approval = "chaos.approval"
	Blocked  = "chaos.blocked"
)

// Sum is the query that an entity answers. End is the event that ends one; every other is counted.
const (
	Sum = "chaos.sum"
	End = "end"
)

// EntityInputs is how many events an execution of an entity takes.
const EntityInputs = 4

// An EntityInput is what an entity hands on to its next execution, and its output: the sum of its
// updates, and how many events it has taken.
type EntityInput struct{ Sum, Events int }

var (
	entity   = replay.Orchestration[EntityInput, EntityInput](Entity)
	approval = replay.Orchestration[int, int](Approval)
	blocked  = replay.Orchestration[int, int](Blocked)
	sum      = replay.Query[struct{}, int](Sum)
	approve  = replay.Activity[evidence.Task, evidence.Done]("chaos.approve")
)

func runEntity(ctx *replay.Context, in EntityInput) (EntityInput, error) {
	err := sum.Answer(ctx, func(struct{}) (int, error) { return in.Sum, nil })
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

// askForApproval tells the ledger the token by which the attempt is completed.
func (w *Worker) askForApproval(ctx context.Context, task evidence.Task) (evidence.Done, error) {
	effect := w.effectOf(ctx, task)
	effect.Token = replay.ActivityInfo(ctx).Token()
	if err := w.Tell(ctx, effect); err != nil {
		return evidence.Done{}, err
	}
	return evidence.Done{}, replay.ErrPending
}

// blocks is set in a host process. Those who verify histories must not be blocked by them.
var blocks atomic.Bool

// runBlocked blocks outside of durable calls, as faulty code of an application does.
func runBlocked(ctx *replay.Context, n int) (int, error) {
	if _, err := work.Call(ctx, evidence.Task{Label: "before", Value: n}); err != nil {
		return 0, err
	}
	if blocks.Load() {
		select {}
	}
	_, err := number.Wait(ctx)
	return n, err
}
