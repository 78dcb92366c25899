package schedule

import (
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
)

// A Spec says when a schedule starts runs, and how. At least one of Cron, Every and Calendars is
// needed; their due times are joined. The zero value of any other field means its default.
//
//	// At most 20 expressions of at most 200 bytes: minute, hour, day of month, month and day of
//	// week, optionally preceded by seconds; or @yearly, @monthly, @weekly, @daily or @hourly. Lists,
//	// ranges, steps and English names are allowed, and L, 15W, MON#1 and FRI#L as in Quartz. If both
//	// days are restricted, one of them has to match.
//	Cron []string
//	// An interval of 1 s to 10 years, in whole seconds: due at its multiples since 1970-01-01 00:00
//	// UTC, plus Offset.
//	Every  time.Duration
//	Offset time.Duration // 0 to less than Every, in whole seconds
//	// At most 20 calendars.
//	Calendars []Calendar
//	// The IANA name of the time zone of Cron and Calendars, such as "Europe/Berlin". Defaults to UTC.
//	TimeZone string
//	// Due times are From or later, and before Until. Default to no bound.
//	From, Until time.Time
//
//	// What happens to a due time while an earlier run is in progress. Defaults to Skip.
//	Overlap Overlap
//	// How late a run may start, 10 s to 10 years. A due time after that is missed. Defaults to 24 h.
//	CatchUp time.Duration
//	// Delays each start by a time below Jitter, at most 24 h, that follows from the ID of the
//	// schedule and the due time; never beyond the next due time. Defaults to 0.
//	Jitter time.Duration
//
//	// A template of the instance IDs of the runs. {time}, which is required, stands for the due
//	// time in UTC as in RFC 3339, in triggered runs followed by "-" and a number; {id} for the ID
//	// of the schedule. Defaults to "{id}-{time}".
//	RunID string
//	// The version, summary and retry policy of the runs; see replay.Version, replay.Summary and
//	// replay.Retry.
//	Version string
//	Summary string
//	Retry   *replay.RetryPolicy
type Spec = schedules.Spec

// A Calendar selects the times of the wall clock that match all its fields. A field is a list of
// the values that match.
//
//	Years    []int          // 1970 to 2261; empty: all
//	Months   []time.Month   // empty: all
//	Days     []int          // 1 to 31, or -1 for the last day of the month to -31; empty: all
//	Weekdays []time.Weekday // empty: all
//	Hours    []int          // 0 to 23; empty: 0
//	Minutes  []int          // 0 to 59; empty: 0
//	Seconds  []int          // 0 to 59; empty: 0
type Calendar = schedules.Calendar

// An Overlap says what happens to a start while an earlier run of the schedule is in progress.
type Overlap = schedules.Overlap

// The overlap policies.
const (
	// Skip starts nothing. This is the default.
	Skip = schedules.Skip
	// BufferOne starts one run when the others are done, and skips further due times until then.
	BufferOne = schedules.BufferOne
	// BufferAll starts the runs one after another. At most 1,000 wait, fewer with large inputs;
	// further ones are skipped.
	BufferAll = schedules.BufferAll
	// Cancel asks the others to cancel, as cluster.Client.Cancel does, and starts when they are
	// done, before what is buffered. Until then, a later due time replaces this one, which counts
	// as skipped.
	Cancel = schedules.Cancel
	// Terminate is like Cancel, and ends the others as cluster.Client.Terminate does.
	Terminate = schedules.Terminate
	// Allow starts at once. At most 1,000 runs are in progress; further due times are skipped.
	Allow = schedules.Allow
)

// A Cause says why a run was started.
type Cause = schedules.Cause

// The causes.
const (
	CauseDue      = schedules.CauseDue      // a due time
	CauseTrigger  = schedules.CauseTrigger  // Trigger
	CauseBackfill = schedules.CauseBackfill // Backfill
)

// An Outcome says what became of a start.
type Outcome = schedules.Outcome

// The outcomes. Buffered and Skipped are answers of [Trigger] and [Backfill].
const (
	Running    = schedules.Running
	Completed  = schedules.Completed
	Failed     = schedules.Failed
	Canceled   = schedules.Canceled
	Terminated = schedules.Terminated
	Exists     = schedules.Exists // an instance of that ID existed; nothing was started
	Buffered   = schedules.Buffered
	Skipped    = schedules.Skipped
)

// A Start is a run that a schedule has started, or was asked to start.
//
//	InstanceID string    // of the run; "" if it was not started
//	Due        time.Time // the due time, or the time of the trigger
//	StartedAt  time.Time // cluster time
//	EndedAt    time.Time // zero while it runs
//	Cause      Cause
//	Outcome    Outcome
//	Error      string // why it failed, at most 1,000 bytes
type Start = schedules.Start

// A Description is what a schedule is and has done.
//
//	ID            string
//	Orchestration string          // the name of what it starts
//	Input         json.RawMessage // of the runs
//	Spec          Spec
//	Paused        bool
//	Note          string      // of the last Pause or Resume
//	Next          []time.Time // the next 10 due times, as if it were not paused
//	Running       []Start     // runs in progress, oldest first
//	Recent        []Start     // the last 20 starts, newest first
//	Buffered      []time.Time // due times that wait for a run in progress, or a moment
//	Started       int         // number of starts
//	Skipped       int         // number of due times, triggers and backfills that were skipped
//	Missed        int         // number of due times that were missed; an outage adds at most about 1,000
//	Problem       string      // why due times cannot be computed; the schedule tries again each minute
//	Ended         bool        // it was deleted or canceled
type Description = schedules.Description

// Times returns the first n due times of a Spec after a time, fewer if there are no more. It calls
// no cluster. n is at most 10,000.
//
// Errors: [*replay.InvalidError] for a field of the Spec.
func Times(spec Spec, after time.Time, n int) ([]time.Time, error) {
	return schedules.Times(spec, after, n)
}
