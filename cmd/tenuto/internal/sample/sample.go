package sample

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Order is the input of the orchestration "order".
type Order struct {
	Item   string `json:"item"`
	Amount int    `json:"amount"` // in cents
}

// A Receipt is the output of the orchestration "order".
type Receipt struct {
	Item    string `json:"item"`
	Amount  int    `json:"amount"`
	Payment string `json:"payment"`
}

// Progress is the answer of the query "progress".
type Progress struct {
	Step   string `json:"step"`
	Amount int    `json:"amount"`
}

var (
	greet  = replay.Orchestration[string, string]("greet")
	order  = replay.Orchestration[Order, Receipt]("order")
	flaky  = replay.Orchestration[int, string]("flaky")
	write  = replay.Activity[string, string]("write-greeting")
	charge = replay.Activity[Order, string]("charge")
	refund = replay.Activity[string, string]("refund")
	ring   = replay.Activity[int, string]("call-bank")

	approved     = replay.Event[bool]("approved")
	progress     = replay.Query[any, Progress]("progress")
	changeAmount = replay.Update[int, int]("change-amount")
)

// approvalTimeout is how long an order waits for the event "approved".
const approvalTimeout = 24 * time.Hour

// Definitions returns the orchestrations and their activities.
func Definitions() []replay.Definition {
	return []replay.Definition{
		greet.Bind(func(ctx *replay.Context, name string) (string, error) {
			return write.Call(ctx, cmp.Or(name, "stranger"))
		}),
		order.Bind(runOrder),
		flaky.Bind(func(ctx *replay.Context, failures int) (string, error) {
			return ring.Call(ctx, failures, replay.Retry(replay.RetryPolicy{InitialInterval: 2 * time.Second, MaxInterval: time.Minute}))
		}),
		write.Bind(func(_ context.Context, name string) (string, error) { return "hello " + name, nil }),
		charge.Bind(func(ctx context.Context, o Order) (string, error) {
			if o.Amount <= 0 {
				return "", replay.NonRetryable(replay.NewError("invalid-amount", fmt.Sprintf("the amount is %d", o.Amount)))
			}
			return "payment-" + replay.ActivityInfo(ctx).Instance, nil
		}),
		refund.Bind(func(_ context.Context, payment string) (string, error) { return payment + " refunded", nil }),
		ring.Bind(func(ctx context.Context, failures int) (string, error) {
			attempt := replay.ActivityInfo(ctx).Number
			if attempt <= failures {
				return "", replay.NewError("busy", fmt.Sprintf("the bank does not answer (attempt %d)", attempt))
			}
			return fmt.Sprintf("answered at attempt %d", attempt), nil
		}),
	}
}

// runOrder charges, waits for the approval, and refunds if the order does not complete.
func runOrder(ctx *replay.Context, o Order) (Receipt, error) {
	now := Progress{Step: "charging", Amount: o.Amount}
	step := func(name string) error {
		now.Step = name
		return replay.SetStatus(ctx, name)
	}
	err := errors.Join(
		progress.Handle(ctx, func(any) (Progress, error) { return now, nil }),
		changeAmount.Handle(ctx, func(amount int) error {
			if amount <= 0 {
				return errors.New("the amount must be more than 0")
			}
			return nil
		}, func(_ *replay.Context, amount int) (int, error) {
			before := now.Amount
			now.Amount = amount
			return before, nil
		}),
		step("charging"))
	if err != nil {
		return Receipt{}, err
	}
	payment, err := charge.Call(ctx, o)
	if err != nil {
		return Receipt{}, err
	}
	saga := replay.NewSaga(ctx)
	saga.Compensate(ctx, func(ctx *replay.Context) error {
		_, err := refund.Call(ctx, payment)
		return err
	})
	if err := step("waiting for approval"); err != nil {
		return Receipt{}, err
	}
	yes, err := approved.WaitFor(ctx, approvalTimeout)
	if err != nil {
		return Receipt{}, err
	}
	if !yes {
		return Receipt{}, replay.NewError("rejected", "the order was rejected")
	}
	return Receipt{Item: o.Item, Amount: now.Amount, Payment: payment}, step("done")
}
