package replay

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
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
type ActivityOption func(*journalpb.ActivityOptions)

// Retry sets the call's retry policy.
func Retry(policy RetryPolicy) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Retry = policy.toProto() }
}

// ScheduleToStart limits how long the activity may wait for its first attempt: for a free slot, or
// for a node with its tag or its code. It counts from the timestamp of ActivityScheduled. When the
// time has passed, the activity fails without an attempt.
func ScheduleToStart(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.ScheduleToStart = int64(d) }
}

// StartToClose limits each attempt. An attempt that takes longer fails and is retried under the
// policy; the retry does not wait for the old body to return. A body that ignores the end of its
// context keeps its slot (Config.ActivitiesMax) until it returns.
//
// The timeout counts from the start of the attempt. If a new leader starts the attempt again, the
// timeout starts over. For an attempt that is completed from outside (see [ErrResultPending]) the
// timeout continues across failovers.
func StartToClose(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.StartToClose = int64(d) }
}

// ScheduleToClose limits the activity as a whole, with all attempts and backoffs, from the
// timestamp of ActivityScheduled. The activity fails when the time has passed, or right after a
// failed attempt if the next one could not start in time. The [*TimeoutError] wraps the error of
// the last failed attempt.
func ScheduleToClose(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.ScheduleToClose = int64(d) }
}

// HeartbeatTimeout limits the time between two calls of [Heartbeat], and from the start of an
// attempt to its first heartbeat. An attempt that is silent for longer fails and is retried under
// the policy. The timeout does not apply while an attempt waits for completion from outside (see
// [ErrResultPending]).
func HeartbeatTimeout(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Heartbeat = int64(d) }
}

// Tag restricts the call to nodes that serve the tag (1 to 128 bytes; see Config.Tags of package
// cluster). The activity waits until there is such a node; [ScheduleToStart] and [ScheduleToClose]
// limit the wait. Without this option, or with "", every node is eligible.
func Tag(name string) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Tag = name }
}

// An OptionError reports an invalid option. The call had no effect.
type OptionError struct {
	Option string // for example "StartToClose"
	Reason string
}

func (e *OptionError) Error() string { return fmt.Sprintf("tenuto: option %s %s", e.Option, e.Reason) }

// activityOptions returns the record of a call's options, nil for none.
func activityOptions(options []ActivityOption) (*journalpb.ActivityOptions, error) {
	if len(options) == 0 {
		return nil, nil
	}
	recorded := new(journalpb.ActivityOptions)
	for _, option := range options {
		option(recorded)
	}
	for _, limit := range []struct {
		option string
		value  int64
	}{
		{"ScheduleToStart", recorded.ScheduleToStart},
		{"StartToClose", recorded.StartToClose},
		{"ScheduleToClose", recorded.ScheduleToClose},
		{"HeartbeatTimeout", recorded.Heartbeat},
	} {
		if limit.value < 0 {
			return nil, &OptionError{limit.option, fmt.Sprintf("is %v: a timeout must not be negative", time.Duration(limit.value))}
		}
	}
	if tag := recorded.Tag; len(tag) > nameMax || !utf8.ValidString(tag) {
		return nil, &OptionError{"Tag", fmt.Sprintf("%q has %d bytes: at most %d of UTF-8 are allowed", truncate(tag), len(tag), nameMax)}
	}
	return recorded, checkCodes(recorded.Retry.GetNonRetryableCodes())
}

// retryCodesMax bounds the error codes in one policy.
const retryCodesMax = 100

func checkCodes(codes []string) error {
	if len(codes) > retryCodesMax {
		return &OptionError{"Retry", fmt.Sprintf("has %d codes: at most %d are allowed", len(codes), retryCodesMax)}
	}
	for _, code := range codes {
		switch {
		case !utf8.ValidString(code):
			return &OptionError{"Retry", fmt.Sprintf("has the code %q, which is not UTF-8", truncate(code))}
		case len(code) == 0 || len(code) > nameMax:
			return &OptionError{"Retry", fmt.Sprintf("has the code %q of %d bytes: 1 to %d are allowed", truncate(code), len(code), nameMax)}
		}
	}
	return nil
}
