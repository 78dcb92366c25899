package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/replay"
)

// bulkInput returns the input of a job that does something with the instance "i".
func bulkInput(action string) bulk.Input {
	return bulk.Input{Job: bulk.Job{Filter: json.RawMessage(`{"IDPrefix":"i"}`), Action: action, Reason: "why"}.WithDefaults()}
}

// A caller who may start instances, but not cancel them, cannot cancel them through a job. A job
// acts as the principal who has started it. A schedule, of which Authorize is asked only once,
// starts none.
func TestAuthorize_SeesActionOfBulkJob(t *testing.T) {
	t.Parallel()
	trusted := newAuthority(t)
	var mu sync.Mutex
	var asked []string
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, instance string) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, fmt.Sprintf("%s %s %q", caller.Name, action, instance))
			if action == ActionCancel {
				return errors.New("not today")
			}
			return nil
		}
	})
	client := dialSecured(t, trusted, trusted.Client("gw"), nodes...)
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, waiter, "i", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, bulk.Orchestration, "j", bulkInput("cancel")); !errors.Is(err, ErrNotAuthorized) {
		t.Errorf("a job: %v", err)
	}
	input, err := json.Marshal(bulkInput("cancel"))
	if err != nil {
		t.Fatal(err)
	}
	scheduled := schedules.Input{Spec: schedules.Spec{Every: time.Second}, Target: schedules.Target{Orchestration: bulk.Name, Input: input}}
	if _, err := Call(ctx, client, schedules.Orchestration, "s", scheduled); err == nil {
		t.Error("a schedule of jobs was accepted")
	}
	forged := bulkInput("suspend")
	forged.State = &bulk.State{Principal: "client root", Phase: bulk.Running, Before: time.Now().Add(time.Hour)}
	if _, err := StartRun(ctx, client, bulk.Orchestration, "j", forged); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("a forged principal: %v", err)
	}
	if _, err := Call(ctx, client, bulk.Orchestration, "j", bulkInput("suspend")); err != nil {
		t.Fatal(err)
	}
	if got, want := recordedPrincipals(t, nodes[0].Client(), "i"), []string{"OrchestrationStarted client gw", "OrchestrationSuspended client gw"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	for i, filter := range []string{`{"Unknown":"x"}`, `{"Order":"created"}`, `{"Descending":true}`, `[]`} {
		in := bulkInput("terminate")
		in.Job.Filter = json.RawMessage(filter)
		if _, err := Call(ctx, client, bulk.Orchestration, "j-"+strconv.Itoa(i), in); err == nil {
			t.Errorf("a job with the filter %s did not fail", filter)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{`gw list ""`, `gw cancel ""`, `gw suspend ""`, `gw start "j"`} {
		if !slices.Contains(asked, want) {
			t.Errorf("Authorize was not asked about %s, only about %q", want, asked)
		}
	}
}
