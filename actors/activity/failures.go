package activity

import (
	"strings"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Bounds of what is recorded of failed attempts.
const (
	failuresMax       = 20
	failureMessageMax = 200 // bytes
)

// failures are what a task remembers of its failed attempts. A nil *failures has none.
type failures struct {
	lastError *journalpb.Error
	// recorded are the attempts that are followed by another one. The message is never changed,
	// because a record of it may be encoded meanwhile. nil if no times are known.
	recorded *journalpb.FailedAttempts
}

// failuresOf returns those of the journal's record of an activity; nil if there is none.
func failuresOf(retained *journalpb.Attempt) *failures {
	if retained.GetLastError() == nil {
		return nil
	}
	return &failures{retained.LastError, retained.FailedAttempts}
}

func (f *failures) last() *journalpb.Error {
	if f == nil {
		return nil
	}
	return f.lastError
}

func (f *failures) list() *journalpb.FailedAttempts {
	if f == nil {
		return nil
	}
	return f.recorded
}

// withLast returns the failures with another last error.
func (f *failures) withLast(record *journalpb.Error) *failures {
	return &failures{record, f.list()}
}

// withAttempt returns the failures with an attempt that another one will follow. Its error is the
// last one.
func (f *failures) withAttempt(a *attempt, ended clustertime.Time) *failures {
	text := engine.DecodeError(f.lastError).Error()
	added := &journalpb.FailedAttempt{
		Number: uint32(a.number), StartedAt: a.startedAt.UnixNano(), EndedAt: ended.UnixNano(), Code: f.lastError.Code,
		Message: strings.ToValidUTF8(text[:min(len(text), failureMessageMax)], ""),
	}
	earlier := f.list().GetAttempts()
	earlier = earlier[max(0, len(earlier)+1-failuresMax):]
	return &failures{f.lastError, &journalpb.FailedAttempts{Attempts: append(earlier[:len(earlier):len(earlier)], added)}}
}

// until returns the failed attempts before an attempt, which may be nil; nil if none is known.
func (f *failures) until(a *attempt) *journalpb.FailedAttempts {
	recorded := f.list()
	if recorded == nil || a == nil {
		return recorded
	}
	return &journalpb.FailedAttempts{Attempts: recorded.Attempts, NextStartedAt: a.startedAt.UnixNano()}
}

// addTo adds the failed attempts before the last one to the event that ends the activity, and
// returns the event.
func (f *failures) addTo(event *journalpb.Event, last *attempt) *journalpb.Event {
	attempts := f.until(last)
	if attempts == nil {
		return event
	}
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityCompleted:
		body.ActivityCompleted.FailedAttempts = attempts
	case *journalpb.Event_ActivityFailed:
		body.ActivityFailed.FailedAttempts = attempts
	}
	return event
}
