package worker

import (
	"testing"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

type noStarter struct{}

func (noStarter) Start(*Attempt) {}

// An attempt that goes back to its leader keeps no context; one that has its slot keeps it.
func TestStopAssigning_ReleasesContextsOfReturned(t *testing.T) {
	w := New(Config{Context: t.Context(), Slots: 1, Partitions: 1, Starter: noStarter{}})
	var attempts []*Attempt
	for number := range 2 {
		_, assignment := new(session.Assignment).Of(&journalpb.OperationRef{Instance: "i", Execution: 1, EventId: 2}, number+1)
		w.mu.Lock()
		w.handleAssignment(0, assignment)
		attempts = append(attempts, w.attempts[session.KeyOf(assignment.Attempt)])
		w.mu.Unlock()
	}
	w.StopAssigning()
	if err := attempts[0].Context.Err(); err != nil {
		t.Errorf("the attempt with a slot: %v", err)
	}
	if attempts[1].Context.Err() == nil {
		t.Error("the context of the returned attempt is not canceled")
	}
}
