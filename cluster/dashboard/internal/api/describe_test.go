package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// asker counts what instances are asked.
type asker struct {
	descriptions[int]
	asked int
	now   error // what an instance answers
}

func newAsker() *asker {
	a := &asker{}
	a.descriptions = descriptions[int]{
		ask: func(context.Context, string) (*int, error) {
			a.asked++
			return &a.asked, a.now
		},
		size: func(*int) int { return 1 }, isValid: func(n *int, _ time.Time) bool { return *n >= 0 },
	}
	return a
}

// one returns the answer of an instance in a state.
func (a *asker) one(t *testing.T, status cluster.Status) described[int] {
	t.Helper()
	all, err := a.of(t.Context(), []*cluster.Status{&status}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// An instance is asked again after it has recorded an event, and when its answer is not valid any
// more.
func TestDescriptions_AreKeptUntilTheInstanceChanges(t *testing.T) {
	a := newAsker()
	status := cluster.Status{InstanceID: "s", State: cluster.Running, Execution: 1, LastEventID: 3}
	expect := func(want int) {
		t.Helper()
		if got := a.one(t, status); got.value == nil || a.asked != want {
			t.Errorf("%+v after %d questions; want %d", got, a.asked, want)
		}
	}
	expect(1)
	expect(1)
	status.LastEventID++
	expect(2)
	status.State = cluster.Suspended
	expect(3)
	status.Execution++
	expect(4)
	a.known["s"] = knownDescription[int]{stateOf(&status), new(int)}
	expect(4)
	*a.known["s"].value = -1
	expect(5)
}

// Errors are not kept, and instances that cannot answer are not asked.
func TestDescriptions_Errors(t *testing.T) {
	a := newAsker()
	a.now = errors.New("purged")
	status := cluster.Status{InstanceID: "s", State: cluster.Running}
	for range 2 {
		if got := a.one(t, status); got.err == nil || got.unanswered || got.value != nil && len(a.known) > 0 {
			t.Errorf("%+v; want the error", got)
		}
	}
	status.State = cluster.Stalled
	if got := a.one(t, status); a.asked != 2 || got.err != nil || got.unanswered {
		t.Errorf("a stalled one: %+v after %d questions", got, a.asked)
	}
}

// A list with a limit does not wait for instances that do not answer.
func TestDescriptions_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsker()
		a.ask = func(ctx context.Context, id string) (*int, error) {
			if id == "slow" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &a.asked, nil
		}
		instances := []*cluster.Status{{InstanceID: "quick", State: cluster.Running}, {InstanceID: "slow", State: cluster.Running}}
		all, err := a.of(t.Context(), instances, 20*time.Millisecond)
		if err != nil || all[0].value == nil || !all[1].unanswered || all[1].err != nil {
			t.Errorf("%+v, %v; want the second one late", all, err)
		}
	})
}
