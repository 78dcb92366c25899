package browser

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// listActions are those of the list of instances: its views, and the selected rows.
func listActions() []actionTest {
	return []actionTest{
		{"save-view", func(u *user) {
			u.show("instances?filter=" + url.QueryEscape("name=waiter"))
			u.saveView()
			u.shows(".views a", "waiters of save-view")
			u.kept()
			u.open("instances") // the browser keeps it
			u.shows(".views a", "waiters of save-view")
		}},
		{"remove-view", func(u *user) {
			u.show("instances?filter=" + url.QueryEscape("name=sleeper"))
			u.action = "save-view"
			u.saveView()
			u.action = "remove-view"
			u.press(".views")
			u.await("no such view", `![...document.querySelectorAll('.views a')].some((each) => each.textContent === 'waiters of save-view')`)
			u.kept()
		}},
		{"selected-suspend", func(u *user) { u.changeSelected(u.waits, history.OrchestrationSuspended, cluster.Suspended) }},
		{"selected-resume", func(u *user) { u.changeSelected(u.isSuspended, history.OrchestrationResumed, cluster.Running) }},
		{"selected-cancel", func(u *user) { u.changeSelected(u.waits, history.OrchestrationCancelRequested, cluster.Canceled) }},
		{"selected-terminate", func(u *user) { u.changeSelected(u.waits, history.OrchestrationTerminated, cluster.Terminated) }},
		{"selected-rerun", func(u *user) { u.changeSelected(u.isTerminated, history.HistoryCopied, cluster.Running) }},
		{"selected-retry", func(u *user) {
			defer u.lab.broken.Store(false)
			u.showStalled()
			u.lab.broken.Store(false)
			u.selectOnly()
			u.preview("1 instance")
			u.confirm()
			u.logs(cluster.ActionRetry, "")
			u.becomes(cluster.Running)
		}},
		{"selected-purge", func(u *user) {
			u.isTerminated()
			u.selectOnly()
			u.preview("1 instance")
			u.confirm()
			u.isPurged()
			u.logs(cluster.ActionPurge, "")
			u.shows("main", "No instance matches this filter.")
			u.kept()
		}},
	}
}

func (u *user) saveView() {
	u.t.Helper()
	u.press(".views")
	u.fill("name", "waiters of save-view")
	u.confirm()
}

// waits starts the instance of the test, which then waits.
func (u *user) waits() {
	u.t.Helper()
	startOwn(u, waiter, "order", waitingEvents)
}

func (u *user) isSuspended() {
	u.t.Helper()
	u.waits()
	u.check(u.lab.client.Suspend(u.context(), u.id, ""))
}

func (u *user) isTerminated() {
	u.t.Helper()
	u.waits()
	u.check(u.lab.client.Terminate(u.context(), u.id, ""))
}

func (u *user) isPurged() {
	u.t.Helper()
	u.until("no instance "+u.id, func(ctx context.Context) (bool, error) {
		_, err := u.lab.client.Get(ctx, u.id)
		return errors.Is(err, cluster.ErrNotFound), err
	})
}

// showList opens the list with the instance of the test alone.
func (u *user) showList() {
	u.t.Helper()
	u.show("instances?filter=" + url.QueryEscape("tag.action="+u.action))
	u.await("one row", `document.querySelectorAll('main [data-row]').length === 1`)
}

// selectOnly selects the only row and presses the button of the action.
func (u *user) selectOnly() {
	u.t.Helper()
	u.showList()
	evaluate[int](u.tab, `document.querySelector('main [data-row] [data-select]').click(), 1`)
	u.press(".selection")
}

// changeSelected presses a button that changes the selected instance.
func (u *user) changeSelected(prepare func(), records history.EventType, becomes cluster.State) {
	u.t.Helper()
	prepare()
	u.selectOnly()
	u.fill("reason", u.reason())
	u.preview("1 instance")
	u.confirm()
	u.records(u.id, records)
	u.becomes(becomes)
}

// bulkActions are those on all instances that match a filter, and those of the jobs that do them.
func bulkActions() []actionTest {
	changed := func(u *user, prepare func(), becomes cluster.State) {
		u.startJob(prepare)
		u.check(u.lab.await(u.context(), u.id, becomes))
	}
	return []actionTest{
		{"all-suspend", func(u *user) { changed(u, u.waits, cluster.Suspended) }},
		{"all-resume", func(u *user) { changed(u, u.isSuspended, cluster.Running) }},
		{"all-cancel", func(u *user) { changed(u, u.waits, cluster.Canceled) }},
		{"all-terminate", func(u *user) { changed(u, u.waits, cluster.Terminated) }},
		{"all-rerun", func(u *user) { changed(u, u.isTerminated, cluster.Running) }},
		{"all-purge", func(u *user) {
			u.startJob(u.isTerminated)
			u.isPurged()
		}},
		{"all-retry-now", func(u *user) {
			u.startJob(u.startFailing)
			u.awaitOperation(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 2 })
		}},
		{"all-hold", func(u *user) {
			u.startJob(u.startFailing)
			u.awaitOperation(func(o *cluster.OpenOperation) bool { return o.Held })
		}},
		{"all-release", func(u *user) {
			u.startJob(func() {
				u.startFailing()
				u.check(operate.Hold(u.context(), u.lab.client, u.onlyOperation(), ""))
			})
			u.awaitOperation(func(o *cluster.OpenOperation) bool { return !o.Held })
		}},
		{"job-pause", func(u *user) { u.changeJob(func(string) {}, "paused") }},
		{"job-resume", func(u *user) {
			u.changeJob(func(id string) {
				u.check(bulk.Pause(u.context(), u.lab.client, id, ""))
				u.awaitJob(id, "paused", "")
			}, "running")
		}},
		{"job-stop", func(u *user) { u.changeJob(func(string) {}, "stopped") }},
	}
}

// startJob starts a job for the only instance of the list. The page of the job follows.
func (u *user) startJob(prepare func()) {
	u.t.Helper()
	prepare()
	u.showList()
	u.pressInMenu(".page-head", "Act on all that match", "")
	u.fill("reason", u.reason())
	u.preview("1 instance matches")
	u.confirm()
	u.badge("main", "completed")
	u.shows("main", "1 done")
	u.shows(".facts", u.reason())
	id := evaluate[string](u.tab, `document.querySelector('#page').dataset.id`)
	progress := u.awaitJob(id, "completed", u.reason())
	if progress.Done != 1 || progress.Principal != principal {
		u.t.Errorf("the job has done %d, for %q", progress.Done, progress.Principal)
	}
}

// awaitJob waits until a job is in a state, for a reason.
func (u *user) awaitJob(id string, state bulk.State, reason string) (progress *bulk.Progress) {
	u.t.Helper()
	u.until(fmt.Sprintf("the job %s is %s because of %q", id, state, reason), func(ctx context.Context) (_ bool, err error) {
		if progress, err = bulk.Get(ctx, u.lab.client, id); err != nil {
			return false, err
		}
		if state == "completed" {
			return progress.State == state && progress.Job.Reason == reason, nil
		}
		return progress.State == state && progress.Note == reason, fmt.Errorf("%s because of %q", progress.State, progress.Note)
	})
	return progress
}

// changeJob presses a button of a job that is in progress for long.
func (u *user) changeJob(prepare func(id string), becomes bulk.State) {
	u.t.Helper()
	ids := []string{u.id, u.id + "-b", u.id + "-c"}
	for _, u.id = range ids {
		u.waits()
	}
	id, err := bulk.Start(u.context(), u.lab.client, bulk.Job{
		Filter: cluster.Filter{Tags: map[string]string{"action": u.action}}, Action: bulk.Cancel, Rate: 0.01,
	})
	u.check(err)
	prepare(id)
	u.show("jobs/" + id)
	u.press(".page-head")
	u.confirmReason()
	u.awaitJob(id, becomes, u.reason())
	u.badge("main", string(becomes))
	u.kept()
}
