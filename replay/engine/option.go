package engine

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// NewOption returns an option of calls whose options are a T: a pointer to a struct, or an
// interface that such pointers implement. name is the name of the function that returns the option
// to the caller.
func NewOption[T any](name string, apply func(T)) (o replay.Option) {
	*o.Host() = host.NewOption(name, apply)
	return o
}

// ApplyOptions applies options to the struct that to points to. call names the kind of call for
// errors, for example "a start". An option that does not apply is a [*replay.InvalidError].
func ApplyOptions(options []replay.Option, to any, call string) error {
	for i := range options {
		if invalid := options[i].Host().ApplyTo(to, call, i); invalid != nil {
			return invalidOption(invalid)
		}
	}
	return nil
}

// invalidOption returns the error of a call with an invalid option; nil if invalid is nil.
func invalidOption(invalid *host.InvalidOption) error {
	if invalid == nil {
		return nil
	}
	return optionError(invalid.Name, "%s", invalid.Reason)
}

// checkActivityOptions checks the options of a call; nil means none. The error is a
// [*replay.InvalidError].
func checkActivityOptions(options *host.ActivityOptions) error {
	if options == nil {
		return nil
	}
	if options.Invalid != nil {
		return invalidOption(options.Invalid)
	}
	for _, limit := range []struct {
		option string
		value  time.Duration
	}{
		{"ScheduleToStart", options.ScheduleToStart},
		{"StartToClose", options.StartToClose},
		{"ScheduleToClose", options.ScheduleToClose},
		{"HeartbeatTimeout", options.Heartbeat},
		{"CancelGrace", options.CancelGrace},
	} {
		if limit.value < 0 {
			return optionError(limit.option, "is %v: a timeout must not be negative", limit.value)
		}
	}
	if tag := options.Tag; len(tag) > host.NameMax || !utf8.ValidString(tag) {
		return optionError("Tag", "%q has %d bytes: at most %d of UTF-8 are allowed", truncate(tag), len(tag), host.NameMax)
	}
	if options.Retry == nil {
		return nil
	}
	return checkCodes(options.Retry.NonRetryableCodes)
}

func optionError(option, format string, args ...any) error {
	return &replay.InvalidError{Field: "option " + option, Reason: fmt.Sprintf(format, args...)}
}

// retryCodesMax bounds the error codes in one policy.
const retryCodesMax = 100

func checkCodes(codes []string) error {
	if len(codes) > retryCodesMax {
		return optionError("Retry", "has %d codes: at most %d are allowed", len(codes), retryCodesMax)
	}
	for _, code := range codes {
		switch {
		case !utf8.ValidString(code):
			return optionError("Retry", "has the code %q, which is not UTF-8", truncate(code))
		case len(code) == 0 || len(code) > host.NameMax:
			return optionError("Retry", "has the code %q of %d bytes: 1 to %d are allowed", truncate(code), len(code), host.NameMax)
		}
	}
	return nil
}

// recordActivityOptions sets the record of a call's options.
func recordActivityOptions(record *journalpb.ActivityOptions, options *host.ActivityOptions) {
	record.ScheduleToStart = int64(options.ScheduleToStart)
	record.StartToClose = int64(options.StartToClose)
	record.ScheduleToClose = int64(options.ScheduleToClose)
	record.Heartbeat = int64(options.Heartbeat)
	record.CancelGrace = int64(options.CancelGrace)
	record.Tag = options.Tag
	if p := options.Retry; p != nil {
		record.Retry = &journalpb.RetryPolicy{
			InitialInterval:   int64(p.InitialInterval),
			Backoff:           p.Backoff,
			MaxInterval:       int64(p.MaxInterval),
			MaxAttempts:       uint32(min(max(p.MaxAttempts, 0), math.MaxUint32)),
			NonRetryableCodes: slices.Clone(p.NonRetryableCodes),
			PanicsAreFinal:    p.PanicsAreFinal,
		}
	}
}

// The defaults of [replay.RetryPolicy].
const (
	initialIntervalDefault = time.Second
	backoffDefault         = 2
	maxIntervalDefault     = 100 * time.Second
	jitter                 = 0.2
	intervalMax            = 1 << 61 // 73 years: times must not overflow
)

// RetryAfter reports whether a failed attempt is retried, and returns the delay before the retry.
// Attempts are numbered from 1. chance, between 0 and 1, selects the jitter.
func RetryAfter(options *journalpb.ActivityOptions, attempt int, failure error, chance float64) (delay time.Duration, again bool) {
	policy := options.GetRetry()
	code, nonRetryable := classify(failure)
	if nonRetryable || slices.Contains(policy.GetNonRetryableCodes(), code) && code != "" {
		return 0, false
	}
	if code == panicCode && policy.GetPanicsAreFinal() {
		return 0, false
	}
	if maximum := int64(policy.GetMaxAttempts()); maximum > 0 && int64(attempt) >= maximum {
		return 0, false
	}
	initial := orDefault(time.Duration(policy.GetInitialInterval()), initialIntervalDefault)
	longest := orDefault(time.Duration(policy.GetMaxInterval()), maxIntervalDefault)
	backoff := max(orDefault(policy.GetBackoff(), backoffDefault), 1)
	exact := float64(initial) * math.Pow(backoff, float64(attempt-1))
	exact = min(exact, float64(longest), intervalMax)
	return time.Duration(exact * (1 + jitter*(2*chance-1))), true
}

// orDefault returns otherwise if value is not positive, also for NaN.
func orDefault[T ~int64 | ~float64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}
