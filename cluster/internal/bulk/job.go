package bulk

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/replay"
)

// Name is the name of the orchestration of every job.
const Name = "tenuto.bulk"

// What a job is asked.
var (
	Orchestration = replay.Orchestration[Input, Progress](Name)
	ProgressQuery = replay.Query[time.Time, Progress](Name + ".progress")
	PauseUpdate   = replay.Update[string, struct{}](Name + ".pause")
	ResumeUpdate  = replay.Update[string, struct{}](Name + ".resume")
	StopUpdate    = replay.Update[string, struct{}](Name + ".stop")
)

// A Job is what the input of a job records.
type Job struct {
	Filter      json.RawMessage // a cluster.Filter
	Action      string
	Arguments   map[string]string `json:",omitempty"`
	Reason      string            `json:",omitempty"`
	Rate        float64           `json:",omitempty"` // instances per second
	Concurrency int               `json:",omitempty"`
}

// An Input is the input of a job's orchestration.
type Input struct {
	Job   Job
	State *State `json:",omitempty"` // nil when the job begins
}

// A State is what a job keeps from one execution to the next.
type State struct {
	Started   time.Time
	Before    time.Time     // instances created before are visited
	Principal string        `json:",omitempty"` // who started it
	Matched   int           `json:",omitempty"`
	Estimated bool          `json:",omitempty"`
	After     string        `json:",omitempty"` // the last visited ID
	Next      time.Time     // the earliest begin of the next page
	Active    time.Duration `json:",omitempty"` // how long pages took, with the pauses of the rate
	Done      int           `json:",omitempty"`
	Refused   int           `json:",omitempty"`
	Unknown   int           `json:",omitempty"`
	Kept      int           `json:",omitempty"` // refusals in the histories
	RefusedIn []uint64      `json:",omitempty"` // executions that have them
	Phase     Phase
	Note      string `json:",omitempty"`
}

// A Phase says whether a job acts.
type Phase string

// The phases.
const (
	Running   Phase = "running"
	Paused    Phase = "paused"
	Stopped   Phase = "stopped"
	Completed Phase = "completed"
)

// A Progress is how far a job has come.
type Progress struct {
	Job   Job
	State State
	Speed float64 `json:",omitempty"` // instances per second
}

// A Refusal is an instance on which a job could not act.
type Refusal struct {
	InstanceID string
	Code       string
	Message    string `json:",omitempty"`
}

// Bounds and defaults of a Job.
const (
	RateDefault        = 100
	RateMin, RateMax   = 0.01, 10_000
	ConcurrencyDefault = 8
	ConcurrencyMax     = 64
	reasonMax          = 3000
	argumentsBytesMax  = 32_000
	filterBytesMax     = 64_000
	// RefusalsMax bounds the refusals that a job keeps.
	RefusalsMax = 10_000
)

func invalid(field, format string, arguments ...any) error {
	return &replay.InvalidError{Field: field, Reason: fmt.Sprintf(format, arguments...)}
}

// WithDefaults returns a job with defaults for zero values.
func (j Job) WithDefaults() Job {
	if j.Rate == 0 {
		j.Rate = RateDefault
	}
	if j.Concurrency == 0 {
		j.Concurrency = ConcurrencyDefault
	}
	return j
}

// Check returns a [*replay.InvalidError] for the first field that is not valid. It does not check
// the filter.
func (j Job) Check() error {
	action, err := actionOf(j.Action)
	if err != nil {
		return err
	}
	switch {
	case !(j.Rate >= RateMin && j.Rate <= RateMax):
		return invalid("Job.Rate", "is %v instances per second: %v to %v are allowed", j.Rate, RateMin, RateMax)
	case j.Concurrency < 1 || j.Concurrency > ConcurrencyMax:
		return invalid("Job.Concurrency", "is %d: 1 to %d are allowed", j.Concurrency, ConcurrencyMax)
	}
	if len(j.Filter) > filterBytesMax {
		return invalid("Job.Filter", "has %d bytes as JSON: at most %d are allowed", len(j.Filter), filterBytesMax)
	}
	if err := checkText("Job.Reason", j.Reason, reasonMax); err != nil {
		return err
	}
	return action.checkArguments(j.Arguments)
}

// CheckNote returns a [*replay.InvalidError] for the reason of a pause, a resumption or a stop.
func CheckNote(note string) error { return checkText("reason", note, reasonMax) }

func checkText(field, text string, most int) error {
	switch {
	case len(text) > most:
		return invalid(field, "has %d bytes: at most %d are allowed", len(text), most)
	case !utf8.ValidString(text):
		return invalid(field, "is not UTF-8")
	}
	return nil
}

// checkArguments returns an error for arguments that the action does not take, or lacks.
func (a *action) checkArguments(arguments map[string]string) error {
	bytes := 0
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		known := slices.ContainsFunc(a.Arguments, func(one Argument) bool { return one.Name == name })
		if !known {
			return invalid("Job.Arguments", "has %.40q, which %q does not take; it takes %s", name, a.Name, a.argumentNames())
		}
		if bytes += len(arguments[name]); bytes > argumentsBytesMax {
			return invalid("Job.Arguments", "has more than %d bytes", argumentsBytesMax)
		}
	}
	for _, one := range a.Arguments {
		value, ok := arguments[one.Name]
		if !ok && one.Required {
			return invalid("Job.Arguments", "lacks %q, which %q requires", one.Name, a.Name)
		}
		if ok && one.check != nil {
			if err := one.check(value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *action) argumentNames() string {
	if len(a.Arguments) == 0 {
		return "none"
	}
	var names []string
	for _, one := range a.Arguments {
		names = append(names, one.Name)
	}
	return strings.Join(names, ", ")
}

// Selects reports whether a job acts on instances of an orchestration: on those of the engine's own
// only if the filter names one.
func Selects(filtered, name string) bool {
	return strings.HasPrefix(filtered, schedules.ReservedPrefix) || !strings.HasPrefix(name, schedules.ReservedPrefix)
}

// RightOf returns the action of cluster.Config.Authorize that the starter of a job needs.
func RightOf(in Input) (string, error) {
	if in.State != nil {
		return "", invalid("input", "has a state, which only the job itself sets")
	}
	found, err := actionOf(in.Job.Action)
	if err != nil {
		return "", err
	}
	return found.Right, nil
}
