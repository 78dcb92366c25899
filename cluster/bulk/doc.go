// Package bulk repeats one action over all instances that match a filter: it cancels, terminates,
// suspends, resumes or purges them, sends them an event, or acts on their open operations.
//
//	job := bulk.Job{Filter: cluster.Filter{Name: "checkout", States: []cluster.State{cluster.Running}},
//		Action: bulk.Cancel, Reason: "the shop is closed"}
//	preview, err := bulk.DryRun(ctx, client, job)
//	...
//	id, err := bulk.Start(ctx, client, job)
//
// A job is an instance of the orchestration "tenuto.bulk", which every node registers. It survives
// changes of leaders and restarts, its history records each instance that it acted on, and package
// cluster lists, watches and terminates it like any other instance. Purging it deletes that record.
//
// # Guarantees
//
//  1. A job visits, in the order of IDs, each instance that matches when its place is reached. It
//     does not visit instances that begin to match after their place was passed; those whose runs
//     began after the job (with several partitions: about a second after it, as their times may
//     differ); itself; and those of the engine's own orchestrations, such as schedules and jobs,
//     unless Filter.Name is such a name.
//  2. It acts once on each visited instance, even if it repeats a page because a node or a leader
//     has died: a request has an ID derived from the job and the instance; see [cluster.RequestID].
//  3. Each visited instance is counted once: as done, refused or unknown.
//  4. In any time t, it visits at most Rate·t instances, plus one page. A page has the instances of
//     one second, from 1 to 500. It begins none after 1 s, and then waits for the calls in flight.
//  5. After [Pause] has returned nil, the job acts on nothing until [Resume]; after [Stop], never.
//  6. Histories of the instances show the principal who started the job, and its reason with the ID
//     of the job, if the action records them: all do but purges.
//
// # Outcomes
//
// Done means that the cluster has accepted the action, as the call for one instance does: a
// canceled instance may still clean up. An instance is refused if it does not exist any more
// (purge: that is done), has ended (purge: has not), another run has begun under its ID, it is
// stalled, hung or waits for code (except terminate and purge), its buffer of events stays full, or
// it has no operation to which the action applies. [Refusals] lists the first 10,000. If calls for
// an instance end three times, or for 30 s, without a known outcome, the job lists it with the
// refusals, as unknown, and goes on. While a partition has no leader, or a member does not speak
// protocol 4, the job waits and tries again.
//
// # Rights
//
// Config.Authorize is asked when a remote client starts a job: for [cluster.ActionStart] of the
// job's ID, and for [cluster.ActionList] and the right of the action (see [Actions]) with the
// instance ID "", which stands for all instances. So a rule that permits an action for some
// instances only must reject "". A schedule cannot start jobs. [Start] and [DryRun] also need
// [cluster.ActionList]. [Pause], [Resume] and [Stop] are updates, [Get] is a query, [Refusals] also
// reads the history.
//
// # What may not be assumed
//
//   - That an instance still matches when the job acts on it: it did a moment before, when its page
//     was read.
//   - That a job is done soon after Rate permits it. Its activities use slots like others, one at a
//     time, and its calls are calls of the node's client. So it starves no ordinary work, and waits
//     behind it.
//   - That request IDs are known forever: see [cluster.RequestID] for instances that continue as
//     new very often between two attempts of a page.
//   - That cancellation of the job's instance ends it at once: the page in progress is completed.
//     [cluster.Client.Terminate] does, and the last page is then not counted.
//   - That a job works if Settings.PayloadMax is below its default.
//
// All functions may be called concurrently. They take a client of a node or of cluster.Dial and
// return its errors: cluster.ErrNotFound, cluster.ErrEnded, *cluster.UnavailableError and so on.
// For an instance that is no job they return a *replay.NotRegisteredError.
package bulk
