package replay

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// Retry sets the retry policy of a call of an activity, of a child, or of a start from outside (see
// packages cluster and replaytest).
//
// A child or a run with a policy is retried if it would fail: its execution ends as continued as
// new, and the next one begins after the backoff with the same input, version and deadline.
// Unconsumed events, status and tags are kept as by [OrchestrationHandle.ContinueAsNew]. Functions
// registered with [Context.OnClose] have run before. Events that a failed attempt has received are
// not delivered again. Completed, canceled and terminated runs are not retried, nor is a run that
// was asked to cancel. Parents and callers see only the last outcome. ContinueAsNew keeps the
// policy and begins again with attempt 1. The histories of failed attempts are kept as long as the
// instance, and the default policy permits any number: set MaxAttempts. Without a policy, a child
// or a run that fails is not retried. An invalid policy is an [*InvalidError].
//
// A retried attempt that starts a child with a fixed [ChildID] gets [ErrInstanceExists] if the
// failed attempt started it: leave the ID empty, or derive it from [Context.Attempt].
//
// While a member of a cluster does not speak protocol 4, a start with a policy is rejected, and a
// step that calls a child with one is repeated until all members speak it.
func Retry(policy RetryPolicy) Option {
	return Option{host.NewOption("Retry", func(o host.Retried) { o.SetRetry((*host.RetryPolicy)(&policy)) })}
}

// ScheduleToStart limits how long a called activity may wait for its first attempt: for a free
// slot, or for a node with its tag or its code. It counts from the timestamp of ActivityScheduled.
// When the time has passed, the activity fails without an attempt.
func ScheduleToStart(d time.Duration) Option {
	return Option{host.NewOption("ScheduleToStart", func(o *host.ActivityOptions) { o.ScheduleToStart = d })}
}

// StartToClose limits each attempt of a called activity. An attempt that takes longer fails and is
// retried under the policy; the retry does not wait for the old body to return. A body that ignores
// the end of its context keeps its slot (Config.ActivitiesMax) until it returns; see [CancelGrace].
//
// The timeout counts from the start of the attempt. If a new leader starts the attempt again, the
// timeout starts over. For an attempt that is completed from outside (see [ErrResultPending]) the
// timeout continues across failovers.
func StartToClose(d time.Duration) Option {
	return Option{host.NewOption("StartToClose", func(o *host.ActivityOptions) { o.StartToClose = d })}
}

// ScheduleToClose limits a called activity as a whole, with all attempts and backoffs, from the
// timestamp of ActivityScheduled. The activity fails when the time has passed, or right after a
// failed attempt if the next one could not start in time. The [*TimeoutError] wraps the error of
// the last failed attempt.
func ScheduleToClose(d time.Duration) Option {
	return Option{host.NewOption("ScheduleToClose", func(o *host.ActivityOptions) { o.ScheduleToClose = d })}
}

// HeartbeatTimeout limits the time between two calls of [Heartbeat], and from the start of an
// attempt to its first heartbeat. An attempt that is silent for longer fails and is retried under
// the policy. The timeout does not apply while an attempt waits for completion from outside (see
// [ErrResultPending]).
func HeartbeatTimeout(d time.Duration) Option {
	return Option{host.NewOption("HeartbeatTimeout", func(o *host.ActivityOptions) { o.Heartbeat = d })}
}

// CancelGrace limits how long the body of an attempt may run after its context was canceled by a
// timeout or a cancellation. Then its slot is freed, the node logs a warning, and the attempt's
// span ends with the outcome "abandoned". The body keeps running beside later attempts, and
// Config.ActivitiesMax no longer counts it. 0, the default: the body keeps its slot until it
// returns. A negative value makes the call fail with an [*InvalidError].
func CancelGrace(d time.Duration) Option {
	return Option{host.NewOption("CancelGrace", func(o *host.ActivityOptions) { o.CancelGrace = d })}
}

// Tag restricts the call of an activity to nodes that serve the tag (1 to 128 bytes; see
// Config.Tags of package cluster). The activity waits until there is such a node; [ScheduleToStart]
// and [ScheduleToClose] limit the wait. Without this option, or with "", every node is eligible.
func Tag(name string) Option {
	return Option{host.NewOption("Tag", func(o *host.ActivityOptions) { o.Tag = name })}
}

// activityOptions returns the options of a call, nil for none.
func activityOptions(options []Option) *host.ActivityOptions {
	if len(options) == 0 {
		return nil
	}
	all := new(host.ActivityOptions)
	all.Invalid = applyOptions(options, all, "an activity")
	return all
}

// A RetryPolicy decides whether and when a failed attempt of an activity, a child or a run is
// retried. The zero value is the default policy: unlimited attempts, a first backoff of 1 s that
// doubles with each attempt up to 100 s, with a random jitter of ±20%. Unlimited retries of an
// activity end with the call's [ScheduleToClose], those of a run with its deadline, if set.
type RetryPolicy struct {
	// InitialInterval is the backoff after the first failed attempt. 0 and less mean the default of
	// 1 s.
	InitialInterval time.Duration
	// Backoff multiplies the interval after each attempt. 0 and less mean the default of 2; a value
	// below 1 counts as 1.
	Backoff float64
	// MaxInterval is the longest interval before jitter, also of the first. 0 and less mean the
	// default of 100 s.
	MaxInterval time.Duration
	// MaxAttempts limits the number of attempts. 0, the default, and less mean no limit.
	MaxAttempts int
	// NonRetryableCodes lists error codes that are not retried (see [WithCode]): at most 100, of 1
	// to 128 bytes each.
	NonRetryableCodes []string
	// PanicsAreFinal makes a panic the last attempt. Defaults to false: a panic is a failed
	// attempt like any other.
	PanicsAreFinal bool
}
