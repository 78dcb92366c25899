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
		{"retry-activity", func(a *actor) {
			a.showFailing()
			a.press(".pending")
			a.confirmControl(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 2 })
			a.shows(".pending-attempts", "2 failed")
		}},
		{"hold", func(a *actor) {
			a.showFailing()
			a.press(".pending")
			a.confirmControl(func(o *cluster.OpenOperation) bool { return o.Held })
			a.badge(".pending", "held")
		}},
		{"release", func(a *actor) {
			a.startFailing()
			a.check(operate.Hold(a.context(), a.lab.client, a.onlyOperation(), ""))
			a.show("instances/" + a.id + "?tab=pending")
			a.badge(".pending", "held")
			a.press(".pending")
			a.confirmControl(func(o *cluster.OpenOperation) bool { return !o.Held })
			a.badge(".pending", "backing off")
		}},
		{"adjust-activity", func(a *actor) {
			a.showFailing()
			a.press(".pending")
			a.fill("max_attempts", "1")
			a.confirmReason()
			a.records(a.id, history.OperationControlled)
			a.becomes(cluster.Failed) // its only attempt was the last one that the new policy permits
		}},
		{"complete-operation", func(a *actor) {
			a.showFailing()
			a.press(".pending")
			a.fill("output", `"paid in cash"`)
			a.confirmReason()
			a.records(a.id, history.ActivityCompleted)
			a.becomes(cluster.Completed)
			a.shows(".facts", "paid in cash")
		}},
		{"fail-operation", func(a *actor) {
			a.showFailing()
			a.press(".pending")
			a.fill("message", "the card is lost", "code", "lost")
			a.confirmReason()
			a.records(a.id, history.ActivityFailed)
			a.becomes(cluster.Failed)
			a.shows(".instance-error", "the card is lost")
		}},
		{"fire-timer", func(a *actor) {
			start1(a, sleeper, "slept", 2)
			a.show("instances/" + a.id + "?tab=pending")
			a.press(".pending")
			a.confirmReason()
			a.records(a.id, history.TimerFired)
			a.becomes(cluster.Completed)
		}},
	}
}

// startFailing starts an instance whose activity has failed once and backs off.
func (a *actor) startFailing() {
	a.t.Helper()
	start1(a, failing, "card 42", 2)
	a.awaitOperation(func(o *cluster.OpenOperation) bool { return o.FailedAttempts == 1 && !o.NextAttempt.IsZero() })
}

func (a *actor) showFailing() {
	a.t.Helper()
	a.startFailing()
	a.show("instances/" + a.id + "?tab=pending")
	a.badge(".pending", "backing off")
}

// awaitOperation waits until a condition holds of the only open operation of the instance.
func (a *actor) awaitOperation(holds func(*cluster.OpenOperation) bool) (found *cluster.OpenOperation) {
	a.t.Helper()
	a.until("an open operation", func(ctx context.Context) (bool, error) {
		open, err := a.lab.client.Pending(ctx, a.id)
		if err != nil || len(open) != 1 {
			return false, errors.Join(err, errors.New("not one operation is open"))
		}
		found = open[0]
		return holds(found), nil
	})
	return found
}

func (a *actor) onlyOperation() operate.Operation {
	a.t.Helper()
	open := a.awaitOperation(func(*cluster.OpenOperation) bool { return true })
	return operate.Operation{InstanceID: a.id, Execution: open.Execution, EventID: open.EventID}
}

// confirmControl confirms a change of the open operation, which stays open.
func (a *actor) confirmControl(changed func(*cluster.OpenOperation) bool) {
	a.t.Helper()
	a.confirmReason()
	a.records(a.id, history.OperationControlled)
	a.awaitOperation(changed)
	a.kept()
}
