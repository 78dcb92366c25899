package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Terms are what a month begins with: all that later months need to know.
type Terms struct {
	Customer string
	Price    int
	Month    time.Duration // how long one is
	// Of the months before: zero for the first.
	Months int
	Paid   int
	Began  time.Time // the month before, zero for the first
}

// A Bill is for one month. Its number makes it the same bill however often it is
// presented.
type Bill struct {
	Customer string
	Number   int
	Amount   int
}

// An End is how a subscription ended.
type End struct {
	Why    string
	Months int
	Paid   int
}

var (
	Subscription = replay.Orchestration[Terms, End]("subscription")
	Charge       = replay.Activity[Bill, bool]("charge")
	Unsubscribed = replay.Event[string]("unsubscribed")
	PriceChanged = replay.Event[int]("price changed")
)

// subscription is one month; the next is the next execution.
func subscription(ctx *replay.Context, terms Terms) (End, error) {
	unsubscribed := Unsubscribed.Subscribe(ctx)
	changed := PriceChanged.Subscribe(ctx)

	bill := Bill{terms.Customer, terms.Months + 1, terms.Price}
	if terms.Began.IsZero() {
		terms.Began = ctx.Now()
	} else {
		terms.Began = terms.Began.Add(terms.Month)
	}
	_, err := Charge.Call(ctx, bill, replay.ScheduleToClose(3*24*time.Hour))
	if errors.Is(err, replay.ErrTimeout) {
		return End{"not paid", terms.Months, terms.Paid}, nil
	}
	if err != nil {
		return End{}, err
	}
	terms.Months++
	terms.Paid += bill.Amount

	over := ctx.Timer(terms.Began.Add(terms.Month).Sub(ctx.Now()))
	for {
		first, err := replay.Next(ctx, unsubscribed, changed, over)
		if err != nil {
			return End{}, err
		}
		switch first {
		case 0:
			why, err := unsubscribed.Await(ctx)
			return End{why, terms.Months, terms.Paid}, err
		case 1:
			if terms.Price, err = changed.Await(ctx); err != nil {
				return End{}, err
			}
			changed = PriceChanged.Subscribe(ctx)
		case 2:
			return End{}, Subscription.ContinueAsNew(ctx, terms)
		}
	}
}

// definitions binds an activity that prints instead of charging.
func definitions(out io.Writer) []replay.Definition {
	charge := func(_ context.Context, bill Bill) (bool, error) {
		fmt.Fprintf(out, "bill %d: %s pays %d\n", bill.Number, bill.Customer, bill.Amount)
		return true, nil
	}
	return []replay.Definition{Subscription.Bind(subscription), Charge.Bind(charge)}
}
