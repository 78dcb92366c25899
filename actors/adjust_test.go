package actors_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// adjust replaces the options of the only open operation of an instance.
func (n *node) adjust(id string, options *journalpb.ActivityOptions) *reply {
	meta, _ := n.journal.Instance(id)
	action := &journalpb.OperationControlled{Kind: journalpb.OperationControlled_KIND_ADJUST, RequestId: "a", Options: options}
	for open := range n.journal.InstanceOperations(id) {
		action.EventId = open.Ref.EventId
	}
	event := &journalpb.Event{Body: &journalpb.Event_OperationControlled{OperationControlled: action}}
	return n.deliver(id, actors.Message{Message: engine.Message{Execution: meta.Execution, Incarnation: meta.Incarnation, Event: event}})
}

// sleepHour waits for an hour of virtual time.
func sleepHour(ctx context.Context) (string, error) {
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(time.Hour):
		return "done", nil
	}
}

var otherNode = actors.Config{OtherNodes: func() int { return 1 }, RejoinTimeout: 10 * time.Second}

// The leader fails after it has recorded an adjustment that makes the last failure final, and
// before it has recorded the end.
func TestAdjust_LastFailureIsFinalAfterFailover(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		code := []replay.Definition{
			call(replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})),
			work.Bind(func(ctx context.Context, _ int) (string, error) {
				attempts.record(ctx)
				return "", errFull
			}),
		}
		journal := newTestJournal()
		n := lead(t, journal, actors.Config{}, code...)
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Minute)
		journal.crashAt(1, true)
		n.adjust("c", &journalpb.ActivityOptions{Retry: &journalpb.RetryPolicy{MaxAttempts: 1}}).want(nil)
		time.Sleep(time.Second)
		n.close()
		journal.clearCrash()
		lead(t, journal, actors.Config{}, code...)
		time.Sleep(2 * time.Hour)
		if got := attempts.count(); got != 1 {
			t.Errorf("%d attempts", got)
		}
	})
}

// An attempt that has begun before ScheduleToStart was set does not time out under the next leader.
func TestAdjust_ScheduleToStartOfRunningAttempt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		code := []replay.Definition{call(), work.Bind(func(ctx context.Context, _ int) (string, error) { return sleepHour(ctx) })}
		journal := newTestJournal()
		n := lead(t, journal, actors.Config{}, code...)
		n.start("c", "call", "").want(nil)
		time.Sleep(10 * time.Minute)
		n.adjust("c", &journalpb.ActivityOptions{ScheduleToStart: int64(time.Minute)}).want(nil)
		time.Sleep(time.Minute)
		n.partition.Close()
		n = lead(t, journal, otherNode, code...)
		time.Sleep(3 * time.Hour)
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "OperationControlled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}

// An adjustment before the worker of a running attempt has registered again does not end the task.
func TestAdjust_WhileAttemptMayBeRunning(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		code := []replay.Definition{call(), work.Bind(func(ctx context.Context, _ int) (string, error) {
			if attempts.record(ctx) == 1 {
				return "", errFull
			}
			return sleepHour(ctx)
		})}
		journal := newTestJournal()
		n := lead(t, journal, actors.Config{}, code...)
		n.start("c", "call", "").want(nil)
		time.Sleep(time.Minute)
		n.partition.Close()
		n = lead(t, journal, otherNode, code...)
		n.adjust("c", &journalpb.ActivityOptions{Retry: &journalpb.RetryPolicy{MaxAttempts: 1}}).want(nil)
		time.Sleep(2 * time.Hour)
		n.wantHistory("c", "OrchestrationStarted", "ActivityScheduled", "OperationControlled", "ActivityCompleted of 2", "OrchestrationCompleted")
	})
}
