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
		{"schedule-trigger", func(u *user) {
			u.showSchedule(nil)
			u.confirmReason()
			u.awaitSchedule(func(d *schedule.Description) bool { return d.Started == 1 })
			u.shows("main tbody", "trigger")
			u.kept()
		}},
		{"schedule-backfill", func(u *user) {
			u.showSchedule(nil)
			const layout = "2006-01-02T15:04:05" // of a field in which one chooses a time
			hour := time.Now().Truncate(time.Hour)
			u.choose("dialog[open] #field-from", hour.Add(-2*time.Hour).Format(layout))
			u.choose("dialog[open] #field-until", hour.Format(layout))
			u.confirmReason()
			u.awaitSchedule(func(d *schedule.Description) bool { return d.Started == 2 })
			u.shows("main tbody", "backfill")
			u.kept()
		}},
		{"schedule-pause", func(u *user) {
			u.showSchedule(nil)
			u.confirmReason()
			u.awaitSchedule(func(d *schedule.Description) bool { return d.Paused && d.Note == u.reason() })
			u.badge("main", "paused")
			u.kept()
		}},
		{"schedule-resume", func(u *user) {
			u.showSchedule(func() { u.check(schedule.Pause(u.context(), u.lab.client, u.id, "")) })
			u.confirmReason()
			u.awaitSchedule(func(d *schedule.Description) bool { return !d.Paused && d.Note == u.reason() })
			u.badge("main", "active")
			u.kept()
		}},
	}
}

// showSchedule makes a schedule and presses the button of the action on its page.
func (u *user) showSchedule(prepare func()) {
	u.t.Helper()
	spec := schedule.Spec{Every: time.Hour}
	u.check(schedule.Create(u.context(), u.lab.client, u.id, spec, ender, "report"))
	if prepare != nil {
		prepare()
	}
	u.show("schedules/" + u.id)
	u.pressInMenu(".page-head", "Actions", "")
}

// awaitSchedule waits until a condition holds of the schedule of the test.
func (u *user) awaitSchedule(holds func(*schedule.Description) bool) {
	u.t.Helper()
	u.until("the schedule "+u.id, func(ctx context.Context) (bool, error) {
		d, err := schedule.Describe(ctx, u.lab.client, u.id)
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
		{"transfer-leadership", func(u *user) {
			from, to := u.leader(), "n1"
			if from == to {
				to = "n2"
			}
			u.show("cluster")
			u.pressInMenu("section[aria-labelledby=partitions]", "Transfer", "To "+to)
			u.fill("reason", u.reason())
			u.preview("Partition 0 moves to " + to)
			u.confirm()
			u.until(to+" leads", func(context.Context) (bool, error) { return u.leader() == to, nil })
			u.leads(to)
		}},
		{"drain-node", func(u *user) {
			from := u.leader()
			u.show("cluster")
			u.pressInMenu(cardOf(from), "Actions", "")
			u.fill("reason", u.reason())
			u.preview("Partition 0 moves to ")
			u.confirm()
			to := ""
			u.until("another leader", func(context.Context) (bool, error) {
				to = u.leader()
				return to != from && to != "", nil
			})
			u.leads(to)
		}},
		{"remove-node", func(u *user) {
			u.check(u.lab.lead(u.context(), "n1"))
			u.show("cluster")
			u.pressInMenu(cardOf("n3"), "Actions", "")
			u.fill("reason", u.reason())
			u.retype("n3")
			u.confirm()
			u.until("two members", func(ctx context.Context) (bool, error) {
				members, err := u.lab.client.Members(ctx)
				return len(members) == 2, err
			})
			u.logs(cluster.ActionRemoveMember, u.reason())
			u.await("two nodes", `document.querySelectorAll('article.node').length === 2`)
			u.kept()
		}},
	}
}

func cardOf(node string) string { return "article.node[aria-labelledby=node-" + node + "]" }

// leader returns the node that leads; "" during an election.
func (u *user) leader() string {
	u.t.Helper()
	members, err := u.lab.client.Members(u.context())
	u.check(err)
	for _, m := range members {
		if m.Leader {
			return m.NodeID
		}
	}
	return ""
}

// leads waits until the log says who made a node the leader and why, and the page shows the leader.
func (u *user) leads(node string) {
	u.t.Helper()
	u.logs(operate.ActionTransfer, u.reason())
	u.showsLeader(node)
	u.kept()
}

// showsLeader waits until the page of the cluster shows that a node leads.
func (u *user) showsLeader(node string) {
	u.t.Helper()
	u.await(node+" leads on the page", fmt.Sprintf(
		`[...document.querySelectorAll(%q)].some((each) => each.querySelector('dt').textContent === 'Leads' && each.querySelector('dd').textContent === '0')`,
		cardOf(node)+" .facts > div"))
}

const chargeRow = `tr:has([aria-label$=" charge"])`

func pauseActivity(u *user) {
	u.show("code")
	u.press(chargeRow)
	u.confirmReason()
	u.until("charge is paused", func(ctx context.Context) (bool, error) {
		pauses, err := operate.Pauses(ctx, u.lab.client)
		return slices.ContainsFunc(pauses, func(p operate.Pause) bool {
			return p.Activity == charge.Name() && p.Principal == principal && p.Reason == u.reason()
		}), err
	})
	u.logs(operate.ActionPauseActivity, u.reason())
	u.badge(chargeRow, "paused")
	u.kept()
}

func resumeActivity(u *user) {
	u.check(operate.PauseActivity(u.context(), u.lab.client, charge.Name(), ""))
	u.show("code")
	u.badge(chargeRow, "paused")
	u.press(chargeRow)
	u.confirmReason()
	u.until("nothing is paused", func(ctx context.Context) (bool, error) {
		pauses, err := operate.Pauses(ctx, u.lab.client)
		return len(pauses) == 0, err
	})
	u.logs(operate.ActionResumeActivity, u.reason())
	u.await("no pause", fmt.Sprintf(`document.querySelector(%q) && !document.querySelector(%q)`, chargeRow, chargeRow+" .badge"))
	u.kept()
}
