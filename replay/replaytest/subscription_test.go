package replaytest_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var (
	charge       = replay.Activity[int, string]("charge")
	unsubscribe  = replay.Event[string]("unsubscribe")
	subscription = replay.Orchestration[string, bool]("subscription")
)

const month = 30 * 24 * time.Hour

// subscribe is a subscription of a year that is paid monthly. It reports whether to renew it:
// a customer may say no until the end.
func subscribe(ctx *replay.Context, customer string) (renew bool, err error) {
	unsubscribed := unsubscribe.Subscribe(ctx)
	for n := range 12 {
		if _, err := charge.Call(ctx, n+1); err != nil {
			return false, err
		}
		if err := ctx.Sleep(month); err != nil {
			return false, err
		}
	}
	return !unsubscribed.Done(), nil
}

// A year of twelve timers and twelve charges that each fail once, with an event in month
// seven. Measured at 15 to 40 ms on two busy cores.
func TestSubscription_OneYear(t *testing.T) {
	began := time.Now() // not in the bubble: real time
	env := replaytest.New(t, subscription.Bind(subscribe))
	charges := replaytest.Stub(env, charge, replaytest.Returns[int]("paid", nil)).
		FailFirst(1, errors.New("the bank does not answer"))
	env.At(6*month+10*24*time.Hour, func() {
		if err := replaytest.Send(env, "alice", unsubscribe, "too dear"); err != nil {
			t.Error(err)
		}
	})

	renew, err := replaytest.Call(env, subscription, "alice", "Alice")
	if err != nil || renew {
		t.Errorf("renew %t: %v", renew, err)
	}
	if got, want := charges.Calls(), []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; !slices.Equal(got, want) {
		t.Errorf("charged for the months %v", got)
	}
	if passed := env.Now().Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); passed < 12*month || passed > 12*month+time.Minute {
		t.Errorf("%v have passed", passed)
	}
	t.Logf("a year took %v", time.Since(began))
}

func TestSubscription_RenewsByDefault(t *testing.T) {
	env := replaytest.New(t, subscription.Bind(subscribe))
	replaytest.Stub(env, charge, replaytest.Returns[int]("paid", nil))
	if renew, err := replaytest.Call(env, subscription, "bob", "Bob"); err != nil || !renew {
		t.Errorf("renew %t: %v", renew, err)
	}
	env.ExpectCalls(charge, 12)
	env.ExpectHistory("bob", "testdata/subscription.json")
}
