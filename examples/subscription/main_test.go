package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

const month = 30 * 24 * time.Hour

var terms = Terms{Customer: "alice", Price: 5, Month: month}

// A year in milliseconds: the price changes in month four, charges fail on the first day of
// every month, and the customer unsubscribes in month eight.
func TestSubscription_BillsMonthly(t *testing.T) {
	env := replaytest.New(t, Subscription.Bind(subscription))
	var due []time.Time // of the bills
	replaytest.Stub(env, Charge, func(ctx context.Context, _ Bill) (bool, error) {
		attempt := replay.ActivityInfo(ctx).Number
		if attempt == 1 {
			due = append(due, time.Now())
		}
		if attempt <= 10 {
			return false, errors.New("the bank is closed")
		}
		return true, nil
	})
	env.At(3*month+10*24*time.Hour, func() {
		if err := replaytest.Send(env, "alice", PriceChanged, 7); err != nil {
			t.Error(err)
		}
	})
	env.At(7*month+10*24*time.Hour, func() {
		if err := replaytest.Send(env, "alice", Unsubscribed, "too dear"); err != nil {
			t.Error(err)
		}
	})
	began := env.Now()
	end, err := replaytest.Call(env, Subscription, "alice", terms)
	if err != nil || end != (End{"too dear", 8, 4*5 + 4*7}) {
		t.Errorf("%+v: %v", end, err)
	}
	for i, at := range due {
		if passed := at.Sub(began); passed != time.Duration(i)*month {
			t.Errorf("bill %d comes after %v: the months have shifted", i+1, passed)
		}
	}
	var numbers []int
	for _, bill := range replaytest.Calls(env, Charge) {
		numbers = append(numbers, bill.Number)
	}
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8}; !slices.Equal(numbers, want) {
		t.Errorf("bills %v", numbers)
	}
	// A history covers one month.
	if last := env.History("alice"); last.Execution != 8 || len(last.Events) > 10 {
		t.Errorf("execution %d has %d events", last.Execution, len(last.Events))
	}
}

// Events that arrive while the month changes are not lost.
func TestSubscription_EndsAtMonthBoundary(t *testing.T) {
	env := replaytest.New(t, Subscription.Bind(subscription))
	replaytest.Stub(env, Charge, replaytest.Returns[Bill](true, nil))
	env.At(month, func() {
		if err := replaytest.Send(env, "alice", Unsubscribed, "moved away"); err != nil {
			t.Error(err)
		}
	})
	end, err := replaytest.Call(env, Subscription, "alice", terms)
	if err != nil || end.Why != "moved away" || end.Months > 2 {
		t.Errorf("%+v: %v", end, err)
	}
}

func TestSubscription_EndsWhenUnpaid(t *testing.T) {
	env := replaytest.New(t, Subscription.Bind(subscription))
	replaytest.Stub(env, Charge, replaytest.Returns[Bill](false, errors.New("the account is empty")))
	end, err := replaytest.Call(env, Subscription, "alice", terms)
	if err != nil || end != (End{Why: "not paid"}) {
		t.Errorf("%+v: %v", end, err)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	// The speed of the machine decides in which month the events arrive.
	for _, want := range []string{"bill 1: alice pays 5\n", "pays 7\n", "ended: too dear, after "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
