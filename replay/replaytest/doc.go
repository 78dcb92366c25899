// Package replaytest tests orchestrations in go test, without a cluster: on the
// real engine, over a journal in memory, with a clock that runs only when
// something waits for it.
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
// Instances, activities, retries, limits of time, heartbeats, timers, children,
// cancellation and continue-as-new are those of a node of a cluster: package
// actors over the journal's state machine. Nothing of it is imitated. There is no
// Raft, no network and no disk.
//
// Runs are those of a cluster whose nodes all speak the newest protocol. Only the
// incarnation of a run, which stands in idempotency keys and derived IDs, is another: its
// text is "1-1" if the ID was not used before, "1-<first execution>" if it was.
//
// Activities run with the bodies that they are bound to, or with those of the
// test ([Stub]). Children likewise ([StubChild]).
//
// # Time
//
// Time is virtual, in a testing/synctest bubble that [New] makes. It stands still
// while the test runs, and passes while the test waits for something ([Call],
// [Run.Wait], [Update], [Env.Advance]): straight to the next moment at which
// something is due. A year of monthly timers takes milliseconds. In the bodies of
// activities time.Sleep and everything built on package time is virtual, too, and
// costs nothing.
//
// A body runs in the bubble and the test outside of it. So a body must not wait
// for a channel that the test has made: that is real time, in which virtual time
// stands still, and the test fails. To have an activity end when the test says
// so, let it return replay.ErrPending and use [CompleteActivity]; to have it take
// its time, let it sleep.
//
// # What is found by default
//
// After every append the instance is dropped from memory, and the next message
// brings it back by a replay. When its history has more than 500 events, that is so
// each time that it has grown by 2%. And every time its whole history is replayed once
// more, to its very end, by another clock, in another place, and many times when
// it has ended. Code that does not do the same again fails the test at once, with
// what was expected, what was found, the event and the line: hidden state, the
// clock, chance, the order of a map, a global. [Env.ReplayEvery] makes that
// rarer, or stops it.
//
// Code that is blocked outside of its durable calls (a channel, a lock,
// time.Sleep) fails the test with its line. So do goroutines that are left
// behind when the test ends, activities that nobody has bound, and waiting for
// what cannot happen any more.
//
// What cannot be found by running code (a future that nobody awaits, a durable
// call in a deferred function, a file that happens to stay the same) is for the
// analyzer. DESIGN.md has a table that says who finds what.
//
// # Order
//
// Whatever arrives at one moment is let in one after the other, in an order that
// is the same each time, so that a test which passes passes always. [Permute]
// tries the other orders.
//
// # Histories
//
// [Env.ExpectHistory] compares with golden files. [Replay] replays histories that
// were exported from a cluster, to see whether changed code fits those instances.
// Both have the format of package history.
//
// The package guarantees:
//
//  1. What happens in a test is a function of its code, its inputs and its order
//     of arrivals: two runs have the same histories, but for the pauses between
//     attempts, which are up to 20% longer or shorter by chance.
//  2. No virtual time passes but by a call that says that it lets time pass.
//  3. With the default of ReplayEvery, a test fails if code and history disagree in a
//     replay, and there is one after each append (beyond 500 events: after each 2% of
//     growth) and at the end of each execution.
//
// What may not be assumed: that the code of an orchestration runs once (it runs
// again and again, so it must not count its runs in a variable of the test); that
// what passes here survives the fault of a disk or of a network.
package replaytest
