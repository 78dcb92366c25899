package cluster

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Errors of the client. With each of them nothing was recorded.
var (
	// ErrNotFound means that no instance has that ID.
	ErrNotFound = actors.ErrNotFound
	// ErrInstanceExists means that an instance with that ID exists, running or ended.
	ErrInstanceExists = actors.ErrInstanceExists
	// ErrEnded means that the instance has ended and accepts no more input.
	ErrEnded = actors.ErrEnded
	// ErrBusy means that the call was shed under overload; see [BusyError].
	ErrBusy = actors.ErrBusy
	// ErrRequestIDReused means that the request ID of a start, an event or an update was used
	// before for another one.
	ErrRequestIDReused = actors.ErrRequestIDReused
	// ErrStalled means that the instance is stalled or waits for code, so the result of the
	// activity is not recorded yet; see [CompleteActivity].
	ErrStalled = instances.ErrStalled
	// ErrNotStalled means that the instance is neither stalled nor waiting for code; see
	// [Client.Retry].
	ErrNotStalled = instances.ErrNotStalled
	// ErrClosed means that the node, or the client, was closed.
	ErrClosed = admission.ErrClosed
)

// A BusyError reports that a call was shed under overload, and nothing was done. Bound names the
// cause: for example, too many calls are in flight to the instance (which may have a tenth of the
// total), or commits take too long to accept a start. errors.Is finds [ErrBusy].
//
// Before it is returned, the call is retried for as long as the context allows; without a deadline,
// for Config.CallTimeout or DialConfig.CallTimeout. The backoff grows up to 2 s, plus or minus one
// half. Two calls are not retried: a start that has waited 2 s while more arrive than the leader
// accepts ([BoundQueue]), and a call in a context of [WithoutBusyRetries]. Its fields:
//
//	RetryAfter time.Duration // when a retry may succeed: 50 ms to 2 s
//	Bound      actors.Bound  // the exceeded bound; "" if a node of an earlier version sent it
//	Reason     string        // for people to read
type BusyError = actors.BusyError

// The bounds that a [BusyError] reports. The first four are bounds of the leader. BoundCalls bounds
// the calls in flight from a node or remote client to the leader. BoundQueue bounds the starts that
// wait on a node for the leader: while more arrive than it accepts, all but 128 wait at most 2 s.
// BoundAnswers bounds the long answers that a node sends concurrently.
const (
	BoundInstance = actors.BoundInstance
	BoundInFlight = actors.BoundInFlight
	BoundDelay    = actors.BoundDelay
	BoundJournal  = actors.BoundJournal
	BoundCalls    = admission.BoundCalls
	BoundQueue    = admission.BoundQueue
	BoundAnswers  = admission.BoundAnswers
)

// An UnavailableError reports that no leader answered in time, that no leader can determine the
// outcome, or that the result of an accepted update is not known yet (see [CallUpdate]). In the
// second case an earlier attempt may have been executed, but the instance was started anew since;
// the last attempt did nothing.
type UnavailableError struct {
	// NotExecuted means that nothing was done and nothing will be, for example because the context
	// had ended before the call. If false, the outcome is unknown: a retry with the same request ID
	// is safe as long as that ID is known; see [RequestID]. Queries and other reads have no
	// outcome.
	NotExecuted bool
	// Err is the error of the last attempt.
	Err error

	notCalled bool // the context had ended before the call
	read      bool // the call changes nothing, so it has no outcome
}

func (e *UnavailableError) Error() string {
	reason := "no answer, the outcome is unknown"
	switch {
	case e.notCalled:
		reason = "the context had ended before the call, nothing was done"
	case e.NotExecuted:
		reason = "no leader accepted the call, nothing was done"
	case e.read && errors.Is(e.Err, context.DeadlineExceeded):
		reason = "timed out waiting for the answer"
	case e.read && errors.Is(e.Err, context.Canceled):
		reason = "canceled while waiting for the answer"
	case e.read:
		reason = "no answer"
	}
	return "tenuto: " + reason + ": " + wire.TrimPrefix(e.Err.Error())
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// An InternalError reports a fault of the leader, or of the history of an instance; the leader's
// log has details. The outcome of the call is unknown.
type InternalError struct{ Message string }

func (e *InternalError) Error() string {
	return "tenuto: internal error: " + wire.TrimPrefix(e.Message)
}

// journalRetryAfter is when to retry after the queue of the journal was full.
const journalRetryAfter = 100 * time.Millisecond

// sentinels are the errors that callers distinguish, with their codes on the wire. An error that
// matches several gets the code of the first.
var sentinels = []struct {
	code string
	err  error
}{
	{wire.CodeNotFound, ErrNotFound},
	{"instance_exists", ErrInstanceExists},
	{"ended", ErrEnded},
	{wire.CodeBusy, ErrBusy},
	{"request_id", ErrRequestIDReused},
	{wire.CodeProtocol, ErrProtocol},
	{wire.CodeForgotten, actors.ErrForgotten},
	{"activity_closed", ErrActivityClosed},
	{"stalled", ErrStalled},
	{"operation_unknown", instances.ErrUnknownOperation},
	{"backup_in_progress", backup.ErrInProgress},
	{"backup_not_found", backup.ErrNotFound},
	{"backup_in_memory", backup.ErrInMemory},
	{"backup_missed", backup.ErrMissed},
	{"operation_closed", engine.ErrOperationClosed},
	{"operation_held", engine.ErrOperationHeld},
	{"not_backing_off", instances.ErrNotBackingOff},
	{"not_stalled", ErrNotStalled},
	{"not_authorized", ErrNotAuthorized},
	{"removed", ErrRemoved},
	{"member_exists", ErrMemberExists},
	{"not_member", ErrNotMember},
	{"other_directory", ErrOtherDirectory},
	{"directory_copied", ErrDirectoryCopied},
	{"node_alive", ErrNodeAlive},
	{"address_taken", ErrAddressTaken},
	{"membership_changing", ErrMembershipChanging},
	{"last_voter", ErrLastVoter},
	{"transfer_failed", journal.ErrTransferFailed},
	{"token_required", ErrTokenRequired},
	{"token_invalid", ErrTokenInvalid},
	{"token_expired", ErrTokenExpired},
	{"token_used", ErrTokenUsed},
	{"too_many_tokens", ErrTooManyTokens},
	{"settings_version", errSettingsVersion},
	{"partition_count", ErrPartitionCount},
	{"other_cluster", ErrOtherCluster},
	{wire.CodeOtherLineage, journal.ErrOtherLineage},
}

// A sizeError reports a payload of a request that exceeds the leader's Settings.PayloadMax. Its
// text is that of the InvalidError, which is all that earlier builds send and understand.
type sizeError struct {
	invalid *replay.InvalidError
	large   *replay.PayloadTooLargeError
}

func (e *sizeError) Error() string   { return e.invalid.Error() }
func (e *sizeError) Unwrap() []error { return []error{e.invalid, e.large} }

// invalidArgument returns the error for an argument of a call.
func invalidArgument(field, reason string) error {
	return &replay.InvalidError{Field: field, Reason: reason}
}

// invalidConfig returns the error for a field of [Config].
func invalidConfig(field, reason string) error { return invalidArgument("Config."+field, reason) }

func sentinelOf(code string) error {
	for _, known := range sentinels {
		if known.code == code {
			return known.err
		}
	}
	return nil
}

// toFailure converts an error to its wire form. If any part of it says that the outcome is unknown,
// the failure must not say that nothing was done.
func toFailure(err error) *clusterpb.Failure {
	if uncertain := unknownOutcomeFailure(err); uncertain != nil {
		return uncertain
	}
	var refused *replay.PayloadError
	if errors.As(err, &refused) && refused.Host().Refused {
		return wire.PayloadRefused(refused)
	}
	var busy *BusyError
	if errors.Is(err, journal.ErrBusy) {
		busy = &BusyError{RetryAfter: journalRetryAfter, Bound: actors.BoundJournal, Reason: err.Error()}
	}
	if busy != nil || errors.As(err, &busy) {
		return wire.Busy(busy)
	}
	var versions *VersionError
	if errors.As(err, &versions) {
		return &clusterpb.Failure{Code: wire.CodeProtocol, Message: err.Error(), NotExecuted: true, Versions: encodeVersionError(versions)}
	}
	for _, known := range sentinels {
		if errors.Is(err, known.err) {
			return &clusterpb.Failure{Code: known.code, Message: err.Error(), NotExecuted: true}
		}
	}
	switch {
	case instances.IsNotFound(err): // purged meanwhile
		return &clusterpb.Failure{Code: wire.CodeNotFound, Message: ErrNotFound.Error(), NotExecuted: true}
	case isLeadershipLost(err):
		return &clusterpb.Failure{Code: wire.CodeNotLeader, Message: err.Error(), NotExecuted: true}
	}
	var invalid *replay.InvalidError
	var notRegistered *replay.NotRegisteredError
	var wrongKind *instances.OperationKindError
	var token *replay.TokenError
	var notCopied *state.CopyError
	switch {
	case errors.As(err, &notCopied):
		return wire.CopyRefused(notCopied)
	case errors.As(err, &token):
		return wire.Token(token)
	case errors.As(err, &wrongKind):
		return &clusterpb.Failure{Code: wire.CodeOperationKind, Message: err.Error(), NotExecuted: true, OperationKind: &clusterpb.OperationKind{
			EventId: wrongKind.EventID, Found: wrongKind.Found, Permitted: wrongKind.Permitted,
		}}
	case errors.As(err, &invalid):
		return wire.Invalid(invalid, err)
	case errors.As(err, &notRegistered):
		return wire.NotRegistered(notRegistered, err.Error())
	}
	return &clusterpb.Failure{Code: wire.CodeInternal, Message: err.Error()}
}

// unknownOutcomeFailure returns the failure for an error after which a call may have been executed,
// nil for any other. It also converts an UnavailableError with NotExecuted.
func unknownOutcomeFailure(err error) *clusterpb.Failure {
	var unavailable *UnavailableError // this node itself called another leader
	switch {
	case errors.As(err, &unavailable):
		if unavailable.NotExecuted {
			return &clusterpb.Failure{Code: wire.CodeNotLeader, Message: err.Error(), NotExecuted: true}
		}
		return &clusterpb.Failure{Code: wire.CodeUnknown, Message: err.Error()}
	case errors.Is(err, actors.ErrForgotten):
		return &clusterpb.Failure{Code: wire.CodeForgotten, Message: err.Error()}
	case errors.Is(err, journal.ErrUnknownOutcome), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &clusterpb.Failure{Code: wire.CodeUnknown, Message: err.Error()}
	}
	return nil
}

// isLeadershipLost reports whether this node cannot answer, but another leader may.
func isLeadershipLost(err error) bool {
	return errors.Is(err, journal.ErrNotLeader) || errors.Is(err, actors.ErrStopped) || errors.Is(err, journal.ErrClosed) ||
		errors.As(err, new(*state.StaleEpochError)) || errors.As(err, new(*journal.NodeFailedError))
}

// isSuperseded reports whether an append was rejected, or has an unknown outcome, because this node
// has lost its leadership or its disk. The journal logs that once, not for each append.
func isSuperseded(err error) bool {
	return isLeadershipLost(err) || errors.Is(err, journal.ErrUnknownOutcome)
}

// fromFailure converts a failure that is not retried to an error.
func fromFailure(f *clusterpb.Failure) error {
	known, refused := sentinelOf(f.Code), wire.PayloadError(f)
	switch {
	case f.Code == wire.CodePayload && refused != nil:
		return refused
	case f.Code == wire.CodeInput:
		invalid := &replay.InvalidError{Field: cmp.Or(f.Field, "request"), Reason: f.Message}
		if large := wire.PayloadTooLarge(f); large != nil {
			return &sizeError{invalid, large}
		}
		return invalid
	case f.Code == wire.CodeNoCode:
		return wire.NotRegisteredError(f)
	case f.Code == wire.CodeBusy:
		return wire.BusyError(f)
	case f.Code == wire.CodeToken:
		return wire.TokenError(f)
	case f.Code == wire.CodeOperationKind:
		of := f.GetOperationKind()
		return &instances.OperationKindError{EventID: of.GetEventId(), Found: of.GetFound(), Permitted: of.GetPermitted()}
	case f.Code == wire.CodeCopyRefused:
		return wire.CopyError(f)
	case f.Code == wire.CodeProtocol && f.Versions != nil:
		return decodeVersionError(f.Versions)
	case known == nil:
		return &InternalError{f.Message}
	case f.Message == known.Error():
		return known
	}
	return &wire.RemoteError{Message: wire.DedupPrefix(f.Message), Err: known}
}

// callError converts the error of a call that was sent until it had an outcome.
func callError(err error) error {
	if err == nil {
		return nil
	}
	var unavailable *admission.UnavailableError
	var failed *admission.FailureError
	switch {
	case errors.As(err, &unavailable):
		return &UnavailableError{NotExecuted: unavailable.NotExecuted, Err: callError(unavailable.Err)}
	case errors.As(err, &failed):
		return fromFailure(failed.Failure)
	}
	return err
}
