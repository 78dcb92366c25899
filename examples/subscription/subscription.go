package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Terms are the input of a month: everything that later months need.
type Terms struct {
	Customer string
	Price    int
	Month    time.Duration // its length
	// Of earlier months; zero in the first month.
	Months int
	Paid   int
	Began  time.Time // of the previous month
}

// A Bill is for one month. Its number identifies the bill if it is presented again.
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

// subscription runs one month. The next execution runs the next month.
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

	monthEnd := ctx.Timer(terms.Began.Add(terms.Month).Sub(ctx.Now()))
	for {
		first, err := replay.Next(ctx, unsubscribed, changed, monthEnd)
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

// definitions binds the code to an activity that prints.
func definitions(out io.Writer) []replay.Definition {
	charge := func(_ context.Context, bill Bill) (bool, error) {
		fmt.Fprintf(out, "bill %d: %s pays %d\n", bill.Number, bill.Customer, bill.Amount)
		return true, nil
	}
	return []replay.Definition{Subscription.Bind(subscription), Charge.Bind(charge)}
}
