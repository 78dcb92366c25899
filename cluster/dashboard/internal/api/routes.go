package api

import (
	"context"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

// The calls of the API, by what they are about.
type (
	instanceAPI struct{ *API }
	historyAPI  struct{ *API }
	changeAPI   struct{ *API }
)

func (a *API) readRoutes() []route {
	in, of := &instanceAPI{a}, &historyAPI{a}
	return []route{
		{pattern: "GET /overview", about: "Shows what needs attention, counts by state, rates and members.",
			service: answers(a.cluster.showOverview), action: cluster.ActionList},
		{pattern: "GET /instances", about: "Lists instances.", query: "filter after limit fresh",
			service: answers(in.listInstances), action: cluster.ActionList},
		{pattern: "GET /count", about: "Counts instances, also by dimensions.", query: "filter by max fresh",
			service: answers(in.countInstances), action: cluster.ActionList},
		{pattern: "GET /filter/complete", about: "Suggests what can replace the word of a filter at the cursor.", query: "text cursor",
			service: answers(in.completeFilter), action: cluster.ActionList},
		{pattern: "GET /instances/{id}", about: "Shows an instance.", query: "fresh",
			service: answers(in.getInstance), action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/history", about: "Reads a part of the history of an execution.", query: "execution after limit payloads fresh",
			service: answers(of.readHistory), action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/payload", about: "Reads an event with its whole payload.", query: "execution event fresh",
			service: answers(of.readPayload), action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/timeline", about: "Shows an execution as operations and moments.", query: "execution fresh",
			service: answers(of.readTimeline), action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/watch", about: "Sends the events of an instance until its run ends, as server-sent events: event for each, with an ID, and then end or error.", header: "Last-Event-ID",
			stream: of.watchInstance, action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/pending", about: "Lists the open operations of an instance.",
			service: answers(in.listPending), action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/stack", about: "Shows where each coroutine of an instance waits.",
			service: answers(in.showStack), action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/children", about: "Lists the children of an instance.", query: "after limit fresh",
			service: answers(in.listChildren), action: cluster.ActionList, general: true},
		{pattern: "GET /instances/{id}/query/{name}", about: "Calls a query of an instance.", query: "input",
			service: answers(in.queryInstance), action: cluster.ActionQuery},
		{pattern: "GET /instances/{id}/kv/{name}", about: "Reads a key-value map of an instance.", query: "fresh",
			service: answers(in.readKV), action: cluster.ActionGet},
		{pattern: "GET /jobs", about: "Lists bulk jobs.", query: "after fresh soon",
			service: answers(a.listJobs), action: cluster.ActionList},
		{pattern: "GET /jobs/{id}", about: "Shows a bulk job.",
			service: answers(a.getJob), action: cluster.ActionQuery},
		{pattern: "GET /jobs/{id}/refusals", about: "Lists the instances on which a bulk job could not act, or for which the outcome is unknown.", query: "after limit",
			service: answers(a.listRefusals), action: cluster.ActionQuery},
		{pattern: "GET /schedules", about: "Lists schedules.", query: "after fresh soon",
			service: answers(a.listSchedules), action: cluster.ActionList},
		{pattern: "GET /schedules/{id}", about: "Shows a schedule.",
			service: answers(a.getSchedule), action: cluster.ActionQuery},
		{pattern: "GET /code", about: "Shows definitions, activities and workers.",
			service: answers(a.cluster.showCode), action: cluster.ActionSeeMembers},
		{pattern: "GET /cluster", about: "Shows the members, the settings and the join tokens.",
			service: answers(a.cluster.showCluster), action: cluster.ActionSeeMembers},
	}
}

func (a *API) changeRoutes() []route {
	to := &changeAPI{a}
	const operation = "POST /instances/{id}/operations/{execution}/{event}/"
	return []route{
		{pattern: "POST /instances", about: "Starts an orchestration.",
			service: takes(to.startInstance)}, // the ID is in the body
		{pattern: "POST /instances/{id}/events/{name}", about: "Sends an event to an instance.",
			service: takes(to.sendEvent), action: cluster.ActionSend},
		{pattern: "POST /instances/{id}/updates/{name}", about: "Calls an update of an instance and answers with its result.",
			service: takes(to.updateInstance), action: cluster.ActionUpdate},
		{pattern: "POST /instances/{id}/cancel", about: "Cancels a run: its code may clean up.",
			service: change(cancelInstance), action: cluster.ActionCancel},
		{pattern: "POST /instances/{id}/terminate", about: "Ends a run at once.",
			service: change(terminateInstance), action: cluster.ActionTerminate},
		{pattern: "POST /instances/{id}/suspend", about: "Suspends a run.",
			service: change(suspendInstance), action: cluster.ActionSuspend},
		{pattern: "POST /instances/{id}/resume", about: "Resumes a suspended run.",
			service: change(resumeInstance), action: cluster.ActionResume},
		{pattern: "POST /instances/{id}/retry", about: "Lets a stalled run try its code again.",
			service: takes(to.retryInstance), action: cluster.ActionRetry},
		{pattern: "POST /instances/{id}/purge", about: "Deletes an ended instance.",
			service: takes(to.purgeInstance), action: cluster.ActionPurge},
		{pattern: "POST /instances/{id}/rerun", about: "Begins a new execution with the same input, or another one.",
			service: to.copyInstance(operate.ActionRerun, to.rerun), action: operate.ActionRerun},
		{pattern: "POST /instances/{id}/rewind", about: "Begins a new execution with the first events of the run.",
			service: to.copyInstance(operate.ActionRewind, to.rewind), action: operate.ActionRewind},
		{pattern: "POST /instances/{id}/fork", about: "Begins a new instance with the first events of the run.",
			service: to.copyInstance(operate.ActionFork, to.fork), action: operate.ActionFork},
		{pattern: operation + "retry-now", about: "Begins the next attempt of an activity now.",
			service: to.simpleControl(operate.RetryNow), action: operate.ActionRetryNow},
		{pattern: operation + "hold", about: "Keeps an activity from beginning attempts, or a timer from firing.",
			service: to.simpleControl(operate.Hold), action: operate.ActionHold},
		{pattern: operation + "release", about: "Ends a hold.",
			service: to.simpleControl(operate.Release), action: operate.ActionRelease},
		{pattern: operation + "fire-now", about: "Fires a timer now.",
			service: to.simpleControl(operate.FireNow), action: operate.ActionFireNow},
		{pattern: operation + "adjust", about: "Changes the timeouts and the retry policy of an open activity.",
			service: control(to.adjust), action: operate.ActionAdjust},
		{pattern: operation + "complete", about: "Ends an operation with a result.",
			service: control(to.complete), action: operate.ActionComplete},
		{pattern: operation + "fail", about: "Ends an activity or a child with an error.",
			service: control(to.fail), action: operate.ActionFail},
		{pattern: "POST /activities/{name}/pause", about: "Begins no attempts of an activity in the whole cluster.",
			service: to.pauseActivity(operate.ActionPauseActivity, operate.PauseActivity), action: operate.ActionPauseActivity},
		{pattern: "POST /activities/{name}/resume", about: "Ends a pause.",
			service: to.pauseActivity(operate.ActionResumeActivity, operate.ResumeActivity), action: operate.ActionResumeActivity},
		{pattern: "POST /bulk", about: "Starts a bulk job, or shows what it would visit.",
			service: takes(a.startJob)}, // the action is in the body
		{pattern: "POST /jobs/{id}/pause", about: "Pauses a bulk job.",
			service: change(pauseJob), action: cluster.ActionUpdate},
		{pattern: "POST /jobs/{id}/resume", about: "Resumes a bulk job.",
			service: change(resumeJob), action: cluster.ActionUpdate},
		{pattern: "POST /jobs/{id}/stop", about: "Stops a bulk job for good.",
			service: change(stopJob), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/pause", about: "Pauses a schedule. The reason becomes its note.",
			service: change(pauseSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/resume", about: "Resumes a schedule.",
			service: change(resumeSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/trigger", about: "Starts a run of a schedule now.",
			service: takes(a.triggerSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/backfill", about: "Starts the runs of the due times of an interval.",
			service: takes(a.backfillSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /cluster/nodes/{id}/remove", about: "Removes a node from the cluster.",
			service: takes(a.cluster.removeNode), action: cluster.ActionRemoveMember, general: true},
		{pattern: "POST /cluster/nodes/{id}/drain", about: "Moves the leadership of all partitions that a node leads.",
			service: takes(a.cluster.drainNode), action: operate.ActionTransfer, general: true},
		{pattern: "POST /cluster/partitions/{partition}/transfer", about: "Moves the leadership of a partition.",
			service: takes(a.cluster.transferPartition), action: operate.ActionTransfer},
	}
}

func cancelInstance(ctx context.Context, c *cluster.Client, id, reason string) error {
	return c.Cancel(ctx, id, reason)
}

func terminateInstance(ctx context.Context, c *cluster.Client, id, reason string) error {
	return c.Terminate(ctx, id, reason)
}

func suspendInstance(ctx context.Context, c *cluster.Client, id, reason string) error {
	return c.Suspend(ctx, id, reason)
}

func resumeInstance(ctx context.Context, c *cluster.Client, id, reason string) error {
	return c.Resume(ctx, id, reason)
}
