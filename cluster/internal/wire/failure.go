package wire

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Failure codes between nodes. An unknown code is an internal error.
const (
	CodeNotLeader = "not_leader"
	CodeUnknown   = "unknown_outcome"
	CodeInternal  = "internal"
	CodeNotFound  = "not_found"
	CodeInput     = "input"
	CodeBusy      = "busy"
	CodeProtocol  = "protocol"
	CodeForgotten = "forgotten"
	CodeNoCode    = "no_code"
	CodePayload   = "payload"
	CodeToken     = "attempt_token"

	CodeOperationKind = "operation_kind"
	CodeCopyRefused   = "copy_refused"
	CodeOtherLineage  = "other_lineage"
)

// NotLeader returns the response to a call that reached no leader. Nothing was done.
func NotLeader(message string) *clusterpb.Response {
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: CodeNotLeader, Message: message, NotExecuted: true}}
}

// Busy returns the failure of a call that was rejected under overload.
func Busy(busy *actors.BusyError) *clusterpb.Failure {
	return &clusterpb.Failure{
		Code: CodeBusy, Message: busy.Reason, NotExecuted: true, RetryAfter: int64(busy.RetryAfter), Bound: string(busy.Bound),
	}
}

// BusyError converts such a failure to an error.
func BusyError(f *clusterpb.Failure) *actors.BusyError {
	return &actors.BusyError{RetryAfter: time.Duration(f.RetryAfter), Bound: actors.Bound(f.Bound), Reason: f.Message}
}

// NotRegistered returns the failure of a call that needs code or a handler that the leader does not
// have. Message is the text of the whole error.
func NotRegistered(e *replay.NotRegisteredError, message string) *clusterpb.Failure {
	return &clusterpb.Failure{
		Code: CodeNoCode, Message: message, NotExecuted: true,
		NotRegistered: &clusterpb.NotRegistered{Kind: e.Kind, Name: e.Name, Version: e.Version},
	}
}

// NotRegisteredError converts such a failure to an error with the text that the leader sent. A node
// of an earlier version sends neither kind nor name: it reports orchestrations only.
func NotRegisteredError(f *clusterpb.Failure) *replay.NotRegisteredError {
	of := f.GetNotRegistered()
	e := &replay.NotRegisteredError{Kind: cmp.Or(of.GetKind(), "orchestration"), Name: of.GetName(), Version: of.GetVersion()}
	e.Host().Leader = DedupPrefix(f.Message)
	return e
}

// PayloadRefused returns the failure of an event whose data does not fit the receiver's code.
func PayloadRefused(e *replay.PayloadError) *clusterpb.Failure {
	return &clusterpb.Failure{Code: CodePayload, Message: e.Error(), NotExecuted: true, Payload: engine.EncodeError(e)}
}

// PayloadError converts such a failure to an error; nil if it is not valid.
func PayloadError(f *clusterpb.Failure) *replay.PayloadError {
	var refused *replay.PayloadError
	if !errors.As(engine.DecodeError(f.Payload), &refused) {
		return nil
	}
	return refused
}

// Invalid returns the failure of a call with an argument that is not valid. cause is the whole
// error; if a payload is too large, the failure says so.
func Invalid(e *replay.InvalidError, cause error) *clusterpb.Failure {
	f := &clusterpb.Failure{Code: CodeInput, Field: e.Field, Message: e.Reason, NotExecuted: true}
	if large := new(replay.PayloadTooLargeError); errors.As(cause, &large) {
		f.Payload = engine.EncodeError(large)
	}
	return f
}

// PayloadTooLarge returns the error of such a failure; nil if no payload is too large, or a leader
// of an earlier build sent the failure.
func PayloadTooLarge(f *clusterpb.Failure) *replay.PayloadTooLargeError {
	var large *replay.PayloadTooLargeError
	if !errors.As(engine.DecodeError(f.Payload), &large) {
		return nil
	}
	return large
}

// Token returns the failure of a call with a signed token that is not valid. It does not contain
// the token.
func Token(e *replay.TokenError) *clusterpb.Failure {
	return &clusterpb.Failure{Code: CodeToken, Field: e.Token, Message: e.Reason, NotExecuted: true}
}

// TokenError converts such a failure to an error.
func TokenError(f *clusterpb.Failure) *replay.TokenError {
	return &replay.TokenError{Token: f.Field, Reason: f.Message}
}

// CopyRefused returns the failure of a call whose history is not copied.
func CopyRefused(e *state.CopyError) *clusterpb.Failure {
	return &clusterpb.Failure{Code: CodeCopyRefused, Message: e.Error(), NotExecuted: true, CopyRefusal: &clusterpb.CopyRefusal{
		Instance: e.Instance, Execution: e.Execution, EventId: e.EventID, Reason: string(e.Reason), Operation: e.Operation,
	}}
}

// CopyError converts such a failure to an error.
func CopyError(f *clusterpb.Failure) *state.CopyError {
	of := f.GetCopyRefusal()
	return &state.CopyError{
		Instance: of.GetInstance(), Execution: of.GetExecution(), EventID: of.GetEventId(), Reason: state.CopyReason(of.GetReason()), Operation: of.GetOperation(),
	}
}

// A RemoteError is an error of the leader: its sentinel, with the text that the leader sent.
type RemoteError struct {
	Message string
	Err     error
}

// Error implements error.
func (e *RemoteError) Error() string { return e.Message }

func (e *RemoteError) Unwrap() error { return e.Err }

// IsRetryable reports whether a failed call is retried.
func IsRetryable(f *clusterpb.Failure) bool {
	return f.Code == CodeNotLeader || f.Code == CodeUnknown || f.Code == CodeOtherLineage
}

// TrimPrefix returns an error text without its prefix, for use within another error text.
func TrimPrefix(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, errorPrefix), ": "+errorPrefix, ": ")
}

// DedupPrefix returns an error text with only the first occurrence of the prefix.
func DedupPrefix(text string) string {
	before, after, found := strings.Cut(text, errorPrefix)
	if !found {
		return text
	}
	return before + errorPrefix + TrimPrefix(after)
}

// errorPrefix begins the text of every outermost error.
const errorPrefix = "tenuto: "

// WithLastAttempt adds the failure of the last attempt to the error that ended a call. If the
// failure's text contains that error, the result does not repeat it.
func WithLastAttempt(err error, failure *clusterpb.Failure) error {
	last := failure.Message
	if failure.Code == CodeOtherLineage {
		return fmt.Errorf("%w; last attempt: %w", err, &RemoteError{Message: TrimPrefix(last), Err: journal.ErrOtherLineage})
	}
	if strings.Contains(last, err.Error()) {
		return &RemoteError{Message: TrimPrefix(last), Err: err}
	}
	return fmt.Errorf("%w; last attempt: %s", err, TrimPrefix(last))
}
