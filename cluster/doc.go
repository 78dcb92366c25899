// Package cluster runs durable orchestrations inside an application: each process embeds a node,
// and the nodes form a cluster that keeps working while a majority of them runs.
//
//	node, err := cluster.Start(ctx, cluster.Config{
//		Dir:         "data",
//		Definitions: []replay.Definition{Greet.Bind(greet), Hello.Bind(hello)},
//	})
//	...
//	greeting, err := cluster.Call(ctx, node.Client(), Hello, "hello-1", "Ada")
//
// One node with a directory is a complete system. Three tolerate the loss of one. [Dial] makes a
// client, with the same guarantees, in a program that embeds no node.
//
// Guides in cluster/docs: operating.md (incidents, voters, backups, recovery), runbooks.md,
// troubleshooting.md (every error), security.md (TLS, members, join tokens, directories), time.md,
// overload.md, partitions.md (also upgrades), schedules.md, dashboard.md, step.md (one step through
// the code); METRICS.md. Packages: operate (repairs and operations), bulk, schedule, filter
// (filters as text), backup, recovery, proof (signed histories), discovery, dashboard, prometheus;
// clustertest for tests.
//
// # Guarantees
//
//  1. An acknowledged start, event, update or activity result is on the disks of a majority.
//  2. Any node sends a call to the leader, and repeats it through leader changes, until it is
//     answered or its context ends. Without a deadline, Config.CallTimeout applies. A queued start
//     may be rejected after 2 s; see overload.md. Stale reads, waits and watches read a replica.
//  3. An error states whether nothing was done or the outcome is unknown ([UnavailableError]).
//     "Not found", "exists" and "ended" come from a node that has confirmed its leadership.
//  4. Starts, events, updates, cancellations, suspensions and resumptions carry a request ID. A
//     call that the library repeats has one effect and returns the first answer, even after the
//     run has ended. Terminations are recognized by reason, activity results by token and content.
//     If the instance was purged and started anew since, the outcome is unknown and the new run
//     gets nothing. Only a start repeated after a purge begins a new run. Users can repeat a call
//     with an ID of their own while the ID is known; see [RequestID].
//
// Input:
//
//  5. An instance takes events one by one, in the order of acknowledgment. Events that the code
//     does not wait for yet are kept.
//  6. A cancellation is a request: the code may clean up. An execution records at most one
//     cancellation from clients and one from its parent. A termination runs no code, so it also
//     ends a stalled instance. A suspended instance records events, completions, timers and
//     cancellations; they take effect on resume. Terminations, queries and update validations do
//     not wait.
//  7. A run has one end. Later events, updates, cancellations, terminations, suspensions
//     and resumptions get [ErrEnded], unless they repeat a recorded one.
//  8. An update runs once; or it does not run and its caller gets an error; or the outcome is
//     unknown (see 4). Rejected updates and queries are not recorded.
//
// Activities that are completed from outside:
//
//  9. A token belongs to one attempt, and one result per token is recorded. Repeating that result
//     is no error; any other gets [ErrActivityClosed], also in a later execution and after the end.
//     So does a repeated failure, after a later attempt has failed or ended the activity.
//  10. A pending attempt survives its leader: it is not started again, and its token stays valid.
//
// Reads:
//
//  11. What Get and History return was true at one moment of the call; so was each item of List,
//     Count, Executions and Pending. Each shows everything acknowledged before the call, unless
//     [Stale] is given. If an instance is purged and started anew while its long history is read,
//     both runs may mix. A stale read is as of a journal index that never decreases while the node
//     runs. Get, History and List return their index (with partitions, List returns the sum).
//  12. [Client.Watch], the Wait methods and [CallUpdate] see only committed events and skip none.
//     They are as late as the node's replica. They end when the run is purged.
//  13. An instance that matches throughout appears once in the pages of [Client.List], unless the
//     time by which the list is sorted changes. States are recorded: a new leader forgets none.
//
// Nodes:
//
//  14. Retention and Purge remove no running instance, none that a relative needs, and none early.
//     Nothing of a purged run reaches a later run with its ID: no child, result, token or
//     idempotency key. This does not hold for runs begun before protocol 3.
//  15. [Node.Close] ends every goroutine of the node, except for activities that ignore their
//     context, code blocked outside durable calls, blocked log handlers and, if Close returns an
//     error because the disk hangs, goroutines that wait for the disk.
//  16. Recorded [Settings] do not change with the leader. Each node applies a change when its
//     replica has it; see [Client.ChangeSettings].
//
// # What may not be assumed
//
//   - Progress without a majority, or that an activity runs only once.
//   - That a user's request ID is known after a purge, or after 256 other inputs and a
//     continue-as-new; or that a purged ID is still taken: a repeated start begins anew.
//   - That calls to a stalled or hung instance, or one waiting for code, are answered. All but
//     terminations, retries and reads wait in the leader's memory until the context ends; then the
//     outcome is unknown. Completing an activity returns [ErrStalled].
//   - That an instance does not change between two queries, or between a validation and its update.
//   - That a list shows one moment across pages, or that a page with fewer instances than asked for
//     is the last. That stale reads on two nodes agree. That a condition is recorded at once.
//   - That a watch is prompt, or that a slow reader delays anything. That retention is prompt: it
//     runs at most once a minute, or as often as its shortest period if that is less.
package cluster
