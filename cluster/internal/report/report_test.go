package report

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Of many queues, the longest are reported, and all reported activities together have a bounded
// size.
func TestSetActivities_BoundsQueues(t *testing.T) {
	byTag := map[string]int{"": 1000}
	for i := range 100 {
		byTag[fmt.Sprintf("%s-%02d", strings.Repeat("x", 100), i)] = i + 1
	}
	use := actors.ActivityUse{Counts: map[string]activity.NameCounts{}}
	for i := range 1000 {
		use.Counts[fmt.Sprintf("activity-%03d", i)] = activity.NameCounts{Open: 10_000, Queued: 6050, QueuedByTag: byTag}
	}
	var report clusterpb.NodeReport
	SetActivities(&report, nil, use, nil)
	queues := report.Activities[0].Queues
	if len(queues) != queuesMax || queues[0].Tag != "" || queues[0].Queued != 1000 || queues[1].Queued != 82 || queues[queuesMax-1].Queued != 100 {
		t.Errorf("%d queues: %v", len(queues), queues)
	}
	if size := proto.Size(&report); size > activitiesBytesMax || int(report.ActivitiesOmitted)+len(report.Activities) != 1000 {
		t.Errorf("%d bytes, %d activities and %d more", size, len(report.Activities), report.ActivitiesOmitted)
	}
}
