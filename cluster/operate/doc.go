// Package operate repairs one operation of one instance: an activity, a timer, a child or a
// subscription that an incident has left in a bad state. It also begins runs from an earlier event
// of an instance ([Rerun], [Rewind], [Fork]; see replay/docs/again.md), lists who has done what
// ([Audit]), and acts on the whole cluster:
//
//   - [PauseActivity], [ResumeActivity]
//   - leadership and votes: [TransferLeadership], [Drain], [SetRole]
//   - replicas: [Verify], [AcceptReplica]
//   - upgrades: [GetProtocols], [Finalize]
//   - what it knows: [Workers], [Lineages]
//
// One operation is repaired so:
//
//	open, err := client.Pending(ctx, "order-17")
//	...
//	op := operate.Operation{InstanceID: "order-17", Execution: open[0].Execution, EventID: open[0].EventID}
//	err = operate.RetryNow(ctx, client, op, "the bank is up again")
//
// # Actions
//
//	RetryNow   the next attempt of an activity that backs off begins at once
//	Hold       no attempt of an activity begins, or a timer does not fire, until Release
//	Adjust     other timeouts, another retry policy
//	Complete   ends an activity, a child or a subscription with a result
//	Fail       ends an activity or a child with an error; the retry policy does not apply
//	FireNow    a timer fires before it is due
//
// The package guarantees:
//
//  1. An action that returned nil is recorded in the history, with its principal and reason, and
//     remains in effect under every later leader. [Hold] records nothing if the operation is held
//     already, [Release] nothing if it is not held.
//  2. An action is recorded once, even if the library repeats the call.
//  3. The code of the instance cannot tell a completion by an operator from any other. [RetryNow],
//     [Hold], [Release] and [Adjust] are invisible to it.
//  4. Actions work on a suspended instance. The code gets completions when it is resumed.
//  5. An action that ends an operation also cancels the work for it: the context of a running
//     attempt ends with [replay.ErrActivityCanceled]; a child follows its close policy, as if the
//     parent no longer waited.
//
// An action whose Operation.Execution is 0 concerns the latest execution. If the instance may
// continue as new meanwhile, state the execution: event IDs begin anew in each.
//
// # Errors
//
// After any of these errors nothing was recorded: [ErrUnknownOperation], [ErrClosed], [ErrHeld],
// [ErrNotBackingOff], [*KindError], [cluster.ErrNotFound], [cluster.ErrEnded],
// [*replay.InvalidError], [cluster.ErrNotAuthorized], and [cluster.ErrProtocol] while a member does
// not speak protocol 4. An instance that is stalled or hung, or that waits for code, records
// nothing: the error is [cluster.ErrStalled]. If it stalls during the call, the leader keeps the
// action in memory and records it when the instance continues; a later leader does not have it. A
// [*cluster.UnavailableError] says whether the outcome is unknown.
//
// # Principals
//
// The leader records who called. For a remote client, this is the name in its certificate. A
// program that acts for its users adds their names with [WithPrincipal]. Without TLS, names are not
// verified. A call of a node's own client without a user records no principal. The same holds for
// starts, events, updates, cancellations, terminations, suspensions, resumptions and completions by
// token. Calls without an argument for the reason take it from [WithReason].
package operate
