package backup_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const (
	// backupAge is how long ago the backup of this test was made, as far as a restore can know: the
	// clock of the node was behind by that much, and so is the time of the backup.
	backupAge = 110 * time.Minute
	// interval is that of the schedules. In backupAge they have five due times.
	interval = 20 * time.Minute
)

// A backup was made while instances waited for timers and schedules for their next due times. After
// a restore, what was due while there was no cluster happens at once, and the rest at its time.
func TestRestore_TimersAndSchedulesGoOn(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			behind := harness.Overrides{WallClock: func() time.Time { return time.Now().Add(-backupAge) }}
			old := startNodeIn(harness.NewContext(t.Context(), behind), t, cluster.Config{Dir: t.TempDir(), Partitions: partitions})
			soon := time.Now().Add(8 * time.Second).Truncate(time.Second) // after the restore, unless the machine is busy
			due := startSleepers(t, old.Client(), map[string]time.Duration{
				"missed": time.Hour, "soon": time.Until(soon) + backupAge, "later": time.Until(soon) + backupAge + time.Hour,
			})
			triggered := startSchedules(t, old.Client(), soon)
			_, full := write(t, old.Client(), backup.Options{})
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			client := startRestored(t, restore(t, redated(t, full.Bytes(), -backupAge)), partitions).Client()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			checkFired(ctx, t, client, "missed", due["missed"])
			checkFired(ctx, t, client, "soon", due["soon"])
			if status, err := client.Get(ctx, "later"); err != nil || status.State != cluster.Running {
				t.Errorf("the later timer: %+v, %v", status, err)
			}
			checkSchedules(ctx, t, client, soon, triggered)
		})
	}
}

// startSleepers starts instances that sleep, and returns when their timers are due as soon as these
// are recorded.
func startSleepers(t *testing.T, client *cluster.Client, all map[string]time.Duration) map[string]time.Time {
	t.Helper()
	due := make(map[string]time.Time)
	for id, d := range all {
		if _, err := cluster.StartRun(t.Context(), client, sleeper, id, d); err != nil {
			t.Fatal(err)
		}
		due[id] = awaitEvent(t, client, id, history.TimerCreated).FireAt()
	}
	return due
}

// awaitEvent waits until the history of an instance has an event of a type, and returns it.
func awaitEvent(t *testing.T, client *cluster.Client, id string, of history.EventType) (event history.Event) {
	t.Helper()
	eventually(t, fmt.Sprint(id, " has the event ", of), func(ctx context.Context) bool {
		recorded, err := client.History(ctx, id)
		if err != nil {
			return false
		}
		i := slices.IndexFunc(recorded.Events, func(e history.Event) bool { return e.Type == of })
		if i >= 0 {
			event = recorded.Events[i]
		}
		return i >= 0
	})
	return event
}

// checkFired waits for the end of an instance, and checks when its timer has fired.
func checkFired(ctx context.Context, t *testing.T, client *cluster.Client, id string, due time.Time) {
	t.Helper()
	if answer, err := resultOf[string](ctx, client, id); err != nil || answer != "slept" {
		t.Fatalf("%s: %q, %v", id, answer, err)
	}
	now := time.Now()
	fired := awaitEvent(t, client, id, history.TimerFired)
	if !fired.FireAt().Equal(due) || fired.Time.Before(due) || now.Before(due) {
		t.Errorf("%s, due at %v: fired for %v at cluster time %v, before %v", id, due, fired.FireAt(), fired.Time, now)
	}
	if off := now.Sub(fired.Time).Abs(); off > interval {
		t.Errorf("%s: the cluster time %v differs from the wall clock %v", id, fired.Time, now)
	}
}

// startSchedules starts schedules that are due at soon and each interval before. It returns the run
// of the schedule "one", which is in progress.
func startSchedules(t *testing.T, client *cluster.Client, soon time.Time) (triggered string) {
	t.Helper()
	spec := schedule.Spec{Every: interval, Offset: time.Duration(soon.Unix()%int64(interval/time.Second)) * time.Second}
	all, recent, one := spec, spec, spec
	all.Overlap = schedule.Allow
	recent.Overlap, recent.CatchUp = schedule.Allow, interval*3/2
	one.Overlap = schedule.BufferOne
	create := func(id string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		awaitEvent(t, client, id, history.TimerCreated)
	}
	create("all", schedule.Create(t.Context(), client, "all", all, child, 1))
	create("recent", schedule.Create(t.Context(), client, "recent", recent, child, 1))
	create("one", schedule.Create(t.Context(), client, "one", one, waiter, "order"))
	start, err := schedule.Trigger(t.Context(), client, "one", "")
	if err != nil || start.Outcome != schedule.Running {
		t.Fatalf("%+v, %v", start, err)
	}
	awaitEvent(t, client, start.InstanceID, history.ExternalSubscribed)
	return start.InstanceID
}

// checkSchedules waits until the schedules have started what was due until soon, and checks that
// they have followed their specs.
func checkSchedules(ctx context.Context, t *testing.T, client *cluster.Client, soon time.Time, triggered string) {
	t.Helper()
	var due []time.Time // of the five in backupAge and the one at soon
	for i := range 6 {
		due = append(due, soon.Add(time.Duration(i-5)*interval).UTC())
	}
	// CatchUp of 24 hours: each due time has one run.
	checkRuns(t, client, "all", due, func(d *schedule.Description) bool {
		return d.Started == 6 && d.Missed == 0 && d.Skipped == 0 && len(d.Running) == 0
	})
	// CatchUp of one and a half intervals: only the last due time without a cluster is caught up.
	checkRuns(t, client, "recent", due[4:], func(d *schedule.Description) bool {
		return d.Started == 2 && d.Missed == 4 && d.Skipped == 0 && len(d.Running) == 0
	})
	// BufferOne: the run in progress goes on, one due time waits for its end, and the others are
	// skipped.
	checkDescription(t, client, "one", func(d *schedule.Description) bool {
		return d.Started == 1 && d.Missed == 0 && d.Skipped == 5 && len(d.Buffered) == 1 && d.Buffered[0].Equal(due[0]) &&
			len(d.Running) == 1 && d.Running[0].InstanceID == triggered
	})
	if err := cluster.Send(ctx, client, triggered, goAhead, "paid"); err != nil {
		t.Fatal(err)
	}
	if answer, err := resultOf[string](ctx, client, triggered); err != nil || answer != "order paid" {
		t.Errorf("the run in progress: %q, %v", answer, err)
	}
	next := "one-" + due[0].Format(time.RFC3339)
	checkDescription(t, client, "one", func(d *schedule.Description) bool {
		return d.Started == 2 && len(d.Buffered) == 0 && len(d.Running) == 1 && d.Running[0].InstanceID == next
	})
	awaitEvent(t, client, next, history.ExternalSubscribed)
}

// checkRuns waits for a description of a schedule, and checks that its runs are those of the due
// times.
func checkRuns(t *testing.T, client *cluster.Client, id string, due []time.Time, holds func(*schedule.Description) bool) {
	t.Helper()
	d := checkDescription(t, client, id, holds)
	if last := due[len(due)-1]; len(d.Next) == 0 || !d.Next[0].Equal(last.Add(interval)) {
		t.Errorf("%s: after %v comes %v", id, last, d.Next)
	}
	page, err := client.List(t.Context(), cluster.Filter{IDPrefix: id + "-"}, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, status := range page.Instances {
		got = append(got, fmt.Sprint(status.InstanceID, " ", status.State))
	}
	for _, at := range due {
		want = append(want, fmt.Sprint(id, "-", at.Format(time.RFC3339), " ", cluster.Completed))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the runs\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkDescription waits until a schedule is as described.
func checkDescription(t *testing.T, client *cluster.Client, id string, holds func(*schedule.Description) bool) (d *schedule.Description) {
	t.Helper()
	var shown bytes.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(id, " was ", &shown)
		}
	})
	eventually(t, "the schedule "+id+" has gone on", func(ctx context.Context) bool {
		got, err := schedule.Describe(ctx, client, id)
		shown.Reset()
		fmt.Fprintf(&shown, "%+v, %v", got, err)
		d = got
		return err == nil && holds(got)
	})
	return d
}
