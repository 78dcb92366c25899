package bulk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/replay"
)

// Start starts a job and returns its ID when that is committed. The options are those of
// [cluster.StartRun]; with [cluster.RequestID] and Job.ID, a repeated Start starts one job.
//
// Errors: [*replay.InvalidError] for the first field that is not valid; those of
// [cluster.Client.List] and [cluster.StartRun]; [cluster.ErrNotAuthorized]; [cluster.ErrProtocol]
// while a member does not speak protocol 4.
func Start(ctx context.Context, client *cluster.Client, job Job, options ...replay.Option) (id string, err error) {
	made, err := job.request()
	if err == nil {
		_, err = client.List(ctx, job.Filter, "", 1) // checks the filter, and the right to see instances
	}
	if err != nil {
		return "", wrap(err, "start")
	}
	if id = job.ID; id == "" {
		id = "bulk-" + strings.ToLower(rand.Text())
	}
	options = append([]replay.Option{replay.Summary(summaryOf(job))}, options...)
	_, err = cluster.StartRun(withReason(ctx, job.Reason), client, bulk.Orchestration, id, bulk.Input{Job: made}, options...)
	if err != nil {
		return "", wrap(err, "start")
	}
	return id, nil
}

// summaryMax bounds the summary of a job, in bytes.
const summaryMax = 200

// summaryOf returns the summary of a job, for lists of instances.
func summaryOf(job Job) string {
	text := strings.TrimSpace(job.Action + " " + filter.Format(job.Filter))
	return strings.ToValidUTF8(text[:min(len(text), summaryMax)], "")
}

// A Preview is what a job would visit.
type Preview struct {
	// Count is the number of matching instances. Estimated says that it includes instances of the
	// engine's own orchestrations.
	Count     int
	Estimated bool
	// States are the numbers by state; nil if Estimated.
	States map[cluster.State]int
	// Sample are the first matching instances, at most 20; fewer if they are far apart in the
	// index.
	Sample []Instance
}

// An Instance is one that a job would visit.
type Instance struct {
	ID    string
	Name  string // of its orchestration
	State cluster.State
}

// sampleMax bounds the sample of a Preview, and samplePagesMax the pages that are read for it.
const (
	sampleMax      = 20
	samplePagesMax = 10
)

// DryRun returns what a job would visit now. It acts on nothing, and reads a count and a page of
// the index. It does not tell which instances would refuse the action.
//
// Errors: [*replay.InvalidError] for the first field that is not valid; those of
// [cluster.Client.CountBy].
func DryRun(ctx context.Context, client *cluster.Client, job Job) (*Preview, error) {
	_, err := job.request()
	if err != nil {
		return nil, wrap(err, "dry run of")
	}
	job.Filter.Order = ""
	preview := new(Preview)
	if err := preview.count(ctx, client, job.Filter); err != nil {
		return nil, wrap(err, "dry run of")
	}
	if err := preview.readSample(ctx, client, job.Filter); err != nil {
		return nil, wrap(err, "dry run of")
	}
	return preview, nil
}

func (p *Preview) readSample(ctx context.Context, client *cluster.Client, matching cluster.Filter) error {
	after := ""
	for range samplePagesMax {
		page, err := client.List(ctx, matching, after, 2*sampleMax)
		if err != nil {
			return err
		}
		for _, one := range page.Instances {
			if len(p.Sample) < sampleMax && bulk.Selects(matching.Name, one.Name) {
				p.Sample = append(p.Sample, Instance{one.InstanceID, one.Name, one.State})
			}
		}
		if after = page.Next; after == "" || len(p.Sample) >= min(sampleMax, p.Count) {
			break
		}
	}
	return nil
}

// count counts the matching instances.
func (p *Preview) count(ctx context.Context, client *cluster.Client, matching cluster.Filter) error {
	groups, err := client.CountBy(ctx, matching, []string{"name", "state"})
	if errors.As(err, new(*replay.InvalidError)) { // too many groups, unless the filter is not valid
		p.Estimated = true
		p.Count, err = client.Count(ctx, matching)
		return err
	}
	p.States = make(map[cluster.State]int)
	for _, group := range groups {
		if bulk.Selects(matching.Name, group.Values[0]) {
			p.States[cluster.State(group.Values[1])] += int(group.Count)
			p.Count += int(group.Count)
		}
	}
	return err
}

// Get returns the progress of a job; if it has ended, as it was at its end.
func Get(ctx context.Context, client *cluster.Client, id string) (*Progress, error) {
	asked, err := cluster.Query(ctx, client, id, bulk.ProgressQuery, time.Time{})
	if err != nil {
		return nil, wrap(err, "get")
	}
	progress, err := newProgress(id, asked)
	if err != nil {
		return nil, wrap(err, "get")
	}
	if progress.State == Running || progress.State == Paused {
		status, err := client.Get(ctx, id)
		if err != nil {
			return nil, wrap(err, "get")
		}
		if status.State == cluster.Completed { // since it was asked
			if asked, err = cluster.Query(ctx, client, id, bulk.ProgressQuery, time.Time{}); err == nil {
				progress, err = newProgress(id, asked)
			}
			if err != nil {
				return nil, wrap(err, "get")
			}
			return progress, nil
		}
		progress.applyEnd(status)
	}
	return progress, nil
}

// applyEnd shows the end of an instance that the job itself does not know.
func (p *Progress) applyEnd(status *cluster.Status) {
	if status.Ended() {
		p.State, p.Remaining, p.Err = Stopped, 0, status.Err
	}
}

// Pause stops a job from acting until [Resume], and returns when the page in progress is done:
// about 1 s later, or when a partition that the page waits for has a leader. If ctx ends before,
// the pause is in effect all the same, if it was recorded. The reason has at most 3,000 bytes. A
// paused job only gets the reason.
func Pause(ctx context.Context, client *cluster.Client, id, reason string) error {
	return update(ctx, client, id, "pause", bulk.PauseUpdate, reason)
}

// Resume continues a paused job after the last visited instance. The reason replaces that of Pause.
// A job that is not paused only gets the reason.
func Resume(ctx context.Context, client *cluster.Client, id, reason string) error {
	return update(ctx, client, id, "resume", bulk.ResumeUpdate, reason)
}

// Stop ends a job, and returns when the page in progress is done, like [Pause]. A stopped job
// cannot be resumed; another job with the same filter visits what still matches.
func Stop(ctx context.Context, client *cluster.Client, id, reason string) error {
	return update(ctx, client, id, "stop", bulk.StopUpdate, reason)
}

func update(ctx context.Context, client *cluster.Client, id, verb string, handle replay.UpdateHandle[string, struct{}], reason string) error {
	err := bulk.CheckNote(reason)
	if err == nil {
		_, err = cluster.CallUpdate(withReason(ctx, reason), client, id, handle, reason)
	}
	return wrap(err, verb)
}

// withReason makes the history of the job show a reason, unless ctx has one.
func withReason(ctx context.Context, reason string) context.Context {
	if reason == "" || access.ReasonOf(ctx) != "" {
		return ctx
	}
	return access.WithReason(ctx, reason)
}

// wrap says what failed.
func wrap(err error, verb string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s bulk job: %w", verb, err)
}
