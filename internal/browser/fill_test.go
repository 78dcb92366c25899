package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// longEvents is the length of the history of "long-1".
const longEvents = 50_000

// A step makes some of the instances.
type step struct {
	what string
	do   func(context.Context) error
}

// within does the step within a time that no working cluster needs.
func (s step) within(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return s.do(ctx)
}

// fill makes instances of all kinds, and returns when each has the state that it is to show. At its
// end n1 leads.
func (l *lab) fill(ctx context.Context) error {
	steps := []step{
		{"only-on-two", l.makeWaitingForCode}, {"stalled", l.makeStalled}, {"lead", func(ctx context.Context) error { return l.lead(ctx, "n1") }},
		{"ended", l.makeEnded}, {"open", l.makeOpen}, {"large", l.makeLarge}, {"hostile", l.makeHostile}, {"jobs", l.makeJobs},
	}
	for _, step := range steps {
		begun := time.Now()
		if err := step.within(ctx); err != nil {
			return fmt.Errorf("make instances, %s: %w", step.what, err)
		}
		fmt.Printf("made %s in %v\n", step.what, time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

// lead makes a node the leader.
func (l *lab) lead(ctx context.Context, node string) error {
	_, err := operate.TransferLeadership(ctx, l.client, "", node)
	return err
}

func start[I, O any](ctx context.Context, l *lab, orchestration replay.OrchestrationHandle[I, O], id string, input I, options ...replay.Option) error {
	_, err := cluster.StartRun(ctx, l.client, orchestration, id, input, options...)
	return err
}

// await waits until an instance is in a state.
func (l *lab) await(ctx context.Context, id string, states ...cluster.State) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		status, err := l.client.Get(ctx, id)
		if err != nil {
			return err
		}
		for _, state := range states {
			if status.State == state {
				return nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is %v, not %v: %w", id, status.State, states, ctx.Err())
		}
	}
}

// awaitEvents waits until the latest execution of an instance has a number of events.
func (l *lab) awaitEvents(ctx context.Context, id string, events uint64) error {
	for event, err := range l.client.Watch(ctx, id, history.Position{}) {
		if err != nil {
			return err
		}
		if event.EventID >= events {
			return nil
		}
	}
	return fmt.Errorf("%s has ended before event %d", id, events)
}

func (l *lab) makeStalled(ctx context.Context) error {
	if err := l.lead(ctx, "n1"); err != nil {
		return err
	}
	if err := start(ctx, l, changed, "stalled-1", "order 17"); err != nil {
		return err
	}
	if err := l.awaitEvents(ctx, "stalled-1", 4); err != nil {
		return err
	}
	if err := l.lead(ctx, "n3"); err != nil { // with other code
		return err
	}
	sending, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = cluster.Send(sending, l.client, "stalled-1", goAhead, "go") // a stalled instance does not answer
	return l.await(ctx, "stalled-1", cluster.Stalled)
}

func (l *lab) makeWaitingForCode(ctx context.Context) error {
	for { // an election just after the founding may choose another leader
		if err := l.lead(ctx, "n2"); err != nil {
			return err
		}
		err := start(ctx, l, onlyOnTwo, "other-code-1", "x")
		var missing *replay.NotRegisteredError
		if !errors.As(err, &missing) {
			return err
		}
	}
}

func (l *lab) makeEnded(ctx context.Context) error {
	for i := range 130 { // more than a page of the list
		if err := start(ctx, l, ender, fmt.Sprintf("completed-%03d", i), "done"); err != nil {
			return err
		}
	}
	if err := start(ctx, l, ender, "failed-1", "fail: no funds"); err != nil {
		return err
	}
	for _, id := range []string{"canceled-1", "terminated-1", "suspended-1"} {
		if err := start(ctx, l, waiter, id, id); err != nil {
			return err
		}
	}
	if err := l.client.Cancel(ctx, "canceled-1", "no longer wanted"); err != nil {
		return err
	}
	if err := l.client.Terminate(ctx, "terminated-1", "does harm"); err != nil {
		return err
	}
	if err := l.client.Suspend(ctx, "suspended-1", "until Monday"); err != nil {
		return err
	}
	return l.await(ctx, "failed-1", cluster.Failed)
}

func (l *lab) makeOpen(ctx context.Context) error {
	tags := cluster.Tags(map[string]string{"team": "billing", "region": "north"})
	for i := range 5 {
		if err := start(ctx, l, waiter, fmt.Sprintf("waiter-%d", i+1), "order", tags, replay.Summary("Order for a customer")); err != nil {
			return err
		}
	}
	if err := start(ctx, l, failing, "failing-1", "card 42"); err != nil {
		return err
	}
	if err := start(ctx, l, family, "family-1", 2); err != nil {
		return err
	}
	if err := start(ctx, l, spinner, "hung-1", ""); err != nil {
		return err
	}
	return l.await(ctx, "hung-1", cluster.Hung)
}

func (l *lab) makeLarge(ctx context.Context) error {
	if err := start(ctx, l, fanOut, "fan-out-1", 1000); err != nil {
		return err
	}
	if err := start(ctx, l, long, "long-1", longEvents); err != nil {
		return err
	}
	if err := l.await(ctx, "fan-out-1", cluster.Completed); err != nil {
		return err
	}
	return l.awaitEvents(ctx, "long-1", longEvents)
}

func (l *lab) makeHostile(ctx context.Context) error {
	tags := cluster.Tags(map[string]string{"note": "<script>window.hostile=1</script>"})
	if err := start(ctx, l, waiter, "hostile-1", hostile, tags, replay.Summary("<img src=x onerror=window.hostile=1>")); err != nil {
		return err
	}
	if err := cluster.Send(ctx, l.client, "hostile-1", replay.Event[string]("<script>window.hostile=1</script>"), hostile); err != nil {
		return err
	}
	if err := start(ctx, l, ender, "hostile-failed", "fail "+hostile); err != nil {
		return err
	}
	return start(ctx, l, ender, "hostile-large", strings.Repeat("<b>x", 1<<16)) // almost 1 MiB of JSON, where < has six bytes
}

func (l *lab) makeJobs(ctx context.Context) error {
	spec := schedule.Spec{Every: 24 * time.Hour}
	if err := schedule.Create(ctx, l.client, "nightly", spec, ender, "report"); err != nil {
		return err
	}
	id, err := bulk.Start(ctx, l.client, bulk.Job{
		ID: "job-1", Filter: cluster.Filter{Name: ender.Name()}, Action: bulk.Cancel, Reason: "they are old", Rate: 10_000,
	})
	if err != nil {
		return err
	}
	_, err = l.client.Wait(ctx, id)
	return err
}
