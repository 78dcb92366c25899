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
		{"suspend", func(a *actor) { a.control(nil, ".instance-actions", history.OrchestrationSuspended, cluster.Suspended) }},
		{"resume", func(a *actor) {
			suspend := func(ctx context.Context) error { return a.lab.client.Suspend(ctx, a.id, "") }
			a.control(suspend, ".instance-actions", history.OrchestrationResumed, cluster.Running)
		}},
		{"cancel", func(a *actor) {
			a.control(nil, ".instance-actions", history.OrchestrationCancelRequested, cluster.Canceled)
		}},
		{"terminate", terminateInstance},
		{"retry", retryStalled},
		{"rerun", func(a *actor) {
			end := func(ctx context.Context) error { return a.lab.client.Terminate(ctx, a.id, "") }
			a.control(end, ".instance-actions", history.HistoryCopied, cluster.Running)
			a.hasExecutions(2)
		}},
		{"rewind", func(a *actor) {
			a.showWaiter("")
			a.pressInMenu(".instance-actions", "Actions", "")
			a.confirmRewind("3")
		}},
		{"rewind-to-event", func(a *actor) {
			a.showWaiter("?tab=history&event=3")
			a.press(".history-detail")
			a.confirmRewind("")
		}},
		{"rewind-before-mismatch", rewindStalled},
		{"fork", func(a *actor) {
			a.showWaiter("")
			a.pressInMenu(".instance-actions", "Actions", "")
			a.confirmFork()
		}},
		{"fork-at-event", func(a *actor) {
			a.showWaiter("?tab=history&event=3")
			a.press(".history-detail")
			a.confirmFork()
		}},
		{"send-event", sendEvent},
		{"update", updateInstance},
		{"purge", purgeInstance},
		{"start", startInstance},
	}
}

// showWaiter opens the page of an instance that waits for its event.
func (a *actor) showWaiter(parameters string) {
	a.t.Helper()
	start1(a, waiter, "order", waitingEvents)
	a.show("instances/" + a.id + parameters)
}

// control presses a button of an instance that waits, after a preparation.
func (a *actor) control(prepare func(context.Context) error, within string, records history.EventType, becomes cluster.State) {
	a.t.Helper()
	start1(a, waiter, "order", waitingEvents)
	if prepare != nil {
		a.check(prepare(a.context()))
	}
	a.show("instances/" + a.id)
	a.press(within)
	a.confirmReason()
	a.records(a.id, records)
	a.becomes(becomes)
}

func terminateInstance(a *actor) {
	a.showWaiter("")
	a.pressInMenu(".instance-actions", "Actions", "")
	a.retype(a.id)
	a.confirmReason()
	a.records(a.id, history.OrchestrationTerminated)
	a.becomes(cluster.Terminated)
}

// hasExecutions checks how many executions there are, and that the page shows the latest.
func (a *actor) hasExecutions(n int) {
	a.t.Helper()
	a.until(strconv.Itoa(n)+" executions", func(ctx context.Context) (bool, error) {
		executions, err := a.lab.client.Executions(ctx, a.id)
		return len(executions) == n, err
	})
	a.shows(".facts option", strconv.Itoa(n)+", the latest")
	a.kept()
}

// confirmRewind confirms a rewind to an event; "": the one that the dialog suggests.
func (a *actor) confirmRewind(event string) {
	a.t.Helper()
	if event != "" {
		a.fill("event_id", event)
	}
	a.confirmReason()
	a.hasExecutions(2)
	a.records(a.id, history.HistoryCopied)
	a.becomes(cluster.Running)
}

func (a *actor) confirmFork() {
	a.t.Helper()
	source := a.id
	a.id = source + "-copy"
	a.fill("id", a.id)
	a.confirmReason() // the page of the new instance follows
	a.check(a.lab.await(a.context(), a.id, cluster.Running))
	a.records(a.id, history.HistoryCopied)
	a.shows("h1", a.id)
	a.badge("main", "running")
	if status, err := a.lab.client.Get(a.context(), source); err != nil || status.Execution != 1 || status.State != cluster.Running {
		a.t.Errorf("the source of the fork is %+v, %v", status, err)
	}
}

// showStalled starts an instance whose code then changes, and opens its page.
func (a *actor) showStalled() {
	a.t.Helper()
	start1(a, repaired, "order", waitingEvents)
	a.stall()
	a.show("instances/" + a.id)
	a.badge("main", "stalled")
}

// stall changes the code of the instance of the test, and waits until it is stalled.
func (a *actor) stall() {
	a.t.Helper()
	a.lab.broken.Store(true)
	a.check(a.lab.moveLeader(a.context()))
	asking, cancel := context.WithCancel(a.context())
	defer cancel()
	var loading sync.WaitGroup
	loading.Go(func() {
		for asking.Err() == nil { // loads the instance, and has no answer while that is stalled
			_, _ = a.lab.client.Stack(asking, a.id)
		}
	})
	defer loading.Wait()
	err := a.lab.await(a.context(), a.id, cluster.Stalled)
	cancel()
	a.check(err)
}

// moveLeader makes another node the leader.
func (l *lab) moveLeader(ctx context.Context) error {
	to := "n1"
	if l.nodes[0].IsLeader() {
		to = "n2"
	}
	return l.lead(ctx, to)
}

func retryStalled(a *actor) {
	defer a.lab.broken.Store(false)
	a.showStalled()
	a.lab.broken.Store(false)
	a.press(".instance-actions")
	a.confirm()
	a.logs(cluster.ActionRetry, "")
	a.becomes(cluster.Running)
}

func rewindStalled(a *actor) {
	defer a.lab.broken.Store(false)
	a.showStalled()
	a.press(".mismatch")
	a.confirmReason()
	a.hasExecutions(2)
	a.records(a.id, history.HistoryCopied)
	a.becomes(cluster.Running) // with the code that fits the shorter history
}

func sendEvent(a *actor) {
	a.showWaiter("")
	a.pressInMenu(".instance-actions", "Actions", "")
	a.fill("name", goAhead.Name(), "data", `"sent from the page"`)
	a.confirmReason()
	a.records(a.id, history.ExternalEvent)
	a.becomes(cluster.Completed)
	a.shows(".facts", "sent from the page")
	var output string
	if status, err := a.lab.client.Get(a.context(), a.id); err != nil || status.Output(&output) != nil || output != "sent from the page" {
		a.t.Errorf("the output is %q, %v", output, err)
	}
}

func updateInstance(a *actor) {
	start1(a, desk, "the old name", 2)
	a.show("instances/" + a.id)
	a.pressInMenu(".instance-actions", "Actions", "")
	a.fill("name", rename.Name(), "input", `"the new name"`, "reason", a.reason())
	a.pressKey("dialog[open] [data-action=confirm]", "")
	a.shows("dialog[open]", "the old name") // the answer
	a.pressKey("dialog[open] [data-action=confirm]", "Close")
	a.shows(".facts", "named the new name")
	a.kept()
	var text string
	if status, err := a.lab.client.Get(a.context(), a.id); err != nil || status.CustomStatus(&text) != nil || text != "named the new name" {
		a.t.Errorf("the custom status is %q, %v", text, err)
	}
}

func purgeInstance(a *actor) {
	a.check(start(a.context(), a.lab, ender, a.id, "done"))
	a.check(a.lab.await(a.context(), a.id, cluster.Completed))
	a.show("instances/" + a.id)
	a.pressInMenu(".instance-actions", "Actions", "")
	if evaluate[bool](a.tab, `document.querySelector('dialog[open] #field-reason') !== null`) {
		a.t.Error("the dialog asks for a reason, which nothing keeps")
	}
	a.retype(a.id)
	a.confirm() // the list of instances follows
	a.until("no instance", func(ctx context.Context) (bool, error) {
		_, err := a.lab.client.Get(ctx, a.id)
		return errors.Is(err, cluster.ErrNotFound), err
	})
	a.logs(cluster.ActionPurge, "")
	a.shows("h1", "Instances")
}

func startInstance(a *actor) {
	a.show("instances")
	a.press(".page-head")
	a.choose("dialog[open] #field-name", waiter.Name())
	a.fill("id", a.id, "input", `"typed by hand"`, "tags", `{"team": "browser"}`)
	a.confirm() // the page of the instance follows
	a.check(a.lab.await(a.context(), a.id, cluster.Running))
	a.shows("h1", a.id)
	a.shows(".facts", "waits: typed by hand")
	if status, err := a.lab.client.Get(a.context(), a.id); err != nil || status.Name != waiter.Name() || status.Tags["team"] != "browser" {
		a.t.Errorf("started %+v, %v", status, err)
	}
}
