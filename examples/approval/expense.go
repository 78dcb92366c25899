package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// An Expense is an amount to approve.
type Expense struct {
	ID          string
	Amount      int
	Deadline    time.Duration // the expense is rejected after this time without an answer
	RemindEvery time.Duration
}

// A Decision is a human's answer.
type Decision struct {
	Approved bool
	By       string
}

// An Outcome is the result of an approval.
type Outcome struct {
	Paid      bool
	Why       string
	Reminders int
}

// Histories contain the names in quotes, which must not change.
var (
	Approval = replay.Orchestration[Expense, Outcome]("approval")
	Decided  = replay.Event[Decision]("decided")
	Reserve  = replay.Activity[Expense, int]("reserve")
	Release  = replay.Activity[Expense, int]("release")
	Pay      = replay.Activity[Expense, int]("pay")
	Remind   = replay.Activity[Expense, int]("remind")
)

// approval reserves the budget, waits for a decision, and pays or releases. It may wait for
// weeks and across restarts: its state is in the journal.
func approval(ctx *replay.Context, e Expense) (Outcome, error) {
	if _, err := Reserve.Call(ctx, e); err != nil {
		return Outcome{}, err
	}
	decision, reminders, err := decide(ctx, e)
	outcome := Outcome{Reminders: reminders, Paid: err == nil && decision.Approved}
	switch {
	case errors.Is(err, replay.ErrTimeout):
		outcome.Why = "nobody answered in time"
	case err != nil:
		return outcome, err
	case decision.Approved:
		outcome.Why = "approved by " + decision.By
		_, err = Pay.Call(ctx, e)
		return outcome, err
	default:
		outcome.Why = "rejected by " + decision.By
	}
	// Not paid: release the reservation.
	_, err = Release.Call(ctx, e)
	return outcome, err
}

// decide waits for the decision until the deadline and sends reminders.
func decide(ctx *replay.Context, e Expense) (decision Decision, reminders int, err error) {
	answer := Decided.Subscribe(ctx)
	deadline := ctx.Timer(e.Deadline)
	for {
		reminder := ctx.Timer(e.RemindEvery)
		first, err := replay.Next(ctx, answer, deadline, reminder)
		if err != nil {
			return decision, reminders, err
		}
		switch first {
		case 0:
			decision, err = answer.Await(ctx)
			return decision, reminders, err
		case 1:
			return decision, reminders, replay.ErrTimeout
		}
		reminders++
		if _, err := Remind.Call(ctx, e); err != nil {
			return decision, reminders, err
		}
	}
}

// definitions binds the code to the names. The activities only print. In an application they
// would call a ledger and a mail server, and pass replay.ActivityInfo(ctx).IdempotencyKey() to
// make repetitions harmless.
func definitions() []replay.Definition {
	printing := func(what string) func(context.Context, Expense) (int, error) {
		return func(_ context.Context, e Expense) (int, error) {
			fmt.Printf("%s %d for %s\n", what, e.Amount, e.ID)
			return e.Amount, nil
		}
	}
	return []replay.Definition{
		Approval.Bind(approval),
		Reserve.Bind(printing("reserve")),
		Release.Bind(printing("release")),
		Pay.Bind(printing("pay")),
		Remind.Bind(printing("please decide about")),
	}
}
