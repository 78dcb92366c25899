package history

import (
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A FailedAttempt is an attempt of an activity that has failed. Its times are those of the leader,
// in cluster time and UTC: an attempt that a new leader learns of by its result begins when that
// comes.
type FailedAttempt struct {
	Number    int // from 1
	StartedAt time.Time
	EndedAt   time.Time
	// Code is the code of the error, as in [replay.Error]. Message is the beginning of its text, at
	// most 200 bytes; with a codec, it says only that the error is encoded.
	Code    string
	Message string
}

// Failures returns the failed attempts of the activity that an ActivityCompleted or ActivityFailed
// event ends: the latest 20 at most, in their order. The attempt whose failure ends the activity is
// not among them, unless the activity ended later, between two attempts. Failures returns none for
// every other event, and for events that earlier builds recorded.
func (e Event) Failures() []FailedAttempt {
	var all []FailedAttempt
	for _, a := range e.failedAttempts().GetAttempts() {
		all = append(all, FailedAttempt{
			Number: int(a.Number), StartedAt: time.Unix(0, a.StartedAt).UTC(), EndedAt: time.Unix(0, a.EndedAt).UTC(),
			Code: a.Code, Message: a.Message,
		})
	}
	return all
}

// LastAttemptStarted returns when the last attempt of such an activity began. It returns the zero
// time if there was only one attempt, or if that is not recorded.
func (e Event) LastAttemptStarted() time.Time {
	if at := e.failedAttempts().GetNextStartedAt(); at != 0 {
		return time.Unix(0, at).UTC()
	}
	return time.Time{}
}

func (e Event) failedAttempts() *journalpb.FailedAttempts {
	if failed := e.message.GetActivityFailed(); failed != nil {
		return failed.FailedAttempts
	}
	return e.message.GetActivityCompleted().GetFailedAttempts()
}
