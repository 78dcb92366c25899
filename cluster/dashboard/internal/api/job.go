package api

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	jobs "github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
)

// jobBody is the body that starts a bulk job.
type jobBody struct {
	Filter      *string           `json:"filter"` // required; "" selects all instances
	Action      string            `json:"action"`
	Arguments   map[string]string `json:"arguments"`
	Rate        float64           `json:"rate"` // instances per second; 0: the default
	Concurrency int               `json:"concurrency"`
	ID          string            `json:"id"`
	RequestID   string            `json:"request_id"`
	Reason      string            `json:"reason"`
	DryRun      bool              `json:"dry_run"`
}

// previewAnswer is what a job would visit.
type previewAnswer struct {
	Count     int                   `json:"count"`
	Estimated bool                  `json:"estimated,omitempty"`
	States    map[cluster.State]int `json:"states,omitempty"`
	Sample    []sampleView          `json:"sample"`
}

type sampleView struct {
	ID    string        `json:"id"`
	Name  string        `json:"name"`
	State cluster.State `json:"state"`
}

// jobAnswer is the ID of a job that was started, or what it would visit.
type jobAnswer struct {
	ID string `json:"id,omitempty"`
	*previewAnswer
}

// startJob starts a bulk job, or returns what it would visit.
func (a *API) startJob(ctx context.Context, r *request, body *jobBody) (*jobAnswer, error) {
	job := bulk.Job{
		ID: body.ID, Action: body.Action, Arguments: body.Arguments, Reason: body.Reason, Rate: body.Rate, Concurrency: body.Concurrency,
	}
	if body.Filter == nil {
		return nil, &replay.InvalidError{Field: "filter", Reason: `must be stated; "" selects all instances`}
	}
	var err error
	if job.Filter, err = filter.Parse(*body.Filter, time.Now()); err != nil {
		return nil, err
	}
	if err := r.authorizeJob(&job, body.DryRun); err != nil {
		return nil, err
	}
	if body.DryRun {
		return a.preview(ctx, job)
	}
	var options []replay.Option
	if body.RequestID != "" {
		options = append(options, cluster.RequestID(body.RequestID))
	}
	id, err := bulk.Start(operate.WithReason(ctx, body.Reason), a.config.Client, job, options...)
	if err != nil {
		return nil, err
	}
	return &jobAnswer{ID: id}, nil
}

func (a *API) preview(ctx context.Context, job bulk.Job) (*jobAnswer, error) {
	p, err := bulk.DryRun(ctx, a.config.Client, job)
	if err != nil {
		return nil, err
	}
	answer := &previewAnswer{Count: p.Count, Estimated: p.Estimated, States: p.States, Sample: []sampleView{}}
	for _, in := range p.Sample {
		answer.Sample = append(answer.Sample, sampleView{in.ID, in.Name, in.State})
	}
	return &jobAnswer{previewAnswer: answer}, nil
}

// authorizeJob asks the same rights as the cluster asks of a program that starts the job.
func (r *request) authorizeJob(job *bulk.Job, dryRun bool) error {
	if err := r.authorize(cluster.ActionList, ""); err != nil || dryRun {
		return err
	}
	for _, known := range bulk.Actions() {
		if known.Name == job.Action {
			if err := r.authorize(cluster.Action(known.Right), ""); err != nil {
				return err
			}
		}
	}
	return r.authorize(cluster.ActionStart, job.ID)
}

// jobView is a bulk job as answers have it.
type jobView struct {
	ID                string            `json:"id"`
	State             string            `json:"state"`
	Action            string            `json:"action,omitempty"`
	Arguments         map[string]string `json:"arguments,omitempty"`
	ArgumentsRedacted []string          `json:"arguments_redacted,omitempty"` // the names of those that are hidden
	Filter            string            `json:"filter"`
	Reason            string            `json:"reason,omitempty"`
	Principal         string            `json:"principal,omitempty"`
	Note              string            `json:"note,omitempty"`
	StartedAt         *time.Time        `json:"started_at,omitempty"`
	Rate              float64           `json:"rate,omitempty"`  // the bound
	Speed             float64           `json:"speed,omitempty"` // instances per second
	Matching          int               `json:"matching"`
	Estimated         bool              `json:"estimated,omitempty"`
	Visited           int               `json:"visited"`
	Done              int               `json:"done"`
	Refused           int               `json:"refused"`
	Unknown           int               `json:"unknown"`
	Remaining         int               `json:"remaining"`
	RefusalsKept      int               `json:"refusals_kept,omitempty"` // how many refusals the job has recorded
	Error             *errorView        `json:"error,omitempty"`
	// Unanswered says that a list with "soon" has not waited for the job.
	Unanswered bool `json:"unanswered,omitempty"`
}

type refusalView struct {
	ID      string    `json:"id"`
	Unknown bool      `json:"unknown,omitempty"` // the job may have acted
	Error   errorView `json:"error"`
}

func (v *jobView) add(a *API, p *bulk.Progress) {
	job := &p.Job
	v.State, v.Action, v.Filter, v.Reason = string(p.State), job.Action, filter.Format(job.Filter), job.Reason
	v.Arguments, v.ArgumentsRedacted = a.argumentsOf(job.Arguments)
	v.Principal, v.Note, v.StartedAt, v.Rate, v.Speed = p.Principal, p.Note, timeOf(p.Started), job.Rate, p.Speed
	v.Matching, v.Estimated, v.Done, v.Refused, v.Unknown, v.Remaining = p.Matched, p.Estimated, p.Done, p.Refused, p.Unknown, p.Remaining
	v.Visited, v.RefusalsKept, v.Error = p.Done+p.Refused+p.Unknown, p.RefusalsKept, a.errorViewOf(p.Err)
}

// jobsAnswer is a page of jobs.
type jobsAnswer struct {
	Jobs []*jobView `json:"jobs"`
	Next string     `json:"next"`
}

func (a *API) listJobs(ctx context.Context, r *request) (*jobsAnswer, error) {
	page, err := a.config.Client.List(ctx, cluster.Filter{Name: jobs.Name}, r.FormValue("after"), pageDefault, r.readOptions()...)
	if err != nil {
		return nil, err
	}
	all, err := a.jobs.of(ctx, page.Instances, r.soon())
	if err != nil {
		return nil, err
	}
	answer := &jobsAnswer{Jobs: []*jobView{}, Next: page.Next}
	for _, j := range all {
		v := &jobView{ID: j.InstanceID, State: string(j.State), Error: a.errorViewOf(j.err), Unanswered: j.unanswered}
		if j.value != nil && r.authorize(cluster.ActionQuery, v.ID) == nil {
			v.add(a, j.value)
		}
		answer.Jobs = append(answer.Jobs, v)
	}
	return answer, nil
}

// newJobDescriptions returns the progress of jobs. A job records each part of its progress.
func newJobDescriptions(client *cluster.Client) *descriptions[bulk.Progress] {
	return &descriptions[bulk.Progress]{
		ask: func(ctx context.Context, id string) (*bulk.Progress, error) { return bulk.Get(ctx, client, id) },
		size: func(p *bulk.Progress) int {
			size := 1000 + len(p.Job.Reason) + len(p.Note)
			for name, value := range p.Job.Arguments {
				size += len(name) + len(value)
			}
			return size
		},
		isValid: func(*bulk.Progress, time.Time) bool { return true },
	}
}

func (a *API) getJob(ctx context.Context, r *request) (*jobView, error) {
	id := r.PathValue("id")
	p, err := bulk.Get(ctx, a.config.Client, id)
	if err != nil {
		return nil, err
	}
	v := &jobView{ID: id}
	v.add(a, p)
	return v, nil
}

// refusalsAnswer is a page of the instances on which a job could not act, or for which the outcome
// is unknown.
type refusalsAnswer struct {
	Refusals []refusalView `json:"refusals"`
	Next     string        `json:"next"`
}

func (a *API) listRefusals(ctx context.Context, r *request) (*refusalsAnswer, error) {
	limit, err := r.number("limit", pageDefault, 1, pageMax)
	if err != nil {
		return nil, err
	}
	id := r.PathValue("id")
	if err := r.authorize(cluster.ActionHistory, id); err != nil { // refusals are read from the history
		return nil, err
	}
	page, err := bulk.Refusals(ctx, a.config.Client, id, r.FormValue("after"), int(limit))
	if err != nil {
		return nil, err
	}
	var hidden bool
	if a.config.Redact != nil { // a refusal of the data of an event shows a part of it
		p, err := bulk.Get(ctx, a.config.Client, id)
		if err != nil {
			return nil, err
		}
		hidden = a.config.hidesData(p.Job.Arguments)
	}
	answer := &refusalsAnswer{Refusals: []refusalView{}, Next: page.Next}
	for _, refusal := range page.Refusals {
		unknown := refusal.Code == "unknown_outcome" || refusal.Code == "internal" || refusal.Code == "forgotten"
		if hidden {
			refusal.Message = "hidden, because it may show the data of the event"
		}
		answer.Refusals = append(answer.Refusals, refusalView{refusal.InstanceID, unknown, errorView{refusal.Code, refusal.Message}})
	}
	return answer, nil
}

func pauseJob(ctx context.Context, c *cluster.Client, id, reason string) error {
	return bulk.Pause(ctx, c, id, reason)
}

func resumeJob(ctx context.Context, c *cluster.Client, id, reason string) error {
	return bulk.Resume(ctx, c, id, reason)
}

func stopJob(ctx context.Context, c *cluster.Client, id, reason string) error {
	return bulk.Stop(ctx, c, id, reason)
}
