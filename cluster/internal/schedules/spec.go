package schedules

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Spec says when a schedule starts runs, and how.
type Spec struct {
	Cron      []string            `json:",omitempty"`
	Every     time.Duration       `json:",omitempty"`
	Offset    time.Duration       `json:",omitempty"`
	Calendars []Calendar          `json:",omitempty"`
	TimeZone  string              `json:",omitempty"`
	From      time.Time           `json:",omitzero"`
	Until     time.Time           `json:",omitzero"`
	Overlap   Overlap             `json:",omitempty"`
	CatchUp   time.Duration       `json:",omitempty"`
	Jitter    time.Duration       `json:",omitempty"`
	RunID     string              `json:",omitempty"`
	Version   string              `json:",omitempty"`
	Summary   string              `json:",omitempty"`
	Retry     *replay.RetryPolicy `json:",omitempty"`
}

// A Calendar selects times of a wall clock by lists of values.
type Calendar struct {
	Years    []int          `json:",omitempty"`
	Months   []time.Month   `json:",omitempty"`
	Days     []int          `json:",omitempty"`
	Weekdays []time.Weekday `json:",omitempty"`
	Hours    []int          `json:",omitempty"`
	Minutes  []int          `json:",omitempty"`
	Seconds  []int          `json:",omitempty"`
}

// An Overlap says what happens to a start while an earlier run of the schedule is in progress.
type Overlap string

// The overlap policies.
const (
	Skip      Overlap = "skip"
	BufferOne Overlap = "buffer-one"
	BufferAll Overlap = "buffer-all"
	Cancel    Overlap = "cancel"
	Terminate Overlap = "terminate"
	Allow     Overlap = "allow"
)

var overlaps = []Overlap{Skip, BufferOne, BufferAll, Cancel, Terminate, Allow}

// Bounds and defaults of a Spec.
const (
	idMax          = 80      // bytes of the ID of a schedule
	sourcesMax     = 20      // expressions, and calendars
	expressionMax  = 200     // bytes of an expression
	zoneMax        = 64      // bytes of the name of a time zone
	textMax        = 1000    // bytes of a note and of a recorded error
	inputMax       = 256_000 // bytes of JSON of the input of the runs
	codesMax       = 100     // codes of a retry policy
	nameMax        = 128     // bytes of a name, a version and an error code
	everyMax       = 10 * 365 * 24 * time.Hour
	jitterMax      = 24 * time.Hour
	catchUpMin     = 10 * time.Second
	catchUpDefault = 24 * time.Hour
	catchUpMax     = 10 * 365 * 24 * time.Hour
	runIDDefault   = "{id}-{time}"
)

// latest is the last moment that timers can represent, rounded down.
var latest = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)

// A Target is what a schedule starts.
type Target struct {
	Orchestration string
	Input         json.RawMessage
}

// Check returns a *replay.InvalidError for the first field that is not valid.
func Check(id string, spec Spec, target Target) error {
	if !engine.ValidInstanceID(id) || len(id) > idMax {
		return invalid("schedule ID", "%.140q is not 1 to %d of A-Z a-z 0-9 . _ : @ / + -", id, idMax)
	}
	if err := checkTarget(target); err != nil {
		return err
	}
	return CheckSpec(id, spec)
}

// CheckSpec is Check without the target.
func CheckSpec(id string, spec Spec) error {
	if _, err := compile(spec); err != nil {
		return err
	}
	if err := checkRuns(id, spec); err != nil {
		return err
	}
	return checkTimes(spec)
}

func checkTarget(target Target) error {
	switch size := len(target.Orchestration); {
	case size < 1 || size > nameMax || !utf8.ValidString(target.Orchestration):
		return invalid("orchestration", "has a name of %d bytes: 1 to %d bytes of UTF-8 are allowed", size, nameMax)
	case strings.HasPrefix(target.Orchestration, ReservedPrefix):
		return invalid("orchestration", "is %.140q: names that begin with %q are reserved", target.Orchestration, ReservedPrefix)
	case len(target.Input) > inputMax:
		return invalid("input", "has %d bytes: at most %d are allowed", len(target.Input), inputMax)
	case !json.Valid(target.Input):
		return invalid("input", "is not JSON")
	}
	return nil
}

// checkRuns checks what concerns the runs.
func checkRuns(id string, spec Spec) error {
	if CheckOverlap(spec.Overlap) != nil {
		return invalid("Spec.Overlap", "is %.40q: %v are allowed", spec.Overlap, overlaps)
	}
	if spec.RunID != "" && !strings.Contains(spec.RunID, "{time}") {
		return invalid("Spec.RunID", "is %.140q: it must contain {time}", spec.RunID)
	}
	// The longest ID is that of a triggered run.
	if longest := runID(spec, id, latest, 1_000_000_000); !engine.ValidInstanceID(longest) {
		return invalid("Spec.RunID", "leads to instance ID %.140q, which is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -", longest)
	}
	if len(spec.Version) > nameMax || !utf8.ValidString(spec.Version) {
		return invalid("Spec.Version", "has %d bytes: at most %d bytes of UTF-8 are allowed", len(spec.Version), nameMax)
	}
	if summary := new(replay.InvalidError); errors.As(engine.CheckSummary(spec.Summary), &summary) {
		return invalid("Spec.Summary", "%s", summary.Reason)
	}
	if spec.Retry == nil {
		return nil
	}
	if codes := len(spec.Retry.NonRetryableCodes); codes > codesMax {
		return invalid("Spec.Retry", "has %d codes: at most %d are allowed", codes, codesMax)
	}
	for _, code := range spec.Retry.NonRetryableCodes {
		if len(code) < 1 || len(code) > nameMax {
			return invalid("Spec.Retry", "has a code of %d bytes: 1 to %d are allowed", len(code), nameMax)
		}
	}
	return nil
}

// checkTimes checks the bounds of times and durations.
func checkTimes(spec Spec) error {
	switch {
	case spec.CatchUp != 0 && (spec.CatchUp < catchUpMin || spec.CatchUp > catchUpMax):
		return invalid("Spec.CatchUp", "is %v: %v to %v are allowed", spec.CatchUp, catchUpMin, catchUpMax)
	case spec.Jitter < 0 || spec.Jitter > jitterMax:
		return invalid("Spec.Jitter", "is %v: 0 to %v are allowed", spec.Jitter, jitterMax)
	case spec.From.After(latest):
		return invalid("Spec.From", "is after %d", latest.Year()-1)
	case !spec.Until.IsZero() && !spec.Until.After(spec.From):
		return invalid("Spec.Until", "is not after Spec.From")
	}
	return nil
}

// checkEvery checks the interval of a schedule.
func checkEvery(spec Spec) error {
	switch {
	case spec.Every < 0 || spec.Every > everyMax || spec.Every%time.Second != 0:
		return invalid("Spec.Every", "is %v: whole seconds from 1s to %v are allowed", spec.Every, everyMax)
	case spec.Offset < 0 || spec.Offset%time.Second != 0 || spec.Offset > 0 && spec.Offset >= spec.Every:
		return invalid("Spec.Offset", "is %v: whole seconds from 0s to less than Spec.Every are allowed", spec.Offset)
	}
	return nil
}

func checkText(field, text string) error {
	if len(text) > textMax || !utf8.ValidString(text) {
		return invalid(field, "has %d bytes: at most %d bytes of UTF-8 are allowed", len(text), textMax)
	}
	return nil
}

// catchUp returns the catch-up window.
func (spec Spec) catchUp() time.Duration {
	if spec.CatchUp == 0 {
		return catchUpDefault
	}
	return spec.CatchUp
}

// runID returns the ID of the instance that is started for a due time. triggered is 0, or the
// number of the trigger.
func runID(spec Spec, id string, due time.Time, triggered int) string {
	text := due.UTC().Format(time.RFC3339)
	if triggered > 0 {
		text += fmt.Sprintf("-%d", triggered)
	}
	template := spec.RunID
	if template == "" {
		template = runIDDefault
	}
	return strings.NewReplacer("{id}", id, "{time}", text).Replace(template)
}

func invalid(field, reason string, args ...any) error {
	return &replay.InvalidError{Field: field, Reason: fmt.Sprintf(reason, args...)}
}
