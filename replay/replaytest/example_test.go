package replaytest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

type Order struct {
	ID     int
	Amount int
}

type Receipt struct {
	Order int
	Paid  int
}

var (
	Charge   = replay.Activity[Order, Receipt]("example.charge")
	Confirm  = replay.Event[bool]("example.confirm")
	Checkout = replay.Orchestration[Order, Receipt]("example.checkout")
)

var ErrRejected = replay.NewError("example.rejected", "rejected by the customer")

// checkout charges an order after the customer has confirmed it, within a day.
func checkout(ctx *replay.Context, o Order) (Receipt, error) {
	yes, err := Confirm.WaitFor(ctx, 24*time.Hour)
	switch {
	case err != nil:
		return Receipt{}, err
	case !yes:
		return Receipt{}, ErrRejected
	}
	return Charge.Call(ctx, o)
}

func charged(_ context.Context, o Order) (Receipt, error) {
	return Receipt{Order: o.ID, Paid: o.Amount}, nil
}

// t is the parameter of a test function.
var t *testing.T

func Example() {
	env := replaytest.New(t, Checkout.Bind(checkout))
	charges := replaytest.Stub(env, Charge, charged).FailFirst(2, errors.New("the bank is closed"))
	env.At(time.Hour, func() {
		if err := replaytest.Send(env, "order-17", Confirm, true); err != nil {
			t.Error(err)
		}
	})
	receipt, err := replaytest.Call(env, Checkout, "order-17", Order{ID: 17, Amount: 5})
	if err != nil || receipt.Paid != 5 {
		t.Errorf("%v, %v", receipt, err)
	}
	if calls := charges.Calls(); len(calls) != 1 || calls[0].ID != 17 {
		t.Errorf("charged %v", calls)
	}
	env.ExpectHistory("order-17", "testdata/checkout-17.json")
}

func ExampleCall() {
	env := replaytest.New(t, Checkout.Bind(checkout), Charge.Bind(charged))
	_, err := replaytest.Call(env, Checkout, "order-17", Order{ID: 17}) // a day passes
	if !errors.Is(err, replay.ErrTimeout) {
		t.Errorf("want a timeout, got %v", err)
	}
}

func ExampleStartRun() {
	env := replaytest.New(t, Checkout.Bind(checkout))
	run, err := replaytest.StartRun(env, Checkout, "order-17", Order{ID: 17})
	if err != nil {
		t.Fatal(err)
	}
	env.Advance(23 * time.Hour)
	if state := run.Status().State; state != replaytest.Running {
		t.Errorf("state %s", state)
	}
	if err := replaytest.Send(env, "order-17", Confirm, false); err != nil {
		t.Error(err)
	}
	if _, err := run.Wait(); !errors.Is(err, ErrRejected) {
		t.Error(err)
	}
}

// A total must not depend on which part arrives first.
func ExamplePermute() {
	total := replay.Orchestration[[]Order, int]("example.total")
	definition := total.Bind(func(ctx *replay.Context, orders []Order) (int, error) {
		var receipts []*replay.Future[Receipt]
		for _, o := range orders {
			receipts = append(receipts, Charge.Start(ctx, o))
		}
		sum := 0
		all, err := replay.All(ctx, receipts...)
		for _, r := range all {
			sum += r.Paid
		}
		return sum, err
	})
	replaytest.Permute(t, 100, func(t *testing.T, env *replaytest.Env) int {
		sum, err := replaytest.Call(env, total, "total", []Order{{1, 10}, {2, 20}, {3, 30}})
		if err != nil {
			t.Error(err)
		}
		return sum
	}, definition, Charge.Bind(charged))
}

// ExampleReplay replays histories of real instances that were exported before the code
// changed.
func ExampleReplay() {
	replaytest.Replay(t, "testdata/checkout-*.json", Checkout.Bind(checkout))
}

// TestExamples runs the examples as tests.
func TestExamples(test *testing.T) {
	for i, example := range []func(){Example, ExampleCall, ExampleStartRun, ExamplePermute, ExampleReplay} {
		test.Run(fmt.Sprint(i), func(test *testing.T) {
			t = test
			example()
		})
	}
}
