package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A copy of a bulk job would act without the right of its action: again on behalf of the one who
// started the job, or with another input on behalf of any caller.
func TestAuthorize_NoCopyOfBulkJob(t *testing.T) {
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, _ string) error {
			if caller.Name == "gw" && (action == ActionCancel || action == ActionSuspend) {
				return errors.New("not today")
			}
			return nil
		}
	})
	ctx := testContext(t)
	root, gw := dialSecured(t, trusted, trusted.Client("root"), nodes...), dialSecured(t, trusted, trusted.Client("gw"), nodes...)
	if _, err := StartRun(ctx, root, waiter, "i", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, root, bulk.Orchestration, "j", bulkInput("suspend")); err != nil {
		t.Fatal(err)
	}
	internals, err := gw.Internal(access.Key{})
	if err != nil {
		t.Fatal(err)
	}
	forged := bulkInput("cancel")
	forged.State = &bulk.State{Principal: "client root", Phase: bulk.Running, Before: time.Now().Add(time.Hour)}
	input, err := internals.Encode(replay.PayloadInfo{Kind: "orchestration", Part: "input"}, forged)
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range []*clusterpb.CopyRequest{
		{Kind: clusterpb.CopyRequest_KIND_FORK, EventId: 1, Input: input},
		{Kind: clusterpb.CopyRequest_KIND_FORK, EventId: 2},
		{Kind: clusterpb.CopyRequest_KIND_REWIND, EventId: 2},
		{Kind: clusterpb.CopyRequest_KIND_RERUN},
	} {
		copied.RequestId = copied.Kind.String()
		_, err := internals.Call(ctx, &clusterpb.Request{Instance: "j", Call: &clusterpb.Request_Copy{Copy: copied}})
		if refused, ok := errors.AsType[*state.CopyError](err); !ok || refused.Reason != state.CopyReserved {
			t.Errorf("%v: %v; want %q", copied.Kind, err, state.CopyReserved)
		}
	}
	if got, want := recordedPrincipals(t, nodes[0].Client(), "i"), []string{"OrchestrationStarted client root", "OrchestrationSuspended client root"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}
