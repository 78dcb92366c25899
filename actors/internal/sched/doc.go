// Package sched decides when actors run: it holds their mailboxes and goroutines, the bound on
// their turns, the order of their timers, and the list of those that are idle.
//
// It guarantees:
//
//  1. An actor takes its messages one at a time, in the order in which they were posted;
//     protoactor's system messages come first.
//  2. At most eight actors per processor run at once. Actors whose user code is blocked do not
//     count. Each time that no waiting actor begins to run for 10 ms, one more may run.
//  3. Turns beyond the bound begin in the order of arrival.
//  4. Timers that are due together fire in the order in which they were added.
//
// Only [Dispatcher] and [Mailbox] may be used concurrently. All other types need a lock or a single
// goroutine of the caller.
package sched
