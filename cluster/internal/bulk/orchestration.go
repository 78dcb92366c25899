package bulk

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Definitions returns the definitions that every node registers.
func Definitions(control Control) []replay.Definition {
	return []replay.Definition{
		Orchestration.Bind(run),
		beginActivity.Bind(control.begin),
		listActivity.Bind(control.list),
		pageActivity.Bind(control.act),
	}
}

const (
	// pagesMax is the number of pages after which a job continues as new.
	pagesMax = 100
	// retryMax bounds the backoff of an activity: a job that waits for a leader goes on soon.
	retryMax = 10 * time.Second
)

// A job is a job in an execution.
type job struct {
	State
	id    string
	job   Job
	pages int
	busy  bool     // an activity reads or acts
	found []Target // read and not acted on yet
	next  string   // the ID after which to read when they are done; "" if there are no more
}

// run is the body of a job. It acts on page after page until there are no more or it is stopped.
func run(ctx *replay.Context, in Input) (Progress, error) {
	j := &job{id: ctx.InstanceID(), job: in.Job.WithDefaults(), State: State{Started: ctx.Now(), Phase: Running}}
	if in.State != nil {
		j.State = *in.State
	}
	if err := j.handle(ctx); err != nil {
		return Progress{}, err
	}
	if in.State == nil {
		if err := j.begin(ctx); err != nil {
			return Progress{}, err
		}
	}
	for j.Phase != Completed {
		if err := j.awaitNext(ctx); err != nil {
			return Progress{}, err
		}
		if j.Phase == Stopped {
			break
		}
		if j.pages >= pagesMax || ctx.ShouldContinueAsNew() {
			if err := replay.AwaitUpdates(ctx); err != nil {
				return Progress{}, err
			}
			if j.Phase != Stopped {
				return Progress{}, Orchestration.ContinueAsNew(ctx, Input{j.job, &j.State})
			}
			break
		}
		if err := j.step(ctx); err != nil {
			return Progress{}, err
		}
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return Progress{}, err
	}
	return j.progress(), nil
}

// handle registers the handlers of a job.
func (j *job) handle(ctx *replay.Context) error {
	err := ProgressQuery.Handle(ctx, func(time.Time) (Progress, error) { return j.progress(), nil })
	return cmp.Or(err,
		PauseUpdate.Handle(ctx, CheckNote, j.change(Paused)),
		ResumeUpdate.Handle(ctx, CheckNote, j.change(Running)),
		StopUpdate.Handle(ctx, CheckNote, j.change(Stopped)),
	)
}

// change returns the handler of an update. Unless the new phase is Running, it returns when the job
// acts no longer, or is resumed.
func (j *job) change(to Phase) func(ctx *replay.Context, note string) (struct{}, error) {
	return func(ctx *replay.Context, note string) (struct{}, error) {
		if j.isOver() {
			return struct{}{}, replay.ErrEnded
		}
		j.Phase, j.Note = to, note
		if to == Running {
			return struct{}{}, nil
		}
		j.found, j.next = nil, "" // they may match no longer when the job goes on
		return struct{}{}, replay.Await(ctx, func() bool { return !j.busy || j.Phase == Running })
	}
}

func (j *job) isOver() bool { return j.Phase == Stopped || j.Phase == Completed }

// begin learns who has started the job and how many instances match.
func (j *job) begin(ctx *replay.Context) error {
	begun, err := beginActivity.Call(ctx, beginInput{j.job, j.Started}, ofActivities()...)
	j.Principal, j.Before, j.Matched, j.Estimated = begun.Principal, begun.Before, begun.Matched, begun.Estimated
	return err
}

func (j *job) query() Query { return Query{j.job.Filter, j.Before} }

// ofActivities are the options of the calls of activities. They are tried until they succeed.
func ofActivities() []replay.Option {
	return []replay.Option{
		replay.StartToClose(attemptTime),
		replay.Retry(replay.RetryPolicy{InitialInterval: 200 * time.Millisecond, MaxInterval: retryMax}),
	}
}

// awaitNext waits while the job is paused and until the rate permits the next page. It also returns
// when the job must continue as new, because each pause and resumption grows the history.
func (j *job) awaitNext(ctx *replay.Context) error {
	for !j.isOver() && !ctx.ShouldContinueAsNew() {
		switch wait := j.Next.Sub(ctx.Now()); {
		case j.Phase == Paused:
			if err := replay.Await(ctx, func() bool { return j.Phase != Paused || ctx.ShouldContinueAsNew() }); err != nil {
				return err
			}
		case wait <= 0:
			return ctx.Err()
		default:
			err := replay.AwaitFor(ctx, wait, func() bool { return j.Phase != Running || ctx.ShouldContinueAsNew() })
			if err != nil && ctx.Err() != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// pageSize returns how many instances a page may have: those of a second.
func (j *job) pageSize() int { return min(max(int(j.job.Rate*pageTime.Seconds()), 1), pageMax) }

// step reads a page of instances, unless there are some, and acts on it. A cancellation of the
// instance takes effect after it, so that what was done is counted.
func (j *job) step(ctx *replay.Context) error {
	ctx = replay.WithoutCancel(ctx)
	j.pages++
	begun := ctx.Now()
	j.busy = true
	defer func() { j.busy = false }()
	if len(j.found) == 0 {
		found, err := listActivity.Call(ctx, listInput{j.query(), j.After, j.pageSize()}, ofActivities()...)
		switch {
		case err != nil:
			return err
		case j.Phase != Running:
			return nil // read again when the job goes on
		case len(found.Found) == 0:
			j.advance(found.Next)
			return nil
		}
		j.found, j.next = found.Found, found.Next
	}
	return j.act(ctx, begun)
}

// act acts on the instances of a page.
func (j *job) act(ctx *replay.Context, begun time.Time) error {
	targets, next := j.found, j.next
	out, err := pageActivity.Call(ctx, pageInput{
		JobID: j.id, Action: j.job.Action, Arguments: j.job.Arguments, Reason: j.job.Reason, Principal: j.Principal,
		Concurrency: j.job.Concurrency, Keep: RefusalsMax - j.Kept, Targets: targets,
	}, ofActivities()...)
	if err != nil {
		return err
	}
	if out.Visited < 1 || out.Visited > len(targets) {
		return fmt.Errorf("tenuto: a page of %d instances has visited %d of them", len(targets), out.Visited)
	}
	j.Done += out.Done
	j.Refused += out.Refused
	j.Unknown += out.Unknown
	if n := len(out.Refusals); n > 0 {
		j.Kept += n
		if e := ctx.Execution(); len(j.RefusedIn) == 0 || j.RefusedIn[len(j.RefusedIn)-1] != e {
			j.RefusedIn = append(j.RefusedIn, e)
		}
	}
	j.Next = begun.Add(time.Duration(float64(out.Visited) / j.job.Rate * float64(time.Second)))
	took := ctx.Now()
	if took.Before(j.Next) {
		took = j.Next
	}
	j.Active += took.Sub(begun)
	switch {
	case out.Visited == len(targets):
		j.found = nil
		j.advance(next)
	default:
		j.After = targets[out.Visited-1].ID
		if j.Phase == Running { // perhaps again: a pause has dropped them
			j.found, j.next = targets[out.Visited:], next
		}
	}
	return nil
}

// advance continues after an ID; "" means that there are no more.
func (j *job) advance(next string) {
	switch {
	case next != "":
		j.After = next
	case j.Phase != Stopped:
		j.Phase = Completed
	}
}

func (j *job) progress() Progress {
	p := Progress{Job: j.job, State: j.State}
	if j.Active > 0 {
		p.Speed = float64(j.Done+j.Refused+j.Unknown) / j.Active.Seconds()
	}
	return p
}
