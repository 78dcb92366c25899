// Package replaytest tests orchestrations in go test, without a cluster: on the real
// engine, with an in-memory journal and a virtual clock.
//
//	func TestCheckout(t *testing.T) {
//		env := replaytest.New(t, Checkout.Bind(checkout))
//		charges := replaytest.Stub(env, Charge, func(ctx context.Context, o Order) (Receipt, error) {
//			return Receipt{Order: o.ID}, nil
//		}).FailFirst(2, ErrBankClosed)
//		env.At(24*time.Hour, func() {
//			if err := replaytest.Send(env, "order-17", Paid, true); err != nil {
//				t.Error(err)
//			}
//		})
//		receipt, err := replaytest.Call(env, Checkout, "order-17", Order{ID: 17})
//		...
//		env.ExpectCalls(Charge, 1)
//		env.ExpectHistory("order-17", "testdata/checkout.json")
//	}
//
// # What runs
//
// Instances, activities, retries, timeouts, heartbeats, timers, children, cancellation and
// continue-as-new are those of a cluster node: package actors on the journal's state
// machine. Raft, network and disk are absent.
//
// Runs behave as in a cluster in which all nodes speak the newest protocol. Only the
// incarnation of a run, which is part of idempotency keys and derived IDs, differs: its text
// is "1-1" if the ID was not used before, else "1-<first execution>".
//
// Activities run with their bound bodies or with those of the test ([Stub]). Children run likewise
// ([StubChild]).
//
// # Time
//
// Time is virtual, in a testing/synctest bubble that [New] creates. It stands still while
// the test runs. While the test waits ([Call], [Run.Wait], [CallUpdate], [Env.Advance]), time
// jumps to the next moment at which something is due. A year of monthly timers takes
// milliseconds. In activity bodies, time.Sleep and everything else in package time is
// virtual too.
//
// Activity bodies run inside the bubble, the test outside. A body must not wait for a
// channel that the test created: virtual time then stands still, and the test fails. To end
// an activity at a moment that the test chooses, return replay.ErrResultPending and use
// [CompleteActivity]. To make an activity take time, let it sleep.
//
// # What is found by default
//
// After every append the instance is evicted, and the next message brings it back by a replay. If
// its history has more than 500 events, this happens after each growth by 2%. Its whole history is
// also replayed separately, to the end, with another clock and outside the bubble. After the end of
// an execution this happens up to 64 times. The test fails at once if the code behaves differently,
// and reports the expected event, the found event and the line. This finds hidden state, clocks,
// randomness, map order and globals. [Env.ReplayEvery] makes replays less frequent or disables
// them.
//
// The test also fails if orchestration code blocks outside durable calls (a channel, a lock,
// time.Sleep), if goroutines remain when the test ends, if an activity is not bound, or if
// the test waits for something that cannot happen.
//
// Some mistakes cannot be found by running code: a future that nobody awaits, a durable call in a
// deferred function, a file that did not change. The analyzer of package vet finds them;
// ../docs/determinism.md says which tool finds which mistake.
//
// # Order
//
// Arrivals at the same moment are admitted one at a time, always in the same order, so tests
// do not flake. [Permute] tries the other orders.
//
// # Histories
//
// [Env.ExpectHistory] compares with golden files. [Replay] replays histories that were
// exported from a cluster, to check that changed code fits those instances. Both use the
// format of package history.
//
// The package guarantees:
//
//  1. The code, the inputs and the order of arrivals determine a test: two runs have the same
//     histories, except for backoffs, which have a jitter of up to 20%.
//  2. Virtual time passes only in calls that document it.
//  3. With the default of ReplayEvery, a test fails if code and history disagree in a
//     replay. A replay follows each append (beyond 500 events: each growth by 2%) and the
//     end of each execution.
//
// Callers must not assume that orchestration code runs once: it is replayed often, so it must not
// count its calls in a variable of the test. A test that passes does not show that the code
// survives disk or network faults.
package replaytest
