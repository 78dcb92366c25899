package actors

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// InputOptions are the options of an event or an update.
type InputOptions struct {
	RequestID string // "": none was chosen
}

func (o *InputOptions) setRequestID(id string) { o.RequestID = id }

// StartOptions are the options with which a client or a test starts an instance.
type StartOptions struct {
	InputOptions
	Version string // "": the pinned one, or else the highest
	Attach  bool
	Reuse   Reuse
	// In Unix nanoseconds. StartAt 0: at once. Deadline 0: none.
	StartAt, Deadline int64
	Tags              map[string]string
	Retry             *engine.RetryPolicy // nil: none
	Summary           string
}

// allow adds a reuse of the instance ID. Of several, the one that allows most counts.
func (o *StartOptions) allow(reuse Reuse) {
	order := []Reuse{ReuseNever, ReuseFailed, ReuseEnded, ReuseTerminating}
	if slices.Index(order, reuse) > slices.Index(order, o.Reuse) {
		o.Reuse = reuse
	}
}

// RequestIDMax bounds a request ID, in bytes. It may be an idempotency key (at most 191 bytes) and
// a suffix.
const RequestIDMax = 256

// Bounds of options, in bytes unless noted.
const (
	versionMax  = 128
	tagsMax     = 64 // tags
	tagKeyMax   = 128
	tagValueMax = 1024
)

// Check returns a [*replay.InvalidError] that names the first option whose value is not valid.
func (o *InputOptions) Check() error { return CheckRequestID(o.RequestID) }

// Check returns a [*replay.InvalidError] that names the first option whose value is not valid.
func (o *StartOptions) Check() error {
	_, err := engine.RecordedRetry(o.Retry)
	return cmp.Or(o.InputOptions.Check(), CheckVersion(o.Version), CheckTags(o.Tags), err, engine.CheckSummary(o.Summary), CheckReuse(o.Reuse, o.Attach))
}

// CheckRequestID checks the option [RequestID].
func CheckRequestID(id string) error {
	return engine.CheckText("option RequestID", id, 0, RequestIDMax)
}

// CheckVersion checks the option [replay.Version] of a start.
func CheckVersion(version string) error {
	return engine.CheckText("option Version", version, 0, versionMax)
}

// CheckTags checks the option [Tags].
func CheckTags(tags map[string]string) error {
	if len(tags) == 0 { // sorting no keys allocates
		return nil
	}
	invalid := func(format string, args ...any) error {
		return &replay.InvalidError{Field: "option Tags", Reason: fmt.Sprintf(format, args...)}
	}
	if len(tags) > tagsMax {
		return invalid("has %d tags: at most %d are allowed", len(tags), tagsMax)
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		switch value := tags[key]; {
		case len(key) == 0 || len(key) > tagKeyMax:
			return invalid("has the key %.140q of %d bytes: 1 to %d are allowed", key, len(key), tagKeyMax)
		case !utf8.ValidString(key):
			return invalid("has the key %.140q, which is not UTF-8", key)
		case len(value) > tagValueMax:
			return invalid("has %d bytes under the key %q: at most %d are allowed", len(value), key, tagValueMax)
		case !utf8.ValidString(value):
			return invalid("has %.140q under the key %q, which is not UTF-8", value, key)
		}
	}
	return nil
}

// SetVersion makes [replay.Version] an option of a start.
func (o *StartOptions) SetVersion(version string) { o.Version = version }

// SetRetry makes [replay.Retry] an option of a start.
func (o *StartOptions) SetRetry(policy *engine.RetryPolicy) { o.Retry = policy }

// SetSummary makes [replay.Summary] an option of a start.
func (o *StartOptions) SetSummary(text string) { o.Summary = text }

// RequestID sets the request ID of a start, an event or an update.
func RequestID(id string) replay.Option {
	return engine.NewOption("RequestID", func(o interface{ setRequestID(id string) }) { o.setRequestID(id) })
}

// Attach allows an existing instance.
func Attach() replay.Option {
	return engine.NewOption("Attach", func(o *StartOptions) { o.Attach = true })
}

// ReuseWhenEnded allows the ID of an instance that has ended.
func ReuseWhenEnded() replay.Option {
	return engine.NewOption("ReuseWhenEnded", func(o *StartOptions) { o.allow(ReuseEnded) })
}

// ReuseWhenFailed allows the ID of an instance that has ended without completing.
func ReuseWhenFailed() replay.Option {
	return engine.NewOption("ReuseWhenFailed", func(o *StartOptions) { o.allow(ReuseFailed) })
}

// TerminateExisting allows the ID of any instance, and terminates a running one.
func TerminateExisting() replay.Option {
	return engine.NewOption("TerminateExisting", func(o *StartOptions) { o.allow(ReuseTerminating) })
}

// CheckReuse returns an error if a start would both terminate an instance and attach to it.
func CheckReuse(reuse Reuse, attach bool) error {
	if reuse == ReuseTerminating && attach {
		return &replay.InvalidError{Field: "option TerminateExisting", Reason: "excludes Attach and SendOrStart"}
	}
	return nil
}

// StartAt delays the code until a time.
func StartAt(at time.Time) replay.Option {
	return engine.NewOption("StartAt", func(o *StartOptions) { o.StartAt = ClampedUnixNanos(at) })
}

// Deadline cancels the run at a time.
func Deadline(at time.Time) replay.Option {
	return engine.NewOption("Deadline", func(o *StartOptions) { o.Deadline = ClampedUnixNanos(at) })
}

// Tags adds tags to those of the start.
func Tags(tags map[string]string) replay.Option {
	return engine.NewOption("Tags", func(o *StartOptions) {
		if o.Tags == nil {
			o.Tags = make(map[string]string)
		}
		maps.Copy(o.Tags, tags)
	})
}

// ClampedUnixNanos returns a time as nanoseconds since 1970, clamped to int64. It returns 1 instead
// of 0, because 0 means no time.
func ClampedUnixNanos(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	case t.UnixNano() == 0:
		return 1
	}
	return t.UnixNano()
}
