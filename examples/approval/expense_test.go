package main

import (
	"errors"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

const day = 24 * time.Hour

var trip = Expense{ID: "trip", Amount: 250, Deadline: 7 * day, RemindEvery: day}

// newTestEnv returns an environment in which every activity succeeds at once.
func newTestEnv(t *testing.T) *replaytest.Env {
	env := replaytest.New(t, Approval.Bind(approval))
	for _, activity := range []replay.ActivityHandle[Expense, int]{Reserve, Release, Pay, Remind} {
		replaytest.Stub(env, activity, replaytest.Returns[Expense](trip.Amount, nil))
	}
	return env
}

func decideAfter(t *testing.T, env *replaytest.Env, d time.Duration, decision Decision) {
	env.At(d, func() {
		if err := replaytest.Send(env, trip.ID, Decided, decision); err != nil {
			t.Error(err)
		}
	})
}

func TestApproval_ApprovedAfterReminders(t *testing.T) {
	env := newTestEnv(t)
	decideAfter(t, env, 3*day+time.Hour, Decision{Approved: true, By: "Ada"})
	outcome, err := replaytest.Call(env, Approval, trip.ID, trip)
	if want := (Outcome{Paid: true, Why: "approved by Ada", Reminders: 3}); err != nil || outcome != want {
		t.Errorf("%+v: %v", outcome, err)
	}
	env.ExpectCalls(Pay, 1)
	env.ExpectCalls(Release, 0)
}

func TestApproval_Rejected(t *testing.T) {
	env := newTestEnv(t)
	decideAfter(t, env, time.Hour, Decision{By: "Bob"})
	outcome, err := replaytest.Call(env, Approval, trip.ID, trip)
	if want := (Outcome{Why: "rejected by Bob"}); err != nil || outcome != want {
		t.Errorf("%+v: %v", outcome, err)
	}
	env.ExpectCalls(Pay, 0)
	env.ExpectCalls(Release, 1)
}

// The deadline and the last reminder are due at the same time. The deadline wins, because its
// timer was set first.
func TestApproval_ReleasedAtDeadline(t *testing.T) {
	env := newTestEnv(t)
	outcome, err := replaytest.Call(env, Approval, trip.ID, trip)
	if want := (Outcome{Why: "nobody answered in time", Reminders: 6}); err != nil || outcome != want {
		t.Errorf("%+v: %v", outcome, err)
	}
	env.ExpectCalls(Release, 1)
}

// A mail server that is down for hours must not delay the deadline or lose an answer.
func TestApproval_SlowReminder(t *testing.T) {
	env := newTestEnv(t)
	replaytest.Stub(env, Remind, replaytest.Returns[Expense](0, nil)).FailFirst(100, errors.New("the mail server is down"))
	decideAfter(t, env, day+time.Minute, Decision{Approved: true, By: "Ada"})
	outcome, err := replaytest.Call(env, Approval, trip.ID, trip)
	if err != nil || !outcome.Paid || outcome.Reminders != 1 {
		t.Errorf("%+v: %v", outcome, err)
	}
}
