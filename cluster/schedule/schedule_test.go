package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	report = replay.Orchestration[string, string]("report")
	never  = replay.Orchestration[string, string]("never")
	word   = replay.Event[string]("word")
)

func definitions() clustertest.Option {
	return clustertest.Definitions(
		report.Bind(func(_ *replay.Context, region string) (string, error) { return "report of " + region, nil }),
		never.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) }),
	)
}

// newCluster starts a cluster whose members all speak the newest protocol.
func newCluster(t *testing.T, nodes int, options ...clustertest.Option) *clustertest.Cluster {
	t.Helper()
	c := clustertest.New(t, nodes, append(options, definitions())...)
	c.Eventually("the newest protocol", func() bool { return c.Node(0).Health().Protocol >= 4 })
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describe returns the description of a schedule, retried while there is no leader.
func describe(ctx context.Context, t *testing.T, client *cluster.Client, id string) *schedule.Description {
	t.Helper()
	d, err := schedule.Describe(ctx, client, id)
	must(t, err)
	return d
}

// runsOf returns the due times of the runs of a schedule, by their IDs.
func runsOf(ctx context.Context, t *testing.T, client *cluster.Client, id string) (due []time.Time) {
	t.Helper()
	for after := ""; ; {
		page, err := client.List(ctx, cluster.Filter{IDPrefix: id + "-"}, after, 0)
		must(t, err)
		for _, status := range page.Instances {
			at, err := time.Parse(time.RFC3339, strings.TrimPrefix(status.InstanceID, id+"-"))
			must(t, err)
			due = append(due, at)
		}
		if after = page.Next; after == "" {
			return due
		}
	}
}

// A leader is killed when the next timer is set, so that the run is due while there is none; when
// the timer has fired and the run was requested; and when a run has ended. Then all nodes are. With
// three partitions, the schedule, the followers and the runs are in different ones.
func TestSchedule_LeaderKilledWhenDueStartsEachDueTimeOnce(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d partitions", partitions), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			c := newCluster(t, 3, clustertest.Configure(func(_ int, config *cluster.Config) { config.Partitions = partitions }))
			client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: c.Addresses()})
			must(t, err)
			defer client.Close()
			must(t, schedule.Create(ctx, client, "each", schedule.Spec{Every: time.Second, Overlap: schedule.Allow, CatchUp: 10 * time.Minute}, report, "north"))

			position := history.Position{}
			for _, moment := range []history.EventType{history.TimerCreated, history.TimerFired, history.ExternalEvent} {
				for event, err := range client.Watch(ctx, "each", position) {
					must(t, err)
					position = event.Next()
					if event.Type == moment {
						break
					}
				}
				leader := leaderOf(c, "each")
				c.Kill(leader)
				c.Leader()
				started := describe(ctx, t, client, "each").Started
				awaitStarts(ctx, t, client, started+2)
				c.Restart(leader)
				c.Eventually("the restarted node follows", func() bool { return c.Node(leader).Health().Ready() == nil })
				position.EventID = describeLast(ctx, t, client)
			}
			for i := range 3 {
				c.Kill(i)
			}
			for i := range 3 {
				c.Restart(i)
			}
			c.Leader()
			awaitStarts(ctx, t, client, describe(ctx, t, client, "each").Started+2)
			must(t, schedule.Pause(ctx, client, "each", "enough"))
			var d *schedule.Description
			c.Eventually("all runs are done", func() bool {
				d = describe(ctx, t, client, "each")
				return len(d.Running) == 0
			})
			due := runsOf(ctx, t, client, "each")
			for i := range due[1:] {
				if due[i+1].Sub(due[i]) != time.Second {
					t.Errorf("%v follows %v", due[i+1], due[i])
				}
			}
			if len(due) != d.Started || d.Missed != 0 || d.Skipped != 0 || len(due) < 10 {
				t.Errorf("%d runs, started %d, missed %d, skipped %d", len(due), d.Started, d.Missed, d.Skipped)
			}
			for _, start := range d.Recent {
				if start.Outcome != schedule.Completed {
					t.Errorf("%+v", start)
				}
			}
		})
	}
}

// leaderOf waits for the leader of an instance's partition and returns its number.
func leaderOf(c *clustertest.Cluster, id string) (leader int) {
	c.Eventually("a leader of the partition", func() bool {
		for i := range 3 {
			if c.Running(i) && c.Node(i).LeaderOf(id) == c.Node(i).ID() {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// awaitStarts waits until the schedule has started a number of runs.
func awaitStarts(ctx context.Context, t *testing.T, client *cluster.Client, want int) {
	t.Helper()
	for describe(ctx, t, client, "each").Started < want {
		status, err := client.Get(ctx, "each")
		must(t, err)
		for event, err := range client.Watch(ctx, "each", history.Position{Execution: status.Execution, EventID: status.LastEventID + 1}) {
			must(t, err)
			if event.Type == history.OrchestrationChained {
				break
			}
		}
	}
}

// describeLast returns the number of the event after the last one.
func describeLast(ctx context.Context, t *testing.T, client *cluster.Client) uint64 {
	t.Helper()
	status, err := client.Get(ctx, "each")
	must(t, err)
	return status.LastEventID + 1
}

func TestSchedule_LifeOfASchedule(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := newCluster(t, 1, clustertest.InMemory())
	client := c.Client(0)
	spec := schedule.Spec{Cron: []string{"0 0 1 1 *"}, TimeZone: "Europe/Berlin", Overlap: schedule.Terminate}
	must(t, schedule.Create(ctx, client, "yearly", spec, never, "", cluster.Tags(map[string]string{"team": "north"})))
	if err := schedule.Create(ctx, client, "yearly", spec, never, ""); !errors.Is(err, cluster.ErrInstanceExists) {
		t.Errorf("created twice: %v", err)
	}
	must(t, schedule.Create(ctx, client, "yearly", spec, never, "", cluster.Attach()))

	first, err := schedule.Trigger(ctx, client, "yearly", "")
	must(t, err)
	second, err := schedule.Trigger(ctx, client, "yearly", "")
	must(t, err)
	if first.Outcome != schedule.Running || second.Outcome != schedule.Buffered {
		t.Errorf("triggered: %+v, %+v", first, second)
	}
	status, err := waitForRun(ctx, c, client, first.InstanceID)
	if err != nil || status.State != cluster.Terminated {
		t.Errorf("the first run: %+v, %v", status, err)
	}
	c.Eventually("the second run is in progress", func() bool {
		d := describe(ctx, t, client, "yearly")
		return len(d.Running) == 1 && d.Running[0].Due.Equal(second.Due) && d.Recent[1].Outcome == schedule.Terminated
	})

	must(t, schedule.Pause(ctx, client, "yearly", "a note"))
	must(t, schedule.Replace(ctx, client, "yearly", schedule.Spec{Every: time.Hour}, report, "south"))
	page, err := schedule.List(ctx, client, cluster.Filter{Tags: map[string]string{"team": "north"}}, "", 0)
	must(t, err)
	if len(page.Schedules) != 1 || page.Next != "" {
		t.Fatalf("listed %+v", page)
	}
	d := page.Schedules[0].Description
	if d == nil || d.ID != "yearly" || len(d.Next) != 10 || !d.Paused || d.Note != "a note" || d.Orchestration != "report" || string(d.Input) != `"south"` {
		t.Errorf("listed %+v", d)
	}
	hourly := fmt.Sprintf("%d * * * *", (time.Now().UTC().Minute()+30)%60) // not due while this test runs
	must(t, schedule.Update(ctx, client, "yearly", schedule.Spec{Cron: []string{hourly}}))
	must(t, schedule.Resume(ctx, client, "yearly", ""))
	before := time.Now().Add(-2 * time.Hour)
	starts, err := schedule.Backfill(ctx, client, "yearly", before.Add(-3*time.Hour), before, schedule.Allow)
	if err != nil || len(starts) != 3 {
		t.Fatalf("backfill: %+v, %v", starts, err)
	}
	status, err = waitForRun(ctx, c, client, starts[2].InstanceID)
	var output string
	if err != nil || status.Output(&output) != nil || output != "report of south" {
		t.Errorf("the backfilled run: %q, %v", output, err)
	}

	must(t, schedule.Delete(ctx, client, "yearly"))
	if _, err := client.Wait(ctx, "yearly"); err != nil {
		t.Error(err)
	}
	if err := schedule.Pause(ctx, client, "yearly", ""); !errors.Is(err, cluster.ErrEnded) {
		t.Errorf("pause after delete: %v", err)
	}
	if d := describe(ctx, t, client, "yearly"); !d.Ended || d.Started != 5 {
		t.Errorf("after delete: %+v", d)
	}
	if status, err := client.Get(ctx, d.Running[0].InstanceID); err != nil || status.Ended() {
		t.Errorf("the run of the deleted schedule: %+v, %v", status, err)
	}
	must(t, schedule.Create(ctx, client, "yearly", spec, report, "")) // the ID is free again
}

// waitForRun waits for a run that may not have begun yet.
func waitForRun(ctx context.Context, c *clustertest.Cluster, client *cluster.Client, id string) (*cluster.Status, error) {
	c.Eventually("the run begins", func() bool {
		_, err := client.Get(ctx, id)
		return err == nil
	})
	return client.Wait(ctx, id)
}

func TestSchedule_WrongInputIsTyped(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := newCluster(t, 1, clustertest.InMemory())
	client := c.Client(0)
	must(t, schedule.Create(ctx, client, "s", schedule.Spec{Every: time.Hour}, report, ""))
	_, err := cluster.StartRun(ctx, client, report, "other", "")
	must(t, err)
	now := time.Now()
	trigger := func(overlap schedule.Overlap) error {
		_, err := schedule.Trigger(ctx, client, "s", overlap)
		return err
	}
	backfill := func(from, before time.Time) error {
		_, err := schedule.Backfill(ctx, client, "s", from, before, "")
		return err
	}
	for name, test := range map[string]struct {
		err   error
		field string
	}{
		"cron":              {schedule.Create(ctx, client, "t", schedule.Spec{Cron: []string{"0 25 * * *"}}, report, ""), "Spec.Cron[0]"},
		"update":            {schedule.Update(ctx, client, "s", schedule.Spec{Cron: []string{"@never"}}), "Spec.Cron[0]"},
		"ID":                {schedule.Create(ctx, client, "a b", schedule.Spec{Every: time.Hour}, report, ""), "schedule ID"},
		"reserved name":     {schedule.Create(ctx, client, "t", schedule.Spec{Every: time.Hour}, replay.Orchestration[string, string]("tenuto.x"), ""), "orchestration"},
		"input is not JSON": {schedule.Create(ctx, client, "t", schedule.Spec{Every: time.Hour}, replay.Orchestration[func(), string]("f"), func() {}), "input"},
		"input not UTF-8":   {schedule.Create(ctx, client, "t", schedule.Spec{Every: time.Hour}, report, "\xff"), "input"},
		"note":              {schedule.Pause(ctx, client, "s", strings.Repeat("x", 1001)), "note"},
		"overlap":           {trigger("often"), "overlap policy"},
		"empty range":       {backfill(now, now), "range of the backfill"},
		"future":            {backfill(now, now.Add(24*time.Hour)), "range of the backfill"},
		"too many":          {backfill(now.AddDate(-1, 0, 0), now.Add(-time.Hour)), "range of the backfill"},
		"no schedule":       {schedule.Replace(ctx, client, "s", schedule.Spec{}, report, ""), "Spec"},
	} {
		var invalid *replay.InvalidError
		if !errors.As(test.err, &invalid) || invalid.Field != test.field {
			t.Errorf("%s: %v; want field %q", name, test.err, test.field)
		}
	}
	if err := schedule.Pause(ctx, client, "none", ""); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("no instance: %v", err)
	}
	must(t, schedule.Create(ctx, client, "other-2", schedule.Spec{Every: time.Hour}, report, ""))
	_, err = cluster.StartRun(ctx, client, never, "waiting", "")
	must(t, err)
	if err := schedule.Create(ctx, client, "waiting", schedule.Spec{Every: time.Hour}, report, "", cluster.Attach()); !errors.Is(err, cluster.ErrInstanceExists) {
		t.Errorf("attached to an instance that is no schedule: %v", err)
	}
	if err := schedule.Delete(ctx, client, "waiting"); !errors.As(err, new(*replay.NotRegisteredError)) || !strings.Contains(err.Error(), `instance "waiting" is not a schedule`) {
		t.Errorf("an instance that is no schedule: %v", err)
	}
	if status, err := client.Get(ctx, "waiting"); err != nil || status.Ended() {
		t.Errorf("after a delete that was refused: %+v, %v", status, err)
	}
}

func TestConfig_ReservesNames(t *testing.T) {
	for _, definition := range []replay.Definition{
		replay.Orchestration[string, string]("tenuto.schedule").Bind(func(*replay.Context, string) (string, error) { return "", nil }),
		replay.Activity[string, string]("tenuto.x").Bind(func(context.Context, string) (string, error) { return "", nil }),
	} {
		_, err := cluster.Start(t.Context(), cluster.Config{InMemory: true, Definitions: []replay.Definition{definition}})
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "Config.Definitions" {
			t.Errorf("%v", err)
		}
	}
}

// The inputs of the runs are larger together than an append may be. One run has an ID that a user's
// instance has, which the next start must not terminate.
func TestSchedule_ManyLargeRunsAndATakenID(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := newCluster(t, 1, clustertest.InMemory())
	client := c.Client(0)
	offset := time.Duration((time.Now().UTC().Minute()+30)%60) * time.Minute // not due while this test runs
	must(t, schedule.Create(ctx, client, "large", schedule.Spec{Every: time.Hour, Offset: offset}, report, strings.Repeat("x", 250_000)))
	before := time.Now().Add(-2 * time.Hour)
	starts, err := schedule.Backfill(ctx, client, "large", before.Add(-20*time.Hour), before, schedule.Allow)
	if err != nil || len(starts) != 20 || starts[0].Outcome != schedule.Running || starts[19].Outcome != schedule.Buffered {
		t.Fatalf("backfill: %+v, %v", starts, err)
	}
	c.Eventually("all runs are done", func() bool {
		d := describe(ctx, t, client, "large")
		return d.Started == 20 && len(d.Running) == 0 && len(d.Buffered) == 0
	})

	must(t, schedule.Create(ctx, client, "taken", schedule.Spec{Every: time.Hour, Offset: offset, Overlap: schedule.Terminate}, report, ""))
	due := before.UTC().Truncate(time.Hour).Add(offset - time.Hour)
	_, err = cluster.StartRun(ctx, client, never, "taken-"+due.Format(time.RFC3339), "")
	must(t, err)
	if _, err := schedule.Backfill(ctx, client, "taken", due, due.Add(time.Hour+time.Second), schedule.Terminate); err != nil {
		t.Fatal(err)
	}
	c.Eventually("the second run is done", func() bool {
		d := describe(ctx, t, client, "taken")
		return d.Started == 2 && len(d.Running) == 0 && d.Recent[1].Outcome == schedule.Exists && d.Recent[0].Outcome == schedule.Completed
	})
	if status, err := client.Get(ctx, "taken-"+due.Format(time.RFC3339)); err != nil || status.Ended() {
		t.Errorf("the instance of the user: %+v, %v", status, err)
	}
}
