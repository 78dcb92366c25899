package browser

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// What the buttons act on, besides the instances of the other tests.
var (
	repaired = replay.Orchestration[string, string]("repaired")
	sleeper  = replay.Orchestration[string, string]("sleeper")
	desk     = replay.Orchestration[string, string]("desk")
	parent   = replay.Orchestration[string, string]("parent")
	rename   = replay.Update[string, string]("rename")
)

func (l *lab) actionDefinitions() []replay.Definition {
	return []replay.Definition{
		repaired.Bind(func(ctx *replay.Context, input string) (string, error) {
			if l.broken.Load() {
				if err := ctx.Sleep(time.Hour); err != nil {
					return "", err
				}
			}
			return waitForEvent(ctx, input)
		}),
		sleeper.Bind(func(ctx *replay.Context, input string) (string, error) { return input, ctx.Sleep(time.Hour) }),
		desk.Bind(func(ctx *replay.Context, name string) (string, error) {
			err := rename.Handle(ctx, nil, func(ctx *replay.Context, to string) (string, error) {
				old := name
				name = to
				return old, replay.SetStatus(ctx, "named "+to)
			})
			if err != nil {
				return "", err
			}
			return goAhead.Wait(ctx)
		}),
		parent.Bind(func(ctx *replay.Context, input string) (string, error) { return sleeper.Call(ctx, input) }),
	}
}

const waitingEvents = 5 // of an instance of waiter that waits for its event

// instanceActions are those of the page of an instance.
func instanceActions() []actionTest {
	return []actionTest{
		{"suspend", func(u *user) { u.control(nil, ".instance-actions", history.OrchestrationSuspended, cluster.Suspended) }},
		{"resume", func(u *user) {
			suspend := func(ctx context.Context) error { return u.lab.client.Suspend(ctx, u.id, "") }
			u.control(suspend, ".instance-actions", history.OrchestrationResumed, cluster.Running)
		}},
		{"cancel", func(u *user) {
			u.control(nil, ".instance-actions", history.OrchestrationCancelRequested, cluster.Canceled)
		}},
		{"terminate", terminateInstance},
		{"retry", retryStalled},
		{"rerun", func(u *user) {
			end := func(ctx context.Context) error { return u.lab.client.Terminate(ctx, u.id, "") }
			u.control(end, ".instance-actions", history.HistoryCopied, cluster.Running)
			u.hasExecutions(2)
		}},
		{"rewind", func(u *user) {
			u.showWaiter("")
			u.pressInMenu(".instance-actions", "Actions", "")
			u.confirmRewind("3")
		}},
		{"rewind-to-event", func(u *user) {
			u.showWaiter("?tab=history&event=3")
			u.press(".history-detail")
			u.confirmRewind("")
		}},
		{"rewind-before-mismatch", rewindStalled},
		{"fork", func(u *user) {
			u.showWaiter("")
			u.pressInMenu(".instance-actions", "Actions", "")
			u.confirmFork()
		}},
		{"fork-at-event", func(u *user) {
			u.showWaiter("?tab=history&event=3")
			u.press(".history-detail")
			u.confirmFork()
		}},
		{"send-event", sendEvent},
		{"update", updateInstance},
		{"purge", purgeInstance},
		{"start", startInstance},
	}
}

// showWaiter opens the page of an instance that waits for its event.
func (u *user) showWaiter(parameters string) {
	u.t.Helper()
	startOwn(u, waiter, "order", waitingEvents)
	u.show("instances/" + u.id + parameters)
}

// control presses a button of an instance that waits, after a preparation.
func (u *user) control(prepare func(context.Context) error, within string, records history.EventType, becomes cluster.State) {
	u.t.Helper()
	startOwn(u, waiter, "order", waitingEvents)
	if prepare != nil {
		u.check(prepare(u.context()))
	}
	u.show("instances/" + u.id)
	u.press(within)
	u.confirmReason()
	u.records(u.id, records)
	u.becomes(becomes)
}

func terminateInstance(u *user) {
	u.showWaiter("")
	u.pressInMenu(".instance-actions", "Actions", "")
	u.retype(u.id)
	u.confirmReason()
	u.records(u.id, history.OrchestrationTerminated)
	u.becomes(cluster.Terminated)
}

// hasExecutions checks how many executions there are, and that the page shows the latest.
func (u *user) hasExecutions(n int) {
	u.t.Helper()
	u.until(strconv.Itoa(n)+" executions", func(ctx context.Context) (bool, error) {
		executions, err := u.lab.client.Executions(ctx, u.id)
		return len(executions) == n, err
	})
	u.shows(".facts option", strconv.Itoa(n)+", the latest")
	u.kept()
}

// confirmRewind confirms a rewind to an event; "": the one that the dialog suggests.
func (u *user) confirmRewind(event string) {
	u.t.Helper()
	if event != "" {
		u.fill("event_id", event)
	}
	u.confirmReason()
	u.hasExecutions(2)
	u.records(u.id, history.HistoryCopied)
	u.becomes(cluster.Running)
}

func (u *user) confirmFork() {
	u.t.Helper()
	source := u.id
	u.id = source + "-copy"
	u.fill("id", u.id)
	u.confirmReason() // the page of the new instance follows
	u.check(u.lab.await(u.context(), u.id, cluster.Running))
	u.records(u.id, history.HistoryCopied)
	u.shows("h1", u.id)
	u.badge("main", "running")
	if status, err := u.lab.client.Get(u.context(), source); err != nil || status.Execution != 1 || status.State != cluster.Running {
		u.t.Errorf("the source of the fork is %+v, %v", status, err)
	}
}

// showStalled starts an instance whose code then changes, and opens its page.
func (u *user) showStalled() {
	u.t.Helper()
	startOwn(u, repaired, "order", waitingEvents)
	u.stall()
	u.show("instances/" + u.id)
	u.badge("main", "stalled")
}

// stall changes the code of the instance of the test, and waits until it is stalled.
func (u *user) stall() {
	u.t.Helper()
	u.lab.broken.Store(true)
	u.check(u.lab.moveLeader(u.context()))
	asking, cancel := context.WithCancel(u.context())
	defer cancel()
	var loading sync.WaitGroup
	loading.Go(func() {
		for asking.Err() == nil { // loads the instance, and has no answer while that is stalled
			_, _ = u.lab.client.Stack(asking, u.id)
		}
	})
	defer loading.Wait()
	err := u.lab.await(u.context(), u.id, cluster.Stalled)
	cancel()
	u.check(err)
}

// moveLeader makes another node the leader.
func (l *lab) moveLeader(ctx context.Context) error {
	to := "n1"
	if l.nodes[0].IsLeader() {
		to = "n2"
	}
	return l.lead(ctx, to)
}

func retryStalled(u *user) {
	defer u.lab.broken.Store(false)
	u.showStalled()
	u.lab.broken.Store(false)
	u.press(".instance-actions")
	u.confirm()
	u.logs(cluster.ActionRetry, "")
	u.becomes(cluster.Running)
}

func rewindStalled(u *user) {
	defer u.lab.broken.Store(false)
	u.showStalled()
	u.press(".mismatch")
	u.confirmReason()
	u.hasExecutions(2)
	u.records(u.id, history.HistoryCopied)
	u.becomes(cluster.Running) // with the code that fits the shorter history
}

func sendEvent(u *user) {
	u.showWaiter("")
	u.pressInMenu(".instance-actions", "Actions", "")
	u.fill("name", goAhead.Name(), "data", `"sent from the page"`)
	u.confirmReason()
	u.records(u.id, history.ExternalEvent)
	u.becomes(cluster.Completed)
	u.shows(".facts", "sent from the page")
	var output string
	if status, err := u.lab.client.Get(u.context(), u.id); err != nil || status.Output(&output) != nil || output != "sent from the page" {
		u.t.Errorf("the output is %q, %v", output, err)
	}
}

func updateInstance(u *user) {
	startOwn(u, desk, "the old name", 2)
	u.show("instances/" + u.id)
	u.pressInMenu(".instance-actions", "Actions", "")
	u.fill("name", rename.Name(), "input", `"the new name"`, "reason", u.reason())
	u.pressKey("dialog[open] [data-action=confirm]", "")
	u.shows("dialog[open]", "the old name") // the answer
	u.pressKey("dialog[open] [data-action=confirm]", "Close")
	u.shows(".facts", "named the new name")
	u.kept()
	var text string
	if status, err := u.lab.client.Get(u.context(), u.id); err != nil || status.CustomStatus(&text) != nil || text != "named the new name" {
		u.t.Errorf("the custom status is %q, %v", text, err)
	}
}

func purgeInstance(u *user) {
	u.check(start(u.context(), u.lab, ender, u.id, "done"))
	u.check(u.lab.await(u.context(), u.id, cluster.Completed))
	u.show("instances/" + u.id)
	u.pressInMenu(".instance-actions", "Actions", "")
	if evaluate[bool](u.tab, `document.querySelector('dialog[open] #field-reason') !== null`) {
		u.t.Error("the dialog asks for a reason, which nothing keeps")
	}
	u.retype(u.id)
	u.confirm() // the list of instances follows
	u.until("no instance", func(ctx context.Context) (bool, error) {
		_, err := u.lab.client.Get(ctx, u.id)
		return errors.Is(err, cluster.ErrNotFound), err
	})
	u.logs(cluster.ActionPurge, "")
	u.shows("h1", "Instances")
}

func startInstance(u *user) {
	u.show("instances")
	u.press(".page-head")
	u.choose("dialog[open] #field-name", waiter.Name())
	u.fill("id", u.id, "input", `"typed by hand"`, "tags", `{"team": "browser"}`)
	u.confirm() // the page of the instance follows
	u.check(u.lab.await(u.context(), u.id, cluster.Running))
	u.shows("h1", u.id)
	u.shows(".facts", "waits: typed by hand")
	if status, err := u.lab.client.Get(u.context(), u.id); err != nil || status.Name != waiter.Name() || status.Tags["team"] != "browser" {
		u.t.Errorf("started %+v, %v", status, err)
	}
}
