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
		{pattern: "GET /overview", serve: a.cluster.showOverview, action: cluster.ActionList},
		{pattern: "GET /instances", serve: in.listInstances, action: cluster.ActionList},
		{pattern: "GET /instances/count", serve: in.countInstances, action: cluster.ActionList},
		{pattern: "GET /filter/complete", serve: in.completeFilter, action: cluster.ActionList},
		{pattern: "GET /instances/{id}", serve: in.getInstance, action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/history", serve: of.readHistory, action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/payload", serve: of.readPayload, action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/timeline", serve: of.readTimeline, action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/watch", stream: of.watchInstance, action: cluster.ActionHistory},
		{pattern: "GET /instances/{id}/pending", serve: in.listPending, action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/stack", serve: in.showStack, action: cluster.ActionGet},
		{pattern: "GET /instances/{id}/children", serve: in.listChildren, action: cluster.ActionList, general: true},
		{pattern: "GET /instances/{id}/query/{name}", serve: in.queryInstance, action: cluster.ActionQuery},
		{pattern: "GET /instances/{id}/kv/{name}", serve: in.readKV, action: cluster.ActionGet},
		{pattern: "GET /jobs", serve: a.listJobs, action: cluster.ActionList},
		{pattern: "GET /jobs/{id}", serve: a.getJob, action: cluster.ActionQuery},
		{pattern: "GET /schedules", serve: a.listSchedules, action: cluster.ActionList},
		{pattern: "GET /schedules/{id}", serve: a.getSchedule, action: cluster.ActionQuery},
		{pattern: "GET /code", serve: a.cluster.showCode, action: cluster.ActionSeeMembers},
		{pattern: "GET /cluster", serve: a.cluster.showCluster, action: cluster.ActionSeeMembers},
	}
}

func (a *API) changeRoutes() []route {
	to := &changeAPI{a}
	const operation = "POST /instances/{id}/operations/{execution}/{event}/"
	return []route{
		{pattern: "POST /instances", serve: to.startInstance}, // the ID is in the body
		{pattern: "POST /instances/{id}/events/{name}", serve: to.sendEvent, action: cluster.ActionSend},
		{pattern: "POST /instances/{id}/updates/{name}", serve: to.updateInstance, action: cluster.ActionUpdate},
		{pattern: "POST /instances/{id}/cancel", serve: change(cancelInstance), action: cluster.ActionCancel},
		{pattern: "POST /instances/{id}/terminate", serve: change(terminateInstance), action: cluster.ActionTerminate},
		{pattern: "POST /instances/{id}/suspend", serve: change(suspendInstance), action: cluster.ActionSuspend},
		{pattern: "POST /instances/{id}/resume", serve: change(resumeInstance), action: cluster.ActionResume},
		{pattern: "POST /instances/{id}/retry", serve: change(retryInstance), action: cluster.ActionRetry},
		{pattern: "POST /instances/{id}/purge", serve: to.purgeInstance, action: cluster.ActionPurge},
		{pattern: "POST /instances/{id}/rerun", serve: to.copyInstance(operate.ActionRerun, to.rerun), action: operate.ActionRerun},
		{pattern: "POST /instances/{id}/rewind", serve: to.copyInstance(operate.ActionRewind, to.rewind), action: operate.ActionRewind},
		{pattern: "POST /instances/{id}/fork", serve: to.copyInstance(operate.ActionFork, to.fork), action: operate.ActionFork},
		{pattern: operation + "retry-now", serve: to.simpleControl(operate.RetryNow), action: operate.ActionRetryNow},
		{pattern: operation + "hold", serve: to.simpleControl(operate.Hold), action: operate.ActionHold},
		{pattern: operation + "release", serve: to.simpleControl(operate.Release), action: operate.ActionRelease},
		{pattern: operation + "fire-now", serve: to.simpleControl(operate.FireNow), action: operate.ActionFireNow},
		{pattern: operation + "adjust", serve: to.control(to.adjust), action: operate.ActionAdjust},
		{pattern: operation + "complete", serve: to.control(to.complete), action: operate.ActionComplete},
		{pattern: operation + "fail", serve: to.control(to.fail), action: operate.ActionFail},
		{pattern: "POST /activities/{name}/pause", serve: to.pauseActivity(operate.PauseActivity), action: operate.ActionPauseActivity},
		{pattern: "POST /activities/{name}/resume", serve: to.pauseActivity(operate.ResumeActivity), action: operate.ActionResumeActivity},
		{pattern: "POST /bulk", serve: a.startJob}, // the action is in the body
		{pattern: "POST /jobs/{id}/pause", serve: change(pauseJob), action: cluster.ActionUpdate},
		{pattern: "POST /jobs/{id}/resume", serve: change(resumeJob), action: cluster.ActionUpdate},
		{pattern: "POST /jobs/{id}/stop", serve: change(stopJob), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/pause", serve: change(pauseSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/resume", serve: change(resumeSchedule), action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/trigger", serve: a.triggerSchedule, action: cluster.ActionUpdate},
		{pattern: "POST /schedules/{id}/backfill", serve: a.backfillSchedule, action: cluster.ActionUpdate},
		{pattern: "POST /cluster/nodes/{id}/remove", serve: change(removeNode), action: cluster.ActionRemoveMember, general: true},
		{pattern: "POST /cluster/nodes/{id}/drain", serve: a.cluster.drainNode, action: operate.ActionTransfer, general: true},
		{pattern: "POST /cluster/partitions/{partition}/transfer", serve: a.cluster.transferPartition, action: operate.ActionTransfer},
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

func retryInstance(ctx context.Context, c *cluster.Client, id, _ string) error {
	return c.Retry(ctx, id)
}

func removeNode(ctx context.Context, c *cluster.Client, id, _ string) error {
	return c.RemoveNode(ctx, id)
}
