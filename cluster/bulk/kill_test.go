package bulk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	booking = replay.Orchestration[string, string]("booking")
	refund  = replay.Activity[string, string]("refund")
)

// book is the body of booking: it waits, and if it is canceled, it refunds.
func book(ctx *replay.Context, id string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		_, err := refund.Call(ctx, id)
		return err
	})
	return word.Wait(ctx)
}

const (
	bookings     = 800
	callsAtOnce  = 128 // of this test
	killsOnWay   = 3
	fullSizeTime = time.Hour
)

// A bulk cancellation with compensations: each instance is canceled once and compensates once,
// though the leader is killed three times on the way, and the progress is right. TENUTO_BULK is
// another number of instances than 800, for example (or run "make bulk"):
//
//	TENUTO_BULK=100000 go test -count 1 -run TestCancel_LeaderKilledThreeTimes -v -timeout 1h ./cluster/bulk
func TestCancel_LeaderKilledThreeTimes(t *testing.T) {
	t.Parallel()
	// In the small test, a page has an eighth of the instances and takes about half of its second.
	total, rate, concurrency := bookings, 100.0, 1
	if text := os.Getenv("TENUTO_BULK"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		must(t, err)
		rate, concurrency = 10_000, 32
	}
	ctx, cancel := context.WithTimeout(t.Context(), fullSizeTime)
	defer cancel()
	var attempts, effects, pages counter
	c := newCluster(t, clustertest.Timeout(fullSizeTime), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.ActivityInterceptors = []replay.ActivityInterceptor{pages.countPages}
	}), clustertest.Definitions(
		booking.Bind(book),
		refund.Bind(func(ctx context.Context, id string) (string, error) {
			key := replay.ActivityInfo(ctx).IdempotencyKey()
			attempts.add(key)
			effects.add(id + " " + key)
			return "refunded", nil
		}),
	))
	client, err := cluster.Dial(ctx, cluster.DialConfig{Addresses: c.Addresses(), CallTimeout: 5 * time.Minute})
	must(t, err)
	defer client.Close()

	began := time.Now()
	forEachBooking(t, total, func(id string) error {
		_, err := cluster.StartRun(ctx, client, booking, id, id)
		return err
	})
	t.Logf("%d instances started in %v", total, time.Since(began).Round(time.Millisecond))

	began = time.Now()
	job, err := bulk.Start(ctx, client, bulk.Job{Action: bulk.Cancel, Filter: cluster.Filter{Name: "booking"}, Reason: "flood", Rate: rate, Concurrency: concurrency})
	must(t, err)
	watch := &progressWatch{t: t, client: client, job: job, total: total, compensated: effects.len}
	for kill := range killsOnWay {
		leader := c.Leader()
		watch.await(ctx, c, total*(4*kill+3)/16) // in the middle of a page
		t.Logf("killing the leader after %d compensations, %d instances are done", effects.len(), watch.last.Done)
		c.Kill(leader)
		c.Leader()
		c.Restart(leader)
		c.Eventually("the restarted node follows", func() bool { return c.Node(leader).Health().Ready() == nil })
	}
	p := finish(ctx, t, client, job)
	t.Logf("%d instances visited in %v with %d kills: %.0f per second", p.Done, time.Since(began).Round(time.Millisecond), killsOnWay, p.Speed)
	if p.State != bulk.Completed || p.Matched != total || p.Done != total || p.Refused != 0 || p.Unknown != 0 || p.Remaining != 0 {
		t.Errorf("progress: %+v", p)
	}
	c.Eventually("all instances are canceled", func() bool {
		n, err := client.Count(ctx, cluster.Filter{Name: "booking", States: []cluster.State{cluster.Canceled}})
		return err == nil && n == total
	})
	t.Logf("all canceled and compensated after %v", time.Since(began).Round(time.Millisecond))

	want := "flood (bulk job " + job + ")"
	forEachBooking(t, total, func(id string) error {
		recorded, err := client.History(ctx, id, cluster.Stale())
		if err != nil {
			return err
		}
		return checkBooking(recorded.Events, want)
	})
	if effects.len() != total {
		t.Errorf("%d effects, want %d", effects.len(), total)
	}
	t.Logf("%d compensations, %d of their attempts repeated", attempts.len(), attempts.repeated())
	t.Logf("%d pages, %d of their attempts repeated", pages.len(), pages.repeated())
}

// countPages counts the attempts of pages.
func (c *counter) countPages(ctx context.Context, next func(context.Context) error) error {
	if attempt := replay.ActivityInfo(ctx); attempt.Name == page.Name() {
		c.add(attempt.IdempotencyKey())
	}
	return next(ctx)
}

// forEachBooking calls do for each instance, some at once.
func forEachBooking(t *testing.T, total int, do func(id string) error) {
	t.Helper()
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for i := range total {
		id := fmt.Sprintf("booking-%06d", i)
		calls.Go(func() error {
			if err := do(id); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			return nil
		})
	}
	must(t, calls.Wait())
}

// checkBooking requires one request to cancel and one compensation.
func checkBooking(events []history.Event, reason string) error {
	var types []history.EventType
	for _, event := range events {
		if event.Type == history.OrchestrationCancelRequested && event.Reason != reason {
			return fmt.Errorf("canceled because of %q, want %q", event.Reason, reason)
		}
		types = append(types, event.Type)
	}
	count := func(of history.EventType) (n int) {
		for _, one := range types {
			if one == of {
				n++
			}
		}
		return n
	}
	if count(history.OrchestrationCancelRequested) != 1 || count(history.ActivityScheduled) != 1 || count(history.ActivityCompleted) != 1 ||
		types[len(types)-1] != history.OrchestrationCanceled {
		return fmt.Errorf("recorded %v", types)
	}
	return nil
}

// A progressWatch checks each progress of a job that it reads.
type progressWatch struct {
	t      *testing.T
	client *cluster.Client
	job    string
	total  int
	last   bulk.Progress

	compensated func() int
}

// await waits until a number of instances is compensated.
func (w *progressWatch) await(ctx context.Context, c *clustertest.Cluster, n int) {
	w.t.Helper()
	c.Eventually(fmt.Sprintf("%d instances are compensated", n), func() bool {
		if w.compensated() >= n {
			return true
		}
		p, err := bulk.Get(ctx, w.client, w.job)
		if errors.As(err, new(*cluster.UnavailableError)) {
			return false
		}
		must(w.t, err)
		if p.Done < w.last.Done || p.Done > w.total || !slices.Contains([]int{0, w.total}, p.Matched) ||
			p.State == bulk.Running && p.Remaining != p.Matched-p.Done || p.Refused+p.Unknown > 0 {
			w.t.Fatalf("progress: %+v\nafter %+v", p, w.last)
		}
		w.last = *p
		return w.compensated() >= n
	})
	if w.last.State == bulk.Completed {
		w.t.Fatalf("the job was done before %d", n)
	}
}
