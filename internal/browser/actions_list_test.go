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
		{"save-view", func(a *actor) {
			a.show("instances?filter=" + url.QueryEscape("name=waiter"))
			a.saveView()
			a.shows(".views a", "waiters of save-view")
			a.kept()
			a.open("instances") // the browser keeps it
			a.shows(".views a", "waiters of save-view")
		}},
		{"remove-view", func(a *actor) {
			a.show("instances?filter=" + url.QueryEscape("name=sleeper"))
			a.action = "save-view"
			a.saveView()
			a.action = "remove-view"
			a.press(".views")
			a.await("no such view", `![...document.querySelectorAll('.views a')].some((each) => each.textContent === 'waiters of save-view')`)
			a.kept()
		}},
		{"selected-suspend", func(a *actor) { a.changeSelected(a.waits, history.OrchestrationSuspended, cluster.Suspended) }},
		{"selected-resume", func(a *actor) { a.changeSelected(a.isSuspended, history.OrchestrationResumed, cluster.Running) }},
		{"selected-cancel", func(a *actor) { a.changeSelected(a.waits, history.OrchestrationCancelRequested, cluster.Canceled) }},
		{"selected-terminate", func(a *actor) { a.changeSelected(a.waits, history.OrchestrationTerminated, cluster.Terminated) }},
		{"selected-rerun", func(a *actor) { a.changeSelected(a.isTerminated, history.HistoryCopied, cluster.Running) }},
		{"selected-retry", func(a *actor) {
			defer a.lab.broken.Store(false)
			a.showStalled()
			a.lab.broken.Store(false)
			a.select1()
			a.preview("1 instance")
			a.confirm()
			a.logs(cluster.ActionRetry, "")
			a.becomes(cluster.Running)
		}},
		{"selected-purge", func(a *actor) {
			a.isTerminated()
			a.select1()
			a.preview("1 instance")
			a.confirm()
			a.isPurged()
			a.logs(cluster.ActionPurge, "")
			a.shows("main", "No instance matches this filter.")
			a.kept()
		}},
	}
}

func (a *actor) saveView() {
	a.t.Helper()
	a.press(".views")
	a.fill("name", "waiters of save-view")
	a.confirm()
}

// waits starts the instance of the test, which then waits.
func (a *actor) waits() {
	a.t.Helper()
	start1(a, waiter, "order", waitingEvents)
}

func (a *actor) isSuspended() {
	a.t.Helper()
	a.waits()
	a.check(a.lab.client.Suspend(a.context(), a.id, ""))
}

func (a *actor) isTerminated() {
	a.t.Helper()
	a.waits()
	a.check(a.lab.client.Terminate(a.context(), a.id, ""))
}

func (a *actor) isPurged() {
	a.t.Helper()
	a.until("no instance "+a.id, func(ctx context.Context) (bool, error) {
		_, err := a.lab.client.Get(ctx, a.id)
		return errors.Is(err, cluster.ErrNotFound), err
	})
}

// showList opens the list with the instance of the test alone.
func (a *actor) showList() {
	a.t.Helper()
	a.show("instances?filter=" + url.QueryEscape("tag.action="+a.action))
	a.await("one row", `document.querySelectorAll('main [data-row]').length === 1`)
}

// select1 selects the only row and presses the button of the action.
func (a *actor) select1() {
	a.t.Helper()
	a.showList()
	evaluate[int](a.tab, `document.querySelector('main [data-row] [data-select]').click(), 1`)
	a.press(".selection")
}

// changeSelected presses a button that changes the selected instance.
func (a *actor) changeSelected(prepare func(), records history.EventType, becomes cluster.State) {
	a.t.Helper()
	prepare()
	a.select1()
	a.fill("reason", a.reason())
	a.preview("1 instance")
	a.confirm()
	a.records(a.id, records)
	a.becomes(becomes)
}

// bulkActions are those on all instances that match a filter, and those of the jobs that do them.
func bulkActions() []actionTest {
	changed := func(a *actor, prepare func(), becomes cluster.State) {
		a.startJob(prepare)
		a.check(a.lab.await(a.context(), a.id, becomes))
	}
	return []actionTest{
		{"all-suspend", func(a *actor) { changed(a, a.waits, cluster.Suspended) }},
		{"all-resume", func(a *actor) { changed(a, a.isSuspended, cluster.Running) }},
		{"all-cancel", func(a *actor) { changed(a, a.waits, cluster.Canceled) }},
		{"all-terminate", func(a *actor) { changed(a, a.waits, cluster.Terminated) }},
		{"all-rerun", func(a *actor) { changed(a, a.isTerminated, cluster.Running) }},
		{"all-purge", func(a *actor) {
			a.startJob(a.isTerminated)
			a.isPurged()
		}},
		{"all-retry-now", func(a *actor) {
			a.startJob(a.startFailing)
			a.awaitOperation(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 2 })
		}},
		{"all-hold", func(a *actor) {
			a.startJob(a.startFailing)
			a.awaitOperation(func(o *cluster.OpenOperation) bool { return o.Held })
		}},
		{"all-release", func(a *actor) {
			a.startJob(func() {
				a.startFailing()
				a.check(operate.Hold(a.context(), a.lab.client, a.onlyOperation(), ""))
			})
			a.awaitOperation(func(o *cluster.OpenOperation) bool { return !o.Held })
		}},
		{"job-pause", func(a *actor) { a.changeJob(func(string) {}, "paused") }},
		{"job-resume", func(a *actor) {
			a.changeJob(func(id string) {
				a.check(bulk.Pause(a.context(), a.lab.client, id, ""))
				a.awaitJob(id, "paused", "")
			}, "running")
		}},
		{"job-stop", func(a *actor) { a.changeJob(func(string) {}, "stopped") }},
	}
}

// startJob starts a job for the only instance of the list. The page of the job follows.
func (a *actor) startJob(prepare func()) {
	a.t.Helper()
	prepare()
	a.showList()
	a.pressInMenu(".page-head", "Act on all that match", "")
	a.fill("reason", a.reason())
	a.preview("1 instance matches")
	a.confirm()
	a.badge("main", "completed")
	a.shows("main", "1 done")
	a.shows(".facts", a.reason())
	id := evaluate[string](a.tab, `document.querySelector('#page').dataset.id`)
	progress := a.awaitJob(id, "completed", a.reason())
	if progress.Done != 1 || progress.Principal != principal {
		a.t.Errorf("the job has done %d, for %q", progress.Done, progress.Principal)
	}
}

// awaitJob waits until a job is in a state, for a reason.
func (a *actor) awaitJob(id string, state bulk.State, reason string) (progress *bulk.Progress) {
	a.t.Helper()
	a.until(fmt.Sprintf("the job %s is %s because of %q", id, state, reason), func(ctx context.Context) (_ bool, err error) {
		if progress, err = bulk.Get(ctx, a.lab.client, id); err != nil {
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
func (a *actor) changeJob(prepare func(id string), becomes bulk.State) {
	a.t.Helper()
	ids := []string{a.id, a.id + "-b", a.id + "-c"}
	for _, a.id = range ids {
		a.waits()
	}
	id, err := bulk.Start(a.context(), a.lab.client, bulk.Job{
		Filter: cluster.Filter{Tags: map[string]string{"action": a.action}}, Action: bulk.Cancel, Rate: 0.01,
	})
	a.check(err)
	prepare(id)
	a.show("jobs/" + id)
	a.press(".page-head")
	a.confirmReason()
	a.awaitJob(id, becomes, a.reason())
	a.badge("main", string(becomes))
	a.kept()
}
