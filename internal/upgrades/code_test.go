package upgrades

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// This is the code of the instances in testdata/releases. It must keep what the recorded histories
// have; for something new, add another orchestration.

var (
	price    = replay.Activity[string, int]("price")
	deliver  = replay.Activity[string, string]("deliver")
	approval = replay.Event[string]("approval")
	shop     = replay.Attribute[string]("shop")
	order    = replay.Orchestration[string, string]("order")
	// shipment is the child of a transfer and waits for approval.
	shipment = replay.Orchestration[string, string]("shipment")
	transfer = replay.Orchestration[string, string]("transfer")
	// reminder sleeps for an hour.
	reminder = replay.Orchestration[string, string]("reminder")
	// delivery has an activity that fails when it is recorded, and is tried again an hour later.
	delivery = replay.Orchestration[string, string]("delivery")
	// account continues as new after each deposit, until it is closed.
	account = replay.Orchestration[int, int]("account")
	deposit = replay.Update[int, int]("deposit")
	balance = replay.Query[struct{}, int]("balance")
	closing = replay.Event[string]("closing")
	ticked  = replay.Orchestration[string, string]("ticked")
)

var errUnknownItem = replay.NewError("item.unknown", "there is no such item")

// releaseDefinitions returns the code. While it records, deliveries fail.
func releaseDefinitions(recording bool) []replay.Definition {
	return []replay.Definition{
		price.Bind(func(_ context.Context, item string) (int, error) {
			if item == "" {
				return 0, errUnknownItem
			}
			return 10 * len(item), nil
		}),
		deliver.Bind(func(_ context.Context, to string) (string, error) {
			if recording {
				return "", errors.New("the van is broken")
			}
			return "delivered to " + to, nil
		}),
		order.Bind(runOrder), shipment.Bind(runShipment), transfer.Bind(runTransfer), reminder.Bind(remind),
		delivery.Bind(runDelivery), account.Bind(runAccount),
		ticked.Bind(func(_ *replay.Context, text string) (string, error) { return text, nil }),
	}
}

// runOrder has a side effect, an attribute, a status, an activity, a timer, a race and an event.
func runOrder(ctx *replay.Context, item string) (string, error) {
	number, err := replay.SideEffect(ctx, "number", func() (int, error) { return 17, nil })
	if err != nil || number != 17 {
		return "", errors.Join(err, errors.New("the number has changed"))
	}
	if err := shop.Set(ctx, "north"); err != nil {
		return "", err
	}
	if _, err := price.Call(ctx, item, replay.Retry(replay.RetryPolicy{MaxAttempts: 1})); err != nil {
		return "", err
	}
	if err := ctx.Sleep(time.Millisecond); err != nil {
		return "", err
	}
	by, err := approval.Wait(ctx)
	return item + " approved by " + by, err
}

func runShipment(ctx *replay.Context, to string) (string, error) {
	by, err := approval.Wait(ctx)
	return to + " by " + by, err
}

func runTransfer(ctx *replay.Context, to string) (string, error) {
	return shipment.Call(ctx, to, replay.ChildID("shipment-of-transfer"))
}

func remind(ctx *replay.Context, of string) (string, error) {
	return "remember " + of, ctx.Sleep(time.Hour)
}

func runDelivery(ctx *replay.Context, to string) (string, error) {
	return deliver.Call(ctx, to, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour, MaxAttempts: 5}))
}

func runAccount(ctx *replay.Context, total int) (int, error) {
	changed := false
	if err := balance.Handle(ctx, func(struct{}) (int, error) { return total, nil }); err != nil {
		return 0, err
	}
	err := deposit.Handle(ctx, nil, func(_ *replay.Context, amount int) (int, error) {
		total, changed = total+amount, true
		return total, nil
	})
	if err != nil {
		return 0, err
	}
	closed := closing.Subscribe(ctx)
	if err := replay.Await(ctx, func() bool { return changed || closed.Done() }); err != nil {
		return 0, err
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return 0, err
	}
	if changed {
		return 0, account.ContinueAsNew(ctx, total)
	}
	return total, nil
}
