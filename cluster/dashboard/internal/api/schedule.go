package api

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

// scheduleView is a schedule as answers have it.
type scheduleView struct {
	ID            string        `json:"id"`
	State         cluster.State `json:"state,omitempty"` // of its instance
	Orchestration string        `json:"orchestration,omitempty"`
	Input         *payload      `json:"input,omitempty"`
	Spec          *specView     `json:"spec,omitempty"`
	Paused        bool          `json:"paused"`
	Ended         bool          `json:"ended"`
	Note          string        `json:"note,omitempty"`
	Problem       string        `json:"problem,omitempty"`
	Next          []time.Time   `json:"next,omitempty"`
	Buffered      []time.Time   `json:"buffered,omitempty"`
	Last          []runView     `json:"last,omitempty"` // newest first
	Started       int           `json:"started"`
	Skipped       int           `json:"skipped"`
	Missed        int           `json:"missed"`
	Error         *errorView    `json:"error,omitempty"`
	// Unanswered says that a list with "soon" has not waited for the schedule.
	Unanswered bool `json:"unanswered,omitempty"`
}

type specView struct {
	Cron      []string            `json:"cron,omitempty"`
	Every     float64             `json:"every_seconds,omitempty"`
	Offset    float64             `json:"offset_seconds,omitempty"`
	Calendars []schedule.Calendar `json:"calendars,omitempty"`
	TimeZone  string              `json:"time_zone,omitempty"`
	From      *time.Time          `json:"from,omitempty"`
	Until     *time.Time          `json:"until,omitempty"`
	Overlap   schedule.Overlap    `json:"overlap,omitempty"`
	CatchUp   float64             `json:"catch_up_seconds,omitempty"`
	Jitter    float64             `json:"jitter_seconds,omitempty"`
}

// runView is a run that a schedule has started, or was asked to start.
type runView struct {
	RunID     string           `json:"run_id,omitempty"`
	Due       *time.Time       `json:"due"`
	StartedAt *time.Time       `json:"started_at,omitempty"`
	EndedAt   *time.Time       `json:"ended_at,omitempty"`
	Cause     schedule.Cause   `json:"cause,omitempty"`
	Outcome   schedule.Outcome `json:"outcome,omitempty"`
	Error     string           `json:"error,omitempty"`
}

func runViewOf(s schedule.Start) runView {
	return runView{s.InstanceID, timeOf(s.Due), timeOf(s.StartedAt), timeOf(s.EndedAt), s.Cause, s.Outcome, s.Error}
}

func (v *scheduleView) add(a *API, d *schedule.Description) {
	s := &d.Spec
	v.Orchestration, v.Paused, v.Ended, v.Note, v.Problem = d.Orchestration, d.Paused, d.Ended, d.Note, d.Problem
	v.Input = a.valueOf(replay.PayloadInfo{Kind: "orchestration", Name: d.Orchestration, Part: "input"}, d.Input)
	v.Spec = &specView{
		s.Cron, s.Every.Seconds(), s.Offset.Seconds(), s.Calendars, s.TimeZone, timeOf(s.From), timeOf(s.Until),
		s.Overlap, s.CatchUp.Seconds(), s.Jitter.Seconds(),
	}
	v.Next, v.Buffered, v.Started, v.Skipped, v.Missed = d.Next, d.Buffered, d.Started, d.Skipped, d.Missed
	for _, run := range d.Recent {
		v.Last = append(v.Last, runViewOf(run))
	}
}

// schedulesAnswer is a page of schedules.
type schedulesAnswer struct {
	Schedules []*scheduleView `json:"schedules"`
	Next      string          `json:"next"`
}

func (a *API) listSchedules(ctx context.Context, r *request) (*schedulesAnswer, error) {
	open := cluster.Filter{Name: schedules.Name, States: instances.OpenStates()}
	page, err := a.config.Client.List(ctx, open, r.FormValue("after"), pageDefault, r.readOptions()...)
	if err != nil {
		return nil, err
	}
	all, err := a.schedules.of(ctx, page.Instances, r.soon())
	if err != nil {
		return nil, err
	}
	answer := &schedulesAnswer{Schedules: []*scheduleView{}, Next: page.Next}
	for _, s := range all {
		v := &scheduleView{ID: s.InstanceID, State: s.State, Error: a.errorViewOf(s.err), Unanswered: s.unanswered}
		if s.value != nil && r.authorize(cluster.ActionQuery, v.ID) == nil {
			v.add(a, s.value)
		}
		answer.Schedules = append(answer.Schedules, v)
	}
	return answer, nil
}

// newScheduleDescriptions returns the descriptions of schedules. They change with time alone when a
// due time has passed.
func newScheduleDescriptions(client *cluster.Client) *descriptions[schedule.Description] {
	const each = 150 // bytes of a run or a due time
	return &descriptions[schedule.Description]{
		ask: func(ctx context.Context, id string) (*schedule.Description, error) {
			return schedule.Describe(ctx, client, id)
		},
		size: func(d *schedule.Description) int {
			return len(d.Input) + 1000 + each*(len(d.Recent)+len(d.Running)+len(d.Buffered)+len(d.Next))
		},
		isValid: func(d *schedule.Description, now time.Time) bool { return len(d.Next) == 0 || now.Before(d.Next[0]) },
	}
}

func (a *API) getSchedule(ctx context.Context, r *request) (*scheduleView, error) {
	d, err := schedule.Describe(ctx, a.config.Client, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	v := &scheduleView{ID: r.PathValue("id")}
	v.add(a, d)
	return v, nil
}

func pauseSchedule(ctx context.Context, c *cluster.Client, id, reason string) error {
	return schedule.Pause(ctx, c, id, reason)
}

func resumeSchedule(ctx context.Context, c *cluster.Client, id, reason string) error {
	return schedule.Resume(ctx, c, id, reason)
}

// runsBody is the body of a trigger or a backfill.
type runsBody struct {
	From    time.Time        `json:"from"`
	Until   time.Time        `json:"until"`
	Overlap schedule.Overlap `json:"overlap"`
	Reason  string           `json:"reason"`
}

func (a *API) triggerSchedule(ctx context.Context, r *request, body *runsBody) (*runView, error) {
	run, err := schedule.Trigger(operate.WithReason(ctx, body.Reason), a.config.Client, r.PathValue("id"), body.Overlap)
	if err != nil {
		return nil, err
	}
	view := runViewOf(run)
	return &view, nil
}

// backfillAnswer lists the runs of the due times of an interval.
type backfillAnswer struct {
	Count int       `json:"count"`
	Runs  []runView `json:"runs"`
}

func (a *API) backfillSchedule(ctx context.Context, r *request, body *runsBody) (*backfillAnswer, error) {
	runs, err := schedule.Backfill(operate.WithReason(ctx, body.Reason), a.config.Client, r.PathValue("id"), body.From, body.Until, body.Overlap)
	if err != nil {
		return nil, err
	}
	answer := &backfillAnswer{Count: len(runs), Runs: []runView{}}
	for _, run := range runs {
		answer.Runs = append(answer.Runs, runViewOf(run))
	}
	return answer, nil
}
