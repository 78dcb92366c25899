package bulk

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/jsontext"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Job says what to do with which instances.
type Job struct {
	// ID is the instance ID of the job. Defaults to a random one that begins with "bulk-".
	ID string
	// Filter selects the instances; package cluster/filter parses it from text. Its Order must be
	// "" or "id", not descending. The zero value selects all.
	Filter cluster.Filter
	// Action is one of the constants, or another name that [Actions] returns.
	Action string
	// Arguments are those of the action, at most 32,000 bytes together; see [Actions]. Event makes
	// those of [Send].
	Arguments map[string]string
	// Reason is for the histories, at most 3,000 bytes.
	Reason string
	// Rate bounds how many instances are visited per second, 0.01 to 10,000. Defaults to 100.
	Rate float64
	// Concurrency bounds the instances that are acted on at once, 1 to 64. Defaults to 8.
	Concurrency int
}

// The actions. The calls that they stand for are those of cluster.Client and of package
// cluster/operate.
const (
	Cancel    = "cancel"
	Terminate = "terminate"
	Suspend   = "suspend"
	// ResumeInstances resumes suspended instances. [Resume] resumes a job.
	ResumeInstances = "resume"
	Purge           = "purge"
	// Send sends an event: the argument "event" is its name, "data" its data as JSON.
	Send = "send"
	// RetryNow begins the next attempts of all activities of an instance that back off; with the
	// argument "activity", only of those of that name.
	RetryNow = "retry-now"
	// Hold holds all open activities and timers of an instance, but not the timer of its deadline;
	// with the argument "activity", only the activities of that name. Release is the opposite.
	Hold    = "hold"
	Release = "release"
	// Rerun and Rewind begin runs as operate.Rerun and operate.Rewind do. Rewind goes back to
	// before a call: the argument "call" is the name of the activity or child, "number" which of
	// its calls.
	Rerun  = "rerun"
	Rewind = "rewind"
)

// An Action describes an action. Its fields:
//
//	Name      string
//	Help      string // what is done with an instance
//	Arguments []Argument
//	Right     string // the cluster.Action that Config.Authorize is asked for
type Action = bulk.Action

// An Argument describes an argument of an action. Its fields:
//
//	Name     string
//	Help     string
//	Required bool
type Argument = bulk.Argument

// Actions returns all actions.
func Actions() []Action { return bulk.Actions() }

// Event returns the arguments of [Send] for an event with data. The error is a
// [*replay.InvalidError].
func Event[T any](event replay.EventHandle[T], data T) (map[string]string, error) {
	if path, _, found := jsontext.Invalid("data", data); found {
		return nil, &replay.InvalidError{Field: path, Reason: "is not UTF-8, which JSON cannot represent: pass it as []byte"}
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return nil, &replay.InvalidError{Field: "data", Reason: "cannot be encoded: " + err.Error()}
	}
	return map[string]string{bulk.ArgumentEvent: event.Name(), bulk.ArgumentData: string(encoded)}, nil
}

// request returns what the job records.
func (j Job) request() (bulk.Job, error) {
	if order := j.Filter.Order; order != "" && order != "id" || j.Filter.Descending {
		return bulk.Job{}, &replay.InvalidError{Field: "Job.Filter", Reason: "has an order: a job visits instances in ascending order of their IDs"}
	}
	j.Filter.Order = ""
	filter, err := json.Marshal(j.Filter)
	if err != nil {
		return bulk.Job{}, &replay.InvalidError{Field: "Job.Filter", Reason: "cannot be encoded: " + err.Error()}
	}
	made := bulk.Job{
		Filter: filter, Action: j.Action, Arguments: j.Arguments, Reason: j.Reason, Rate: j.Rate, Concurrency: j.Concurrency,
	}.WithDefaults()
	return made, made.Check()
}

// A State says whether a job acts.
type State = bulk.Phase

// The states.
const (
	Running   = bulk.Running
	Paused    = bulk.Paused
	Stopped   = bulk.Stopped // by Stop, or because its instance has ended
	Completed = bulk.Completed
)

// A Progress is how far a job has come. The numbers change at the end of each page.
type Progress struct {
	// Job is the job with defaults filled in.
	Job   Job
	State State
	// Note is the reason of the latest [Pause], [Resume] or [Stop].
	Note string
	// Principal is who started the job, as recorded: "client gw for alice"; "" if unknown.
	Principal string
	Started   time.Time // cluster time
	// Matched is the number of instances that matched when the job began. Since then, instances may
	// have begun or ceased to match, so the number of visited ones may differ. Estimated says that
	// it includes instances of the engine's own orchestrations.
	Matched   int
	Estimated bool
	// Done, Refused and Unknown are the numbers of visited instances by outcome.
	Done, Refused, Unknown int
	// Remaining estimates how many instances are still to visit; 0 in a job that has ended.
	Remaining int
	// Speed is the average of visited instances per second, with waits for Rate and without pauses;
	// 0 before the first page.
	Speed float64
	// RefusalsKept is the number of refusals that [Refusals] lists.
	RefusalsKept int
	// Err is why the job has failed; nil otherwise.
	Err error
}

// newProgress returns the progress of a job as its instance shows it.
func newProgress(id string, p bulk.Progress) (*Progress, error) {
	made := &Progress{
		Job: Job{
			ID: id, Action: p.Job.Action, Arguments: p.Job.Arguments, Reason: p.Job.Reason, Rate: p.Job.Rate, Concurrency: p.Job.Concurrency,
		},
		State: p.State.Phase, Note: p.State.Note, Principal: p.State.Principal, Started: p.State.Started,
		Matched: p.State.Matched, Estimated: p.State.Estimated,
		Done: p.State.Done, Refused: p.State.Refused, Unknown: p.State.Unknown,
		Speed: p.Speed, RefusalsKept: p.State.Kept,
	}
	if err := json.Unmarshal(p.Job.Filter, &made.Job.Filter); err != nil {
		return nil, fmt.Errorf("decode filter: %w", err)
	}
	if made.State == Running || made.State == Paused {
		made.Remaining = max(0, made.Matched-made.Done-made.Refused-made.Unknown)
	}
	return made, nil
}
