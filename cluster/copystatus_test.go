package cluster

import (
	"testing"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A copied run was created when it was copied.
func TestFillEvent_CopiedRun(t *testing.T) {
	status := &clusterpb.Status{Execution: 3, FirstExecution: 3}
	fillEvent(&journalpb.Event{EventId: 1, Timestamp: 5, Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: new(journalpb.OrchestrationStarted)}}, status)
	fillEvent(&journalpb.Event{EventId: 2, Timestamp: 9, Body: &journalpb.Event_HistoryCopied{HistoryCopied: new(journalpb.HistoryCopied)}}, status)
	if status.CreatedAt != 9 {
		t.Errorf("created at %d", status.CreatedAt)
	}
}
