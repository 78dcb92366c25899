package operate

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Pause is an activity of which no attempt begins in the whole cluster.
type Pause struct {
	Activity  string
	Principal string // "": unknown
	Reason    string
	Since     time.Time
}

// PauseActivity keeps the attempts of all activities of that name from beginning, in all
// partitions, until [ResumeActivity]. Running attempts continue; completions from outside are
// accepted. Tasks wait in their order, and [cluster.Client.Pending] shows who has paused them.
// Their timeouts keep running, also [replay.ScheduleToStart]: an activity may time out while it is
// paused.
//
// The pause is part of the settings of the cluster: it survives changes of leaders and restarts,
// and each leader applies it as soon as its replica shows it. Pausing a paused activity returns nil
// and keeps the first reason. At most 1,000 activities can be paused. The name is not checked
// against the activities that exist, because their code may come later: verify it with [Pauses].
//
// Errors: [*replay.InvalidError], [cluster.ErrNotAuthorized], [*cluster.UnavailableError];
// [cluster.ErrProtocol] while a member does not speak protocol 4.
func PauseActivity(ctx context.Context, client *cluster.Client, activity, reason string) error {
	return pause(ctx, client, "pause activity", &clusterpb.PauseActivityRequest{Activity: activity, Reason: reason})
}

// ResumeActivity ends a pause. It returns nil if the activity is not paused, also if the name is
// misspelt: verify it with [Pauses]. Errors are those of [PauseActivity]. The settings do not keep
// who has resumed an activity; the log of the leader shows it.
func ResumeActivity(ctx context.Context, client *cluster.Client, activity, reason string) error {
	return pause(ctx, client, "resume activity", &clusterpb.PauseActivityRequest{Activity: activity, Reason: reason, Resume: true})
}

func pause(ctx context.Context, client *cluster.Client, verb string, request *clusterpb.PauseActivityRequest) error {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("%s %q: %w", verb, request.Activity, err)
	}
	request.RequestId = rand.Text()
	sent := &clusterpb.Request{Call: &clusterpb.Request_PauseActivity{PauseActivity: request}}
	if err := internals.Check(sent); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	if _, err := internals.Call(ctx, sent); err != nil {
		return fmt.Errorf("%s %q: %w", verb, request.Activity, err)
	}
	return nil
}

// Pauses returns the paused activities, in the order of their names. The right that it needs is
// [cluster.ActionSeeSettings]. Errors are those of [cluster.Client.Settings].
func Pauses(ctx context.Context, client *cluster.Client) ([]Pause, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("paused activities: %w", err)
	}
	response, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_GetSettings{GetSettings: new(clusterpb.GetSettingsRequest)}})
	if err != nil {
		return nil, fmt.Errorf("paused activities: %w", err)
	}
	settings := new(journalpb.Settings)
	if err := proto.Unmarshal(response.GetGetSettings().GetSettings(), settings); err != nil {
		return nil, fmt.Errorf("paused activities: decode settings: %w", err)
	}
	var pauses []Pause
	for _, one := range settings.PausedActivities {
		pauses = append(pauses, Pause{one.Activity, one.Principal, one.Reason, time.Unix(0, one.Since)})
	}
	return pauses, nil
}
