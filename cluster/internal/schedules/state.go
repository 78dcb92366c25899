package schedules

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Cause says why a run was started.
type Cause string

// The causes.
const (
	CauseDue      Cause = "due"
	CauseTrigger  Cause = "trigger"
	CauseBackfill Cause = "backfill"
)

// An Outcome says what became of a start.
type Outcome string

// The outcomes.
const (
	Running    Outcome = "running"
	Completed  Outcome = "completed"
	Failed     Outcome = "failed"
	Canceled   Outcome = "canceled"
	Terminated Outcome = "terminated"
	Exists     Outcome = "exists"
	Buffered   Outcome = "buffered"
	Skipped    Outcome = "skipped"
)

// A Start is a run that a schedule has started, or was asked to start.
type Start struct {
	InstanceID string    `json:",omitempty"`
	Due        time.Time `json:",omitzero"`
	StartedAt  time.Time `json:",omitzero"`
	EndedAt    time.Time `json:",omitzero"`
	Cause      Cause
	Outcome    Outcome
	Error      string `json:",omitempty"`
}

// A Description is what a schedule is and has done.
type Description struct {
	ID            string
	Orchestration string
	Input         json.RawMessage
	Spec          Spec
	Paused        bool        `json:",omitempty"`
	Note          string      `json:",omitempty"`
	Next          []time.Time `json:",omitempty"`
	Running       []Start     `json:",omitempty"`
	Recent        []Start     `json:",omitempty"`
	Buffered      []time.Time `json:",omitempty"`
	Started       int
	Skipped       int
	Missed        int
	Problem       string `json:",omitempty"`
	Ended         bool   `json:",omitempty"`
}

// An Input is the input of a schedule's orchestration.
type Input struct {
	Spec   Spec
	Target Target
	State  *State `json:",omitempty"` // nil when the schedule begins
}

// A State is what a schedule keeps from one execution to the next.
type State struct {
	Last     time.Time // due times up to here were decided
	Paused   bool      `json:",omitempty"`
	Note     string    `json:",omitempty"`
	Buffer   []pending `json:",omitempty"` // they wait for a run in progress
	Queue    []pending `json:",omitempty"` // to be decided by a later step of the code
	Written  int       `json:",omitempty"` // bytes recorded in this step of the code, about
	Running  []tracked `json:",omitempty"`
	Recent   []tracked `json:",omitempty"` // oldest first
	Started  int       `json:",omitempty"`
	Skipped  int       `json:",omitempty"`
	Missed   int       `json:",omitempty"`
	Triggers int       `json:",omitempty"`
}

// A pending start has not been decided, or is buffered.
type pending struct {
	Due     time.Time
	Cause   Cause
	Trigger int     `json:",omitempty"` // number of the trigger
	Overlap Overlap `json:",omitempty"`
}

// stops reports whether the start ends the runs before it.
func (p pending) stops() bool { return p.Overlap == Cancel || p.Overlap == Terminate }

// tracked is a start with what identifies it among all starts of all schedules.
type tracked struct {
	Start
	Key      string
	Verified time.Time `json:",omitzero"`  // when the follower of the run was asked
	Stopping Overlap   `json:",omitempty"` // Cancel or Terminate, if the run is to end
}

// Bounds of a State.
const (
	bufferMax  = 1000 // of Buffer and Queue together
	runningMax = 1000
	recentMax  = 20
	nextMax    = 10
)

// Bounds of the size of a State, which must be below replay.PayloadMax, in bytes of JSON.
const (
	stateBytesMax = 1_000_000
	trackedBytes  = 400                                    // of a run in progress, at most
	pendingBytes  = 140                                    // of a start that waits, at most
	recentBytes   = recentMax * (trackedBytes + 6*textMax) // of Recent, at most
)

// The names of the engine's own definitions and messages begin with ReservedPrefix.
const ReservedPrefix = "tenuto."

// Name is the name of the orchestration of every schedule.
const Name = "tenuto.schedule"

// What a schedule is asked.
var (
	Orchestration  = replay.Orchestration[Input, Description](Name)
	DescribeQuery  = replay.Query[time.Time, Description](Name + ".describe")
	PauseUpdate    = replay.Update[string, struct{}](Name + ".pause")
	ResumeUpdate   = replay.Update[string, struct{}](Name + ".resume")
	TriggerUpdate  = replay.Update[Overlap, Start](Name + ".trigger")
	BackfillUpdate = replay.Update[Range, []Start](Name + ".backfill")
	ReplaceUpdate  = replay.Update[Replacement, struct{}](Name + ".replace")
	DeleteUpdate   = replay.Update[struct{}, struct{}](Name + ".delete")
)

// A Range is the input of a backfill: due times from From, included, to Before, excluded.
type Range struct {
	From, Before time.Time
	Overlap      Overlap `json:",omitempty"`
}

// A Replacement is a new Spec and, unless it is nil, a new Target.
type Replacement struct {
	Spec   Spec
	Target *Target `json:",omitempty"`
}

// describe returns the description of a schedule. next is the next due time, if it is known.
func (s *schedule) describe(now time.Time) Description {
	d := Description{
		ID: s.id, Orchestration: s.target.Orchestration, Input: s.target.Input, Spec: s.spec,
		Paused: s.Paused, Note: s.Note, Started: s.Started, Skipped: s.Skipped, Missed: s.Missed, Problem: s.problem, Ended: s.ended,
		Running: startsOf(s.Running), Recent: startsOf(s.Recent),
	}
	slices.Reverse(d.Recent)
	for _, p := range slices.Concat(s.Buffer, s.Queue) {
		d.Buffered = append(d.Buffered, p.Due)
	}
	if s.ended {
		return d
	}
	times, err := compile(s.spec)
	switch {
	case err != nil:
		d.Problem = err.Error()
	case s.Paused:
		d.Next = times.first(now, nextMax)
	case s.next.IsZero():
		d.Next = times.first(s.Last, nextMax)
	default:
		d.Next = append([]time.Time{s.next}, times.first(s.next, nextMax-1)...)
	}
	return d
}

// size returns the size of the schedule as the input of its next execution, in bytes of JSON.
func (s *schedule) size() int { return sizeOf(Input{s.spec, s.target, &s.State}) }

// hasBytes reports whether the state can grow by a number of bytes.
func (s *schedule) hasBytes(more int) bool {
	if s.inputBytes == 0 {
		s.inputBytes = sizeOf(Input{Spec: s.spec, Target: s.target})
	}
	return s.inputBytes+recentBytes+trackedBytes*len(s.Running)+pendingBytes*(len(s.Buffer)+len(s.Queue))+more <= stateBytesMax
}

// sizeOf returns the size of a value in bytes of JSON.
func sizeOf(value any) int {
	encoded, err := json.Marshal(value)
	if err != nil {
		return 0 // recording it fails
	}
	return len(encoded)
}

func startsOf(all []tracked) (starts []Start) {
	for _, t := range all {
		starts = append(starts, t.Start)
	}
	return starts
}
