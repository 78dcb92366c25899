package bulk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Control is the access of a job's activities to the cluster. ctx is that of an activity.
type Control struct {
	Internals func(ctx context.Context) (access.Internals, error)
	// List returns matching instances in the order of their IDs, at most limit of those after an
	// ID. next is the last ID that was examined, "" at the end.
	List func(ctx context.Context, query Query, after string, limit int) (found []Target, next string, err error)
	// Newest returns when the newest of all instances was created.
	Newest func(ctx context.Context) (time.Time, error)
	// Count returns the number of matching instances, which may be an estimate.
	Count func(ctx context.Context, query Query) (n int, estimated bool, err error)
	// Code returns the code of an error of a call, "" for nil.
	Code func(error) string
}

// A Target is an instance on which a job acts, with the run that matched when it was listed. The
// job leaves a later run under the same ID alone.
type Target struct {
	ID          string
	Incarnation uint64 `json:",omitempty"` // of the run; 0: unknown, so any run
	Execution   uint64 `json:",omitempty"` // of the run, when it was listed
	Event       uint64 `json:",omitempty"` // the last one of the execution then
}

// A Query selects the instances of a job: those that match the filter, a cluster.Filter, and were
// created before a time, but not the job itself. Instances of the engine's own orchestrations are
// selected only if the filter names such an orchestration.
type Query struct {
	Filter        json.RawMessage
	CreatedBefore time.Time
}

func (c Control) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	internals, err := c.Internals(ctx)
	if err != nil {
		return nil, err
	}
	return internals.Call(ctx, request)
}

func (c Control) encode(ctx context.Context, of replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	internals, err := c.Internals(ctx)
	if err != nil {
		return nil, err
	}
	return internals.Encode(of, value)
}

func (c Control) events(ctx context.Context, id string, execution uint64, pass func(*journalpb.Event) error) error {
	internals, err := c.Internals(ctx)
	if err != nil {
		return err
	}
	_, err = internals.Events(ctx, id, execution, pass)
	return err
}

func (c Control) codeOf(err error) string {
	var found *refusedError
	if errors.As(err, &found) {
		return found.code
	}
	return c.Code(err)
}

// Bounds of a page.
const (
	pageMax = 500
	// After pageTime a page begins to act on no further instance; the rest is left to the next
	// page. A pause also waits for the calls in flight.
	pageTime = time.Second
	// instanceTime bounds the tries to act on one instance, and triesMax their number.
	instanceTime = 30 * time.Second
	triesMax     = 3
	tryPause     = 100 * time.Millisecond
	// attemptTime bounds an attempt of an activity.
	attemptTime = 2 * time.Minute
	beforeMax   = time.Second
	messageMax  = 200 // of a refusal, in bytes
	// reportInterval is how often a page reports its progress.
	reportInterval = 250 * time.Millisecond
)

// The activities of a job.
var (
	beginActivity = replay.Activity[beginInput, beginning](Name + ".begin")
	listActivity  = replay.Activity[listInput, listOutput](Name + ".list")
	pageActivity  = replay.Activity[pageInput, pageOutput](Name + ".page")
)

type beginInput struct {
	Job     Job
	Started time.Time
}

// A beginning is the result of the activity that begins a job.
type beginning struct {
	Principal string `json:",omitempty"`
	// Before is after the creation of each instance that existed when the job began. Partitions
	// have their own times, so the start of the job need not be. It is at most beforeMax after the
	// start: this activity may run late.
	Before    time.Time
	Matched   int
	Estimated bool `json:",omitempty"`
}

// begin checks a new job, reads who has started it, as the leader has recorded that, and counts the
// instances.
func (c Control) begin(ctx context.Context, in beginInput) (b beginning, err error) {
	if err := in.Job.Check(); err != nil {
		return b, replay.NonRetryable(err)
	}
	if b.Principal, err = c.starterOf(ctx, replay.ActivityInfo(ctx).Instance); err != nil {
		return b, c.permanent(err)
	}
	newest, err := c.Newest(ctx)
	if err != nil {
		return b, c.permanent(err)
	}
	if b.Before = in.Started; !newest.Before(in.Started) {
		b.Before = newest.Add(1)
	}
	if latest := in.Started.Add(beforeMax); b.Before.After(latest) {
		b.Before = latest
	}
	b.Matched, b.Estimated, err = c.Count(ctx, Query{in.Job.Filter, b.Before})
	return b, c.permanent(err)
}

// errFound ends the search in a history.
var errFound = errors.New("found")

// starterOf returns the principal who has started the run of an instance. A later execution, for
// example a retry of the run, does not show it.
func (c Control) starterOf(ctx context.Context, id string) (principal string, err error) {
	response, err := c.call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}})
	if err != nil {
		return "", err
	}
	first := response.GetGet().GetStatus().GetFirstExecution()
	err = c.events(ctx, id, first, func(event *journalpb.Event) error {
		principal = event.GetOrigin().GetPrincipal()
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return principal, err
}

// permanent makes an error about an invalid input not retryable.
func (c Control) permanent(err error) error {
	if c.codeOf(err) == "input" {
		return replay.NonRetryable(err)
	}
	return err
}

type listInput struct {
	Query
	After string `json:",omitempty"`
	Limit int
}

type listOutput struct {
	Found []Target `json:",omitempty"`
	Next  string   `json:",omitempty"` // "": there are no more
}

// list reads instances. It returns fewer than asked, even none, if it has looked for a while.
func (c Control) list(ctx context.Context, in listInput) (out listOutput, err error) {
	end := time.Now().Add(pageTime)
	for out.Next = in.After; ; {
		found, next, err := c.List(ctx, in.Query, out.Next, in.Limit-len(out.Found))
		if err != nil {
			return listOutput{}, c.permanent(err)
		}
		own := replay.ActivityInfo(ctx).Instance
		found = slices.DeleteFunc(found, func(one Target) bool { return one.ID == own })
		out.Found, out.Next = append(out.Found, found...), next
		if next == "" || len(out.Found) == in.Limit || time.Now().After(end) {
			return out, nil
		}
	}
}

// A pageInput is the input of a page. It says all that its requests need.
type pageInput struct {
	JobID       string
	Action      string
	Arguments   map[string]string `json:",omitempty"`
	Reason      string            `json:",omitempty"`
	Principal   string            `json:",omitempty"`
	Concurrency int
	Keep        int // refusals to return
	Targets     []Target
}

// A pageOutput is the result of a page, and what its heartbeat has.
type pageOutput struct {
	Visited  int // of the targets, the first ones
	Done     int
	Refused  int
	Unknown  int
	Refusals []Refusal `json:",omitempty"` // of Refused and Unknown, the first ones
}

// act acts on the instances of a page. It goes on where the heartbeat of an earlier attempt was.
func (c Control) act(ctx context.Context, in pageInput) (pageOutput, error) {
	row, err := actionOf(in.Action)
	if err != nil {
		return pageOutput{}, err // a newer build may know it: try again
	}
	attempt := replay.ActivityInfo(ctx)
	p := &page{
		operator: operator{pageInput: in, key: fmt.Sprintf("%s/%d", attempt.Instance, attempt.Incarnation), control: c},
		action:   row, end: time.Now().Add(pageTime), resolved: make(map[int]result),
	}
	p.out, _ = replay.HeartbeatDetails[pageOutput](ctx)
	p.begun = p.out.Visited
	var workers sync.WaitGroup
	for range min(max(in.Concurrency, 1), len(in.Targets)) {
		workers.Go(func() { p.work(ctx) })
	}
	workers.Wait()
	if p.failed != nil {
		p.report(ctx)
		return pageOutput{}, p.failed
	}
	return p.out, nil
}

// A page is the state of one attempt of the activity that acts on a page.
type page struct {
	operator
	action *action
	end    time.Time

	mu       sync.Mutex
	begun    int            // instances that a goroutine has taken
	out      pageOutput     // of the resolved instances before the first that is not
	resolved map[int]result // of those after it
	failed   error          // ends the attempt
	reportAt time.Time      // when the next report is due
}

// A result is what became of one instance.
type result struct {
	outcome outcome
	refusal Refusal
}

func (p *page) work(ctx context.Context) {
	for {
		i, ok := p.take(ctx)
		if !ok {
			return
		}
		r, err := p.actOn(ctx, p.Targets[i])
		p.resolve(ctx, i, r, err)
	}
}

// take returns the next instance. A page takes at least one.
func (p *page) take(ctx context.Context) (i int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil || p.begun == len(p.Targets) || p.begun > 0 && time.Now().After(p.end) {
		return 0, false
	}
	if ctx.Err() != nil {
		p.failed = context.Cause(ctx)
		return 0, false
	}
	p.begun++
	return p.begun - 1, true
}

// resolve counts an instance, or ends the attempt with an error. What follows the first instance
// that is not resolved is not reported, so that a repetition acts on all that is missing.
func (p *page) resolve(ctx context.Context, i int, r result, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.failed = err
		return
	}
	p.resolved[i] = r
	for {
		r, ok := p.resolved[p.out.Visited]
		if !ok {
			break
		}
		delete(p.resolved, p.out.Visited)
		p.out.add(r, p.Keep)
	}
	if now := time.Now(); now.After(p.reportAt) {
		p.reportAt = now.Add(reportInterval)
		p.report(ctx)
	}
}

// report makes a repetition of the page go on after what is resolved. The end of ctx is noticed
// elsewhere.
func (p *page) report(ctx context.Context) { _ = replay.Heartbeat(ctx, p.out) }

func (o *pageOutput) add(r result, keep int) {
	o.Visited++
	switch r.outcome {
	case done:
		o.Done++
		return
	case refused:
		o.Refused++
	default:
		o.Unknown++
	}
	if len(o.Refusals) < keep {
		o.Refusals = append(o.Refusals, r.refusal)
	}
}

// actOn acts on one instance until the outcome is known. After the last try it returns unknown. An
// error says that nothing was done and that the page must be repeated.
func (p *page) actOn(ctx context.Context, target Target) (result, error) {
	limited, cancel := context.WithTimeout(ctx, instanceTime)
	defer cancel()
	for try := 1; ; try++ {
		err := p.action.act(limited, &p.operator, target)
		code := p.control.codeOf(err)
		found := outcomeOf(p.action.done, code)
		if busy, ok := errors.AsType[*actors.BusyError](err); ok && found == notDone && busy.Bound == actors.BoundInstance {
			found = refused // the call was repeated for instanceTime: the instance may never take it
		}
		switch {
		case ctx.Err() != nil && found != done:
			return result{}, context.Cause(ctx)
		case found == notDone:
			return result{}, fmt.Errorf("act on %s: %w", target.ID, err)
		case found == unknown && try < triesMax && wait(limited, tryPause) == nil:
			continue
		case found == done:
			return result{outcome: done}, nil
		}
		return result{found, Refusal{target.ID, code, shortened(err.Error())}}, nil
	}
}

// An outcome is what a request has done.
type outcome int

const (
	done    outcome = iota
	refused         // nothing was done, and a retry soon would be refused again
	notDone         // nothing was done: repeat
	unknown         // repeat, with the same request ID
)

// outcomeOf returns what an error code says; alsoDone are the codes that an action counts as done.
func outcomeOf(alsoDone []string, code string) outcome {
	switch code {
	case "":
		return done
	case "not_leader", "busy", "closed", "protocol":
		return notDone
	case "unknown_outcome", "internal", "forgotten":
		return unknown
	}
	if slices.Contains(alsoDone, code) {
		return done
	}
	return refused
}

// wait waits, unless ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shortened returns valid text that a refusal can hold, without the prefix that all errors have.
func shortened(text string) string {
	text = strings.TrimPrefix(text, "tenuto: ")
	return strings.ToValidUTF8(text[:min(len(text), messageMax)], "")
}

// hashOf returns 32 hexadecimal digits that depend on all texts.
func hashOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(hash, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// A PageReader finds the results of pages among the events of one execution, in their order.
type PageReader struct {
	converter engine.PayloadConverter
	open      map[uint64]bool // scheduling events of pages without a result
}

// NewPageReader returns a reader for one execution.
func NewPageReader(converter engine.PayloadConverter) *PageReader {
	return &PageReader{converter, make(map[uint64]bool)}
}

// Refusals returns the refusals that an event has; none if it is not the result of a page.
func (r *PageReader) Refusals(event *journalpb.Event) ([]Refusal, error) {
	if event.GetActivityScheduled().GetName() == pageActivity.Name() {
		r.open[event.EventId] = true
	}
	completed := event.GetActivityCompleted()
	if completed == nil || !r.open[event.SourceEventId] {
		return nil, nil
	}
	delete(r.open, event.SourceEventId)
	var out pageOutput
	err := r.converter.Decode(replay.PayloadInfo{Kind: "activity", Name: pageActivity.Name(), Part: "output"}, completed.Result, &out)
	return out.Refusals, err
}
