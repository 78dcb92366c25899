package replay

import (
	"math"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A RetryPolicy decides whether and when a failed attempt of an activity is retried. The zero value
// is the default policy: unlimited attempts, a first backoff of 1 s that doubles with each attempt
// up to 100 s, with a random jitter of ±20%. Unlimited retries end with the call's
// [ScheduleToClose], if set.
type RetryPolicy struct {
	// InitialInterval is the backoff after the first failed attempt. Defaults to 1 s.
	InitialInterval time.Duration
	// Backoff multiplies the interval after each attempt. Defaults to 2; at least 1.
	Backoff float64
	// MaxInterval is the longest interval before jitter. Defaults to 100 s.
	MaxInterval time.Duration
	// MaxAttempts limits the number of attempts. 0, the default, and less mean no limit.
	MaxAttempts int
	// NonRetryableCodes lists error codes that are not retried (see [WithCode]): at most 100, of 1
	// to 128 bytes each.
	NonRetryableCodes []string
	// PanicsAreFinal ends the activity at its first panic. Defaults to false: a panic is a failed
	// attempt like any other.
	PanicsAreFinal bool
}

const (
	initialIntervalDefault = time.Second
	backoffDefault         = 2
	maxIntervalDefault     = 100 * time.Second
	jitter                 = 0.2
	intervalMax            = 1 << 61 // 73 years: times must not overflow
)

func (p RetryPolicy) toProto() *journalpb.RetryPolicy {
	return &journalpb.RetryPolicy{
		InitialInterval:   int64(p.InitialInterval),
		Backoff:           p.Backoff,
		MaxInterval:       int64(p.MaxInterval),
		MaxAttempts:       uint32(min(max(p.MaxAttempts, 0), math.MaxUint32)),
		NonRetryableCodes: slices.Clone(p.NonRetryableCodes),
		PanicsAreFinal:    p.PanicsAreFinal,
	}
}

// RetryAfter returns whether an attempt that failed is retried, and the delay before the retry.
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
