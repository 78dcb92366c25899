package cluster

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func internalsOf(t testing.TB, client *Client) access.Internals {
	t.Helper()
	internals, err := client.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	return internals
}

// repeated marks a request as one whose earlier attempt got no answer.
func repeated(request *clusterpb.Request) *clusterpb.Request {
	request.Retried, request.FirstIndex = true, proto.Uint64(1)
	return request
}

func pauseRequest(activity, requestID string, resume bool) *clusterpb.Request {
	return &clusterpb.Request{Call: &clusterpb.Request_PauseActivity{PauseActivity: &clusterpb.PauseActivityRequest{
		Activity: activity, RequestId: requestID, Resume: resume,
	}}}
}

// The right to change settings is not the right to pause activities.
func TestChangeSettings_CannotPauseActivities(t *testing.T) {
	client := startSingleNode(t, definitions()...).Client()
	ctx := testContext(t)
	recorded, version, err := client.recordedSettings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	recorded.PausedActivities = []*journalpb.PausedActivity{{Activity: "a", Principal: "client root"}}
	encoded, err := proto.Marshal(recorded)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_ChangeSettings{
		ChangeSettings: &clusterpb.ChangeSettingsRequest{Settings: encoded, Version: version + 1},
	}})
	if invalid := new(replay.InvalidError); !errors.As(err, &invalid) {
		t.Errorf("error is %v", err)
	}
}

// A repeated pause does not end the effect of a later resumption.
func TestPauseActivity_RepeatedAfterResumption(t *testing.T) {
	client := startSingleNode(t, definitions()...).Client()
	ctx, internals := testContext(t), internalsOf(t, client)
	for _, request := range []*clusterpb.Request{pauseRequest("a", "p", false), repeated(pauseRequest("a", "p", false)), pauseRequest("a", "r", true)} {
		if _, err := internals.Call(ctx, request); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := internals.Call(ctx, repeated(pauseRequest("a", "p", false))); err == nil {
		t.Error("the outcome of the repeated pause is known")
	}
	recorded, _, err := client.recordedSettings(ctx)
	if err != nil || len(recorded.PausedActivities) > 0 {
		t.Errorf("paused: %v, %v", recorded.GetPausedActivities(), err)
	}
}

// A repeated action is recognized although the code has continued as new since.
func TestOperate_RepeatedAfterContinueAsNew(t *testing.T) {
	loops := replay.Orchestration[int, string]("loops")
	code := loops.Bind(func(ctx *replay.Context, n int) (string, error) {
		if n > 0 {
			return word.Wait(ctx)
		}
		if err := ctx.Sleep(time.Hour); err != nil {
			return "", err
		}
		return "", loops.ContinueAsNew(ctx, 1)
	})
	client := startSingleNode(t, slices.Concat(definitions(), []replay.Definition{code})...).Client()
	ctx, internals := testContext(t), internalsOf(t, client)
	if _, err := StartRun(ctx, client, loops, "i", 0); err != nil {
		t.Fatal(err)
	}
	waitsIn := func(execution uint64) func() bool {
		return func() bool {
			open, err := client.Pending(ctx, "i")
			return err == nil && len(open) == 1 && open[0].Execution == execution
		}
	}
	eventually(t, "the timer", waitsIn(1))
	if _, err := internals.Call(ctx, operateRequest("i", clusterpb.OperateRequest_KIND_FIRE_NOW, 2)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second execution", waitsIn(2))
	if _, err := internals.Call(ctx, repeated(operateRequest("i", clusterpb.OperateRequest_KIND_FIRE_NOW, 2))); err != nil {
		t.Errorf("the repeated action got %v", err)
	}
}
