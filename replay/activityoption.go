package replay

import (
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An ActivityOption configures one call of an activity. Options are recorded with the call. If an
// option is given twice, the last one applies.
//
// There are four timeouts. None is set by default, so an activity may run forever. The leader
// enforces them by its clock, never early, and continues them after a failover unless stated
// otherwise. 0 means no timeout. A negative timeout makes the call fail with an [*OptionError], and
// nothing is scheduled.
//
//	ScheduleToStart  from the call to the start of the first attempt  ends the activity
//	StartToClose     each attempt, from its start to its end          fails the attempt
//	HeartbeatTimeout each attempt, from one heartbeat to the next     fails the attempt
//	ScheduleToClose  from the call to the result, all attempts        ends the activity
//
// A failed attempt is retried if the [RetryPolicy] allows it. An activity that is ended fails with
// an [*ActivityError] that wraps a [*TimeoutError]. In both cases the context of the running
// attempt ends with the *TimeoutError as its cause, and the attempt's result is dropped.
type ActivityOption func(*host.ActivityOptions)

// Retry sets the call's retry policy.
func Retry(policy RetryPolicy) ActivityOption {
	return func(options *host.ActivityOptions) { options.Retry = (*host.RetryPolicy)(&policy) }
}

// ScheduleToStart limits how long the activity may wait for its first attempt: for a free slot, or
// for a node with its tag or its code. It counts from the timestamp of ActivityScheduled. When the
// time has passed, the activity fails without an attempt.
func ScheduleToStart(d time.Duration) ActivityOption {
	return func(options *host.ActivityOptions) { options.ScheduleToStart = d }
}

// StartToClose limits each attempt. An attempt that takes longer fails and is retried under the
// policy; the retry does not wait for the old body to return. A body that ignores the end of its
// context keeps its slot (Config.ActivitiesMax) until it returns.
//
// The timeout counts from the start of the attempt. If a new leader starts the attempt again, the
// timeout starts over. For an attempt that is completed from outside (see [ErrResultPending]) the
// timeout continues across failovers.
func StartToClose(d time.Duration) ActivityOption {
	return func(options *host.ActivityOptions) { options.StartToClose = d }
}

// ScheduleToClose limits the activity as a whole, with all attempts and backoffs, from the
// timestamp of ActivityScheduled. The activity fails when the time has passed, or right after a
// failed attempt if the next one could not start in time. The [*TimeoutError] wraps the error of
// the last failed attempt.
func ScheduleToClose(d time.Duration) ActivityOption {
	return func(options *host.ActivityOptions) { options.ScheduleToClose = d }
}

// HeartbeatTimeout limits the time between two calls of [Heartbeat], and from the start of an
// attempt to its first heartbeat. An attempt that is silent for longer fails and is retried under
// the policy. The timeout does not apply while an attempt waits for completion from outside (see
// [ErrResultPending]).
func HeartbeatTimeout(d time.Duration) ActivityOption {
	return func(options *host.ActivityOptions) { options.Heartbeat = d }
}

// Tag restricts the call to nodes that serve the tag (1 to 128 bytes; see Config.Tags of package
// cluster). The activity waits until there is such a node; [ScheduleToStart] and [ScheduleToClose]
// limit the wait. Without this option, or with "", every node is eligible.
func Tag(name string) ActivityOption {
	return func(options *host.ActivityOptions) { options.Tag = name }
}

// An OptionError reports an invalid option. The call had no effect.
type OptionError struct {
	Option string // for example "StartToClose"
	Reason string
}

func (e *OptionError) Error() string { return fmt.Sprintf("tenuto: option %s %s", e.Option, e.Reason) }

// activityOptions returns the options of a call, nil for none.
func activityOptions(options []ActivityOption) *host.ActivityOptions {
	if len(options) == 0 {
		return nil
	}
	all := new(host.ActivityOptions)
	for _, option := range options {
		option(all)
	}
	return all
}

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
