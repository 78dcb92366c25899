package replay

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An ActivityOption changes how one call of an activity is made. Options are
// recorded with the call. Of an option that is given twice the last one counts.
//
// There are four limits of time, and none is set by default: an activity may
// take for ever. They are enforced by the clock of the node that leads, never
// early, and go on across a failover. 0 means no limit; a negative one makes the
// call fail with an [*OptionError], and nothing is scheduled.
//
//	ScheduleToStart  from the call until the first attempt begins     ends the activity
//	StartToClose     each attempt, from its beginning to its end      fails the attempt
//	HeartbeatTimeout each attempt, from one sign of life to the next  fails the attempt
//	ScheduleToClose  from the call until the result, all told         ends the activity
//
// A failed attempt is followed by another if the [RetryPolicy] allows. An
// activity that is ended fails, and the error is a [*TimeoutError] in the
// [*ActivityError]. Either way the context of the attempt that runs ends with the
// *TimeoutError as its cause, and what the attempt still comes to is dropped.
type ActivityOption func(*journalpb.ActivityOptions)

// Retry sets the call's retry policy.
func Retry(policy RetryPolicy) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Retry = policy.record() }
}

// ScheduleToStart limits how long the activity may wait for its first attempt:
// for a free place on the node, for a node with its tag or its code. It is
// measured from the time that ActivityScheduled carries. When it has passed the
// activity fails and is not tried.
func ScheduleToStart(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.ScheduleToStart = int64(d) }
}

// StartToClose limits each attempt. One that takes longer has failed and is
// retried under the policy, at once as far as its own end is concerned: the next
// does not wait for the body of the last to return. A body that ignores the end
// of its context goes on occupying one of the places that Config.ActivitiesMax
// gives, until it returns.
//
// It is measured from the beginning of the attempt; one that a new leader begins
// again has the whole time again. For an attempt whose end comes from outside
// (see [ErrPending]) the time goes on, also across a failover.
func StartToClose(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.StartToClose = int64(d) }
}

// ScheduleToClose limits the activity as a whole, with all its attempts and the
// pauses between them, measured from the time that ActivityScheduled carries.
// When it has passed, the activity fails; it fails before, right after a failed
// attempt, if the next one could not begin in time. The [*TimeoutError] has the
// error of the last failed attempt as its cause.
func ScheduleToClose(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.ScheduleToClose = int64(d) }
}

// HeartbeatTimeout limits the time between two calls of [Heartbeat], and that
// from the beginning of an attempt to its first. An attempt that is silent for
// longer has failed and is retried under the policy. It does not apply while an
// attempt waits for its end from outside (see [ErrPending]).
func HeartbeatTimeout(d time.Duration) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Heartbeat = int64(d) }
}

// Tag asks for a node that serves the tag: 1 to 128 bytes; see Config.Tags of
// package cluster. Until there is one, the activity waits, which
// [ScheduleToStart] and [ScheduleToClose] can limit. Without this option, and
// with "", every node will do.
func Tag(name string) ActivityOption {
	return func(options *journalpb.ActivityOptions) { options.Tag = name }
}

// An OptionError reports an option that cannot be used. The call that it was
// given to did nothing.
type OptionError struct {
	Option string // "StartToClose", for example
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
			return nil, &OptionError{limit.option, fmt.Sprintf("is %v: a limit of time is not negative", time.Duration(limit.value))}
		}
	}
	if tag := recorded.Tag; len(tag) > nameMax || !utf8.ValidString(tag) {
		return nil, &OptionError{"Tag", fmt.Sprintf("%q has %d bytes: at most %d of UTF-8 are allowed", cut(tag), len(tag), nameMax)}
	}
	return recorded, checkCodes(recorded.Retry.GetNonRetryableCodes())
}

// retryCodesMax bounds the codes that one policy names.
const retryCodesMax = 100

func checkCodes(codes []string) error {
	if len(codes) > retryCodesMax {
		return &OptionError{"Retry", fmt.Sprintf("has %d codes: at most %d are allowed", len(codes), retryCodesMax)}
	}
	for _, code := range codes {
		switch {
		case !utf8.ValidString(code):
			return &OptionError{"Retry", fmt.Sprintf("has the code %q, which is not UTF-8", cut(code))}
		case len(code) == 0 || len(code) > nameMax:
			return &OptionError{"Retry", fmt.Sprintf("has the code %q of %d bytes: 1 to %d are allowed", cut(code), len(code), nameMax)}
		}
	}
	return nil
}
