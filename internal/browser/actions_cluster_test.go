package browser

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
)

// scheduleActions are those of schedules.
func scheduleActions() []actionTest {
	return []actionTest{
		{"schedule-trigger", func(a *actor) {
			a.showSchedule(nil)
			a.confirmReason()
			a.awaitSchedule(func(d *schedule.Description) bool { return d.Started == 1 })
			a.shows("main tbody", "trigger")
			a.kept()
		}},
		{"schedule-backfill", func(a *actor) {
			a.showSchedule(nil)
			const layout = "2006-01-02T15:04:05" // of a field in which one chooses a time
			hour := time.Now().Truncate(time.Hour)
			a.choose("dialog[open] #field-from", hour.Add(-2*time.Hour).Format(layout))
			a.choose("dialog[open] #field-until", hour.Format(layout))
			a.confirmReason()
			a.awaitSchedule(func(d *schedule.Description) bool { return d.Started == 2 })
			a.shows("main tbody", "backfill")
			a.kept()
		}},
		{"schedule-pause", func(a *actor) {
			a.showSchedule(nil)
			a.confirmReason()
			a.awaitSchedule(func(d *schedule.Description) bool { return d.Paused && d.Note == a.reason() })
			a.badge("main", "paused")
			a.kept()
		}},
		{"schedule-resume", func(a *actor) {
			a.showSchedule(func() { a.check(schedule.Pause(a.context(), a.lab.client, a.id, "")) })
			a.confirmReason()
			a.awaitSchedule(func(d *schedule.Description) bool { return !d.Paused && d.Note == a.reason() })
			a.badge("main", "active")
			a.kept()
		}},
	}
}

// showSchedule makes a schedule and presses the button of the action on its page.
func (a *actor) showSchedule(prepare func()) {
	a.t.Helper()
	spec := schedule.Spec{Every: time.Hour}
	a.check(schedule.Create(a.context(), a.lab.client, a.id, spec, ender, "report"))
	if prepare != nil {
		prepare()
	}
	a.show("schedules/" + a.id)
	a.pressInMenu(".page-head", "Actions", "")
}

// awaitSchedule waits until a condition holds of the schedule of the test.
func (a *actor) awaitSchedule(holds func(*schedule.Description) bool) {
	a.t.Helper()
	a.until("the schedule "+a.id, func(ctx context.Context) (bool, error) {
		d, err := schedule.Describe(ctx, a.lab.client, a.id)
		if err != nil {
			return false, err
		}
		return holds(d), fmt.Errorf("it is %+v", d)
	})
}

// clusterActions are those of the code and the cluster. The last one removes a node.
func clusterActions() []actionTest {
	return []actionTest{
		{"pause-activity", pauseActivity},
		{"resume-activity", resumeActivity},
		{"transfer-leadership", func(a *actor) {
			from, to := a.leader(), "n1"
			if from == to {
				to = "n2"
			}
			a.show("cluster")
			a.pressInMenu("section[aria-labelledby=partitions]", "Transfer", "To "+to)
			a.fill("reason", a.reason())
			a.preview("Partition 0 moves to " + to)
			a.confirm()
			a.until(to+" leads", func(context.Context) (bool, error) { return a.leader() == to, nil })
			a.leads(to)
		}},
		{"drain-node", func(a *actor) {
			from := a.leader()
			a.show("cluster")
			a.pressInMenu(cardOf(from), "Actions", "")
			a.fill("reason", a.reason())
			a.preview("Partition 0 moves to ")
			a.confirm()
			to := ""
			a.until("another leader", func(context.Context) (bool, error) {
				to = a.leader()
				return to != from && to != "", nil
			})
			a.leads(to)
		}},
		{"remove-node", func(a *actor) {
			a.check(a.lab.lead(a.context(), "n1"))
			a.show("cluster")
			a.pressInMenu(cardOf("n3"), "Actions", "")
			a.fill("reason", a.reason())
			a.retype("n3")
			a.confirm()
			a.until("two members", func(ctx context.Context) (bool, error) {
				members, err := a.lab.client.Members(ctx)
				return len(members) == 2, err
			})
			a.logs(cluster.ActionRemoveMember, a.reason())
			a.await("two nodes", `document.querySelectorAll('article.node').length === 2`)
			a.kept()
		}},
	}
}

func cardOf(node string) string { return "article.node[aria-labelledby=node-" + node + "]" }

// leader returns the node that leads; "" during an election.
func (a *actor) leader() string {
	a.t.Helper()
	members, err := a.lab.client.Members(a.context())
	a.check(err)
	for _, m := range members {
		if m.Leader {
			return m.NodeID
		}
	}
	return ""
}

// leads waits until the log has by whom and why a node leads, and the page shows it.
func (a *actor) leads(node string) {
	a.t.Helper()
	a.logs(operate.ActionTransfer, a.reason())
	a.showsLeader(node)
	a.kept()
}

// showsLeader waits until the page of the cluster shows that a node leads.
func (a *actor) showsLeader(node string) {
	a.t.Helper()
	a.await(node+" leads on the page", fmt.Sprintf(
		`[...document.querySelectorAll(%q)].some((each) => each.querySelector('dt').textContent === 'Leads' && each.querySelector('dd').textContent === '0')`,
		cardOf(node)+" .facts > div"))
}

const chargeRow = `tr:has([aria-label$=" charge"])`

func pauseActivity(a *actor) {
	a.show("code")
	a.press(chargeRow)
	a.confirmReason()
	a.until("charge is paused", func(ctx context.Context) (bool, error) {
		pauses, err := operate.Pauses(ctx, a.lab.client)
		return slices.ContainsFunc(pauses, func(p operate.Pause) bool {
			return p.Activity == charge.Name() && p.Principal == principal && p.Reason == a.reason()
		}), err
	})
	a.logs(operate.ActionPauseActivity, a.reason())
	a.badge(chargeRow, "paused")
	a.kept()
}

func resumeActivity(a *actor) {
	a.check(operate.PauseActivity(a.context(), a.lab.client, charge.Name(), ""))
	a.show("code")
	a.badge(chargeRow, "paused")
	a.press(chargeRow)
	a.confirmReason()
	a.until("nothing is paused", func(ctx context.Context) (bool, error) {
		pauses, err := operate.Pauses(ctx, a.lab.client)
		return len(pauses) == 0, err
	})
	a.logs(operate.ActionResumeActivity, a.reason())
	a.await("no pause", fmt.Sprintf(`document.querySelector(%q) && !document.querySelector(%q)`, chargeRow, chargeRow+" .badge"))
	a.kept()
}
