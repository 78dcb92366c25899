package browser

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// operationActions are those of the open operations of an instance.
func operationActions() []actionTest {
	return []actionTest{
		{"retry-activity", func(u *user) {
			u.showFailing()
			u.press(".pending")
			u.confirmControl(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 2 })
			u.shows(".pending-attempts", "2 failed")
		}},
		{"hold", func(u *user) {
			u.showFailing()
			u.press(".pending")
			u.confirmControl(func(o *cluster.OpenOperation) bool { return o.Held })
			u.badge(".pending", "held")
		}},
		{"release", func(u *user) {
			u.startFailing()
			u.check(operate.Hold(u.context(), u.lab.client, u.onlyOperation(), ""))
			u.show("instances/" + u.id + "?tab=pending")
			u.badge(".pending", "held")
			u.press(".pending")
			u.confirmControl(func(o *cluster.OpenOperation) bool { return !o.Held })
			u.badge(".pending", "backing off")
		}},
		{"adjust-activity", func(u *user) {
			u.showFailing()
			u.press(".pending")
			u.fill("max_attempts", "1")
			u.confirmReason()
			u.records(u.id, history.OperationControlled)
			u.becomes(cluster.Failed) // its only attempt was the last one that the new policy permits
		}},
		{"complete-operation", func(u *user) {
			u.showFailing()
			u.press(".pending")
			u.fill("output", `"paid in cash"`)
			u.confirmReason()
			u.records(u.id, history.ActivityCompleted)
			u.becomes(cluster.Completed)
			u.shows(".facts", "paid in cash")
		}},
		{"fail-operation", func(u *user) {
			u.showFailing()
			u.press(".pending")
			u.fill("message", "the card is lost", "code", "lost")
			u.confirmReason()
			u.records(u.id, history.ActivityFailed)
			u.becomes(cluster.Failed)
			u.shows(".instance-error", "the card is lost")
		}},
		{"fire-timer", func(u *user) {
			startOwn(u, sleeper, "slept", 2)
			u.show("instances/" + u.id + "?tab=pending")
			u.press(".pending")
			u.confirmReason()
			u.records(u.id, history.TimerFired)
			u.becomes(cluster.Completed)
		}},
	}
}

// startFailing starts an instance whose activity has failed once and backs off.
func (u *user) startFailing() {
	u.t.Helper()
	startOwn(u, failing, "card 42", 2)
	u.awaitOperation(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 1 && !o.NextAttempt.IsZero() })
}

func (u *user) showFailing() {
	u.t.Helper()
	u.startFailing()
	u.show("instances/" + u.id + "?tab=pending")
	u.badge(".pending", "backing off")
}

// awaitOperation waits until a condition holds of the only open operation of the instance.
func (u *user) awaitOperation(holds func(*cluster.OpenOperation) bool) (found *cluster.OpenOperation) {
	u.t.Helper()
	u.until("an open operation", func(ctx context.Context) (bool, error) {
		open, err := u.lab.client.Pending(ctx, u.id)
		if err != nil || len(open) != 1 {
			return false, errors.Join(err, errors.New("not one operation is open"))
		}
		found = open[0]
		return holds(found), nil
	})
	return found
}

func (u *user) onlyOperation() operate.Operation {
	u.t.Helper()
	open := u.awaitOperation(func(*cluster.OpenOperation) bool { return true })
	return operate.Operation{InstanceID: u.id, Execution: open.Execution, EventID: open.EventID}
}

// confirmControl confirms a change of the open operation, which stays open.
func (u *user) confirmControl(changed func(*cluster.OpenOperation) bool) {
	u.t.Helper()
	u.confirmReason()
	u.records(u.id, history.OperationControlled)
	u.awaitOperation(changed)
	u.kept()
}
