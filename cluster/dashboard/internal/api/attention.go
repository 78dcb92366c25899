package api

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
)

const (
	// attentionMax bounds the instances that are counted for one line. More are "100 or more".
	attentionMax = 100
	// pagesMax bounds the pages that are read for one line. A page can be short, even empty, if a
	// condition selects few of very many instances.
	pagesMax = 10

	// The first schedulesMax schedules are asked once per schedulesInterval, and after
	// schedulesRetry if they have not answered in time: in schedulesSoon for an overview that a
	// page waits for.
	schedulesInterval = 30 * time.Second
	schedulesRetry    = 2 * time.Second
	schedulesSoon     = 25 * time.Millisecond
	schedulesMax      = 100
	// missedFor is how long missed due times need attention after they were noticed.
	missedFor = 24 * time.Hour
)

// addFailing adds the instances whose activities fail again and again.
func (a *clusterAPI) addFailing(ctx context.Context, o *overviewAnswer) error {
	const text = "failing>=3 order=created" // faster than by ID
	found, more, err := a.first(ctx, text, attentionMax)
	if err != nil || len(found) == 0 {
		return err
	}
	view := attentionView{Kind: "failing", Title: "Activities fail again and again", Count: uint64(len(found)), Filter: text}
	if more {
		view.Title = fmt.Sprintf("Activities of %d or more instances fail again and again", len(found))
		view.Count = 0
	}
	o.Attention = append(o.Attention, view)
	return nil
}

// addOldest adds the running instance that has recorded nothing for the longest time.
func (a *clusterAPI) addOldest(ctx context.Context, o *overviewAnswer) error {
	found, _, err := a.first(ctx, "state=running order=updated", 1)
	if err != nil || len(found) == 0 {
		return err
	}
	o.Attention = append(o.Attention, attentionView{
		Kind: "oldest_waiting", Title: "The longest without progress", InstanceID: found[0].InstanceID,
		Text: found[0].Name + " " + found[0].InstanceID, Since: timeOf(found[0].UpdatedAt),
	})
	return nil
}

// first returns the first instances of a list, and whether there may be more.
func (a *clusterAPI) first(ctx context.Context, text string, most int) (found []*cluster.Status, more bool, err error) {
	f, err := filter.Parse(text, time.Now())
	if err != nil {
		return nil, false, err
	}
	after := ""
	for range pagesMax {
		page, err := a.client.List(ctx, f, after, most-len(found), cluster.Stale())
		if err != nil {
			return nil, false, err
		}
		found = append(found, page.Instances...)
		if after = page.Next; after == "" || len(found) >= most {
			break
		}
	}
	return found, after != "", nil
}

// A scheduleChecker finds schedules that need attention. Asking a schedule loads it into memory, so
// the answers are kept for a while. Its methods may be called concurrently.
type scheduleChecker struct {
	// list returns the first schedules, those that have answered before a limit with a value, and
	// whether all have.
	list func(ctx context.Context, limit time.Duration) (found []described[schedule.Description], all bool, err error)
	now  func() time.Time

	mu     sync.Mutex
	next   time.Time                 // when the schedules are asked again
	found  []attentionView           // not changed in place
	missed map[string]missedDueTimes // by ID
}

// missedDueTimes are the due times that a schedule has missed.
type missedDueTimes struct {
	count int
	since time.Time // when the count was noticed
}

// attention returns what is wrong with schedules, as of the last time that they were asked. If that
// is due, it asks them, for at most limit; concurrent callers do not wait for that.
func (c *scheduleChecker) attention(ctx context.Context, limit time.Duration) []attentionView {
	now := c.now()
	c.mu.Lock()
	due, found := !now.Before(c.next), c.found
	if due {
		c.next = now.Add(schedulesRetry)
	}
	c.mu.Unlock()
	if !due {
		return found
	}
	answered, all, err := c.list(ctx, limit)
	if err != nil || !all {
		return found
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = now.Add(schedulesInterval)
	c.update(now, answered)
	return c.found
}

// firstSchedules is scheduleChecker.list.
func (a *API) firstSchedules(ctx context.Context, limit time.Duration) (found []described[schedule.Description], all bool, err error) {
	open := cluster.Filter{Name: schedules.Name, States: instances.OpenStates()}
	page, err := a.config.Client.List(ctx, open, "", schedulesMax, cluster.Stale())
	if err != nil {
		return nil, false, err
	}
	found, err = a.schedules.of(ctx, page.Instances, limit)
	isUnanswered := func(s described[schedule.Description]) bool { return s.unanswered }
	return found, !slices.ContainsFunc(found, isUnanswered), err
}

// update takes the answers of schedules. c.mu must be held.
func (c *scheduleChecker) update(now time.Time, all []described[schedule.Description]) {
	missed := make(map[string]missedDueTimes)
	c.found = nil
	for _, s := range all {
		d := s.value
		if d == nil {
			continue // an instance in that state needs attention by itself
		}
		view := attentionView{Kind: "schedule_missed", InstanceID: s.InstanceID}
		if d.Missed > 0 {
			last := c.missed[s.InstanceID]
			if last.count != d.Missed {
				last = missedDueTimes{d.Missed, now}
			}
			missed[s.InstanceID] = last
			if now.Sub(last.since) < missedFor {
				view.Title, view.Text = fmt.Sprintf("Schedule %s has missed due times", s.InstanceID), fmt.Sprintf("%d since it was created", d.Missed)
			}
		}
		if d.Problem != "" {
			view.Title, view.Text = fmt.Sprintf("The due times of schedule %s cannot be computed", s.InstanceID), d.Problem
		}
		if view.Title != "" {
			c.found = append(c.found, view)
		}
	}
	c.missed = missed
}
