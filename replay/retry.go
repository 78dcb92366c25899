package replay

import (
	"math"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A RetryPolicy says when a failed attempt of an activity is followed by
// another. The zero value is the default policy: unlimited attempts, the first
// pause 1 s, each twice as long as the one before, none over 100 s, each up to
// 20% longer or shorter by chance. An unlimited policy ends with the call's
// [ScheduleToClose], if it has one.
type RetryPolicy struct {
	// The pause after the first failed attempt. Defaults to 1 s.
	InitialInterval time.Duration
	// What each pause is multiplied by for the next. Defaults to 2; at least 1.
	Backoff float64
	// The longest pause. Defaults to 100 s.
	MaxInterval time.Duration
	// How many attempts are made at most. 0, the default, and less: no limit.
	MaxAttempts int
	// Error codes that end it at once; see [WithCode]. At most 100, of 1 to 128
	// bytes each.
	NonRetryableCodes []string
	// A panic of the activity ends it at once. Defaults to false: it is a failed
	// attempt like any other.
	PanicsAreFinal bool
}

const (
	initialIntervalDefault = time.Second
	backoffDefault         = 2
	maxIntervalDefault     = 100 * time.Second
	jitter                 = 0.2
	pauseMax               = 1 << 61 // 73 years: times must not wrap around
)

func (p RetryPolicy) record() *journalpb.RetryPolicy {
	return &journalpb.RetryPolicy{
		InitialInterval:   int64(p.InitialInterval),
		Backoff:           p.Backoff,
		MaxInterval:       int64(p.MaxInterval),
		MaxAttempts:       uint32(min(max(p.MaxAttempts, 0), math.MaxUint32)),
		NonRetryableCodes: slices.Clone(p.NonRetryableCodes),
		PanicsAreFinal:    p.PanicsAreFinal,
	}
}

// RetryAfter decides what follows the failed attempt of that number, from 1:
// another one after the pause, or none. chance, from 0 to 1, is what the jitter
// is taken from.
func RetryAfter(options *journalpb.ActivityOptions, attempt int, failure error, chance float64) (pause time.Duration, again bool) {
	policy := options.GetRetry()
	code, final := classify(failure)
	if final || slices.Contains(policy.GetNonRetryableCodes(), code) && code != "" {
		return 0, false
	}
	if code == panicCode && policy.GetPanicsAreFinal() {
		return 0, false
	}
	if most := int64(policy.GetMaxAttempts()); most > 0 && int64(attempt) >= most {
		return 0, false
	}
	initial := defaulted(time.Duration(policy.GetInitialInterval()), initialIntervalDefault)
	longest := defaulted(time.Duration(policy.GetMaxInterval()), maxIntervalDefault)
	backoff := max(defaulted(policy.GetBackoff(), backoffDefault), 1)
	exact := float64(initial) * math.Pow(backoff, float64(attempt-1))
	exact = min(exact, float64(longest), pauseMax)
	return time.Duration(exact * (1 + jitter*(2*chance-1))), true
}

// defaulted also replaces what is not a number.
func defaulted[T ~int64 | ~float64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}
