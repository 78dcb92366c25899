package host

import (
	"context"
	"errors"
	"fmt"
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

// A sender sends events to receivers. A receiver continues as new every ReceiverInputs events.
const (
	Sender         = "chaos.sender"
	Receiver       = "chaos.receiver"
	ReceiverInputs = 3
)

// A SenderInput is the input of a sender. It sends Messages events to each of Receivers, and to
// each one of a type that receivers refuse. Then it cancels the instance Cancel, if that is not "".
type SenderInput struct {
	Receivers []string
	Messages  int
	Cancel    string
}

// A SenderOutput is the output of a sender: how many of its messages its receivers have recorded,
// and how many not.
type SenderOutput struct{ Delivered, Rejected int }

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
	sender   = replay.Orchestration[SenderInput, SenderOutput](Sender)
	receiver = replay.Orchestration[[]string, []string](Receiver)
	refused  = replay.Event[int](Number)
)

func runSender(ctx *replay.Context, in SenderInput) (out SenderOutput, err error) {
	var sending []*replay.Future[struct{}]
	for _, to := range in.Receivers {
		sending = append(sending, replay.Go(ctx, func(ctx *replay.Context) (struct{}, error) {
			for n := range in.Messages {
				if err := out.add(number.SendTo(ctx, to, fmt.Sprintf("%s-%d", ctx.InstanceID(), n))); err != nil {
					return struct{}{}, err
				}
			}
			return struct{}{}, out.add(refused.SendTo(ctx, to, in.Messages))
		}))
	}
	if _, err := replay.All(ctx, sending...); err != nil || in.Cancel == "" {
		return out, err
	}
	return out, out.add(replay.CancelInstance(ctx, in.Cancel, "by a sender"))
}

// add counts the outcome of a message. It returns an error that is no outcome.
func (o *SenderOutput) add(err error) error {
	switch {
	case err == nil:
		o.Delivered++
	case errors.Is(err, replay.ErrNotFound), errors.Is(err, replay.ErrEnded), errors.As(err, new(*replay.PayloadError)):
		o.Rejected++
	default:
		return err
	}
	return nil
}

// runReceiver takes events until End arrives. It skips those that it cannot decode, which it gets
// until all nodes speak the newest protocol.
func runReceiver(ctx *replay.Context, got []string) ([]string, error) {
	for range ReceiverInputs {
		text, err := number.Wait(ctx)
		switch {
		case errors.As(err, new(*replay.PayloadError)):
			continue
		case err != nil || text == End:
			return got, err
		}
		got = append(got, text)
	}
	return got, receiver.ContinueAsNew(ctx, got)
}

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
