package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Errors of the client. With each of them nothing was recorded.
var (
	// ErrNotFound: there is no instance of that ID.
	ErrNotFound = actors.ErrNotFound
	// ErrInstanceExists: an instance of that ID exists, running or ended.
	ErrInstanceExists = actors.ErrInstanceExists
	// ErrEnded: the instance has come to its end and takes no more input.
	ErrEnded = actors.ErrEnded
	// ErrBusy: there is more to do than can be done in time; see [BusyError].
	ErrBusy = actors.ErrBusy
	// ErrRequestID: the request ID of an event or an update was used for something else.
	ErrRequestID = actors.ErrRequestID
	// ErrNoCode: no code is bound for the orchestration.
	ErrNoCode = errors.New("tenuto: no code for the orchestration on the leading node")
	// ErrStalled: the instance is stalled, or waits for code. The result of the
	// activity is not recorded, and will be at most when the instance goes on;
	// see [CompleteActivity].
	ErrStalled = errors.New("tenuto: the instance is stalled and records nothing")
	// ErrNotStalled: the instance is not stalled, and does not wait for code; see [Client.Retry].
	ErrNotStalled = errors.New("tenuto: the instance is not stalled")
	// ErrClosed: the node was stopped.
	ErrClosed = errors.New("tenuto: the node is stopped")
)

// A BusyError reports that a call was refused because too much is on its way
// already: to its instance, which gets a tenth of all, or as a whole; or, for a
// start, because what is there takes too long. The call has been repeated already,
// with growing pauses of up to 2 s, give or take a half, as long as its context
// allows; without a deadline, for Config.CallTimeout or DialConfig.CallTimeout. Not so
// a start that has waited for 2 s while more came than the leader takes ([BoundLine]),
// nor anything in a context of [WithoutBusyRepeats].
// Nothing was done. errors.Is finds [ErrBusy]. Its fields:
//
//	RetryAfter time.Duration // after how long it may be of use to try again: 50 ms to 2 s
//	Bound      BusyBound     // which bound was met; "" if a node of an earlier version does not say
//	Reason     string        // for people to read
type BusyError = actors.BusyError

// A BusyBound is one that a [BusyError] has met.
type BusyBound = actors.Bound

// The bounds of what a leader takes, of the calls that a node, or a remote client, has on
// their way to it, and of the starts that wait in line on a node until the leader takes
// more: while more come than are taken, all but 128 wait for 2 s at most; and of the long
// answers that a node sends at once over the network.
const (
	BoundInstance = actors.BoundInstance
	BoundWindow   = actors.BoundWindow
	BoundDelay    = actors.BoundDelay
	BoundJournal  = actors.BoundJournal
	BoundCalls    = BusyBound("calls")
	BoundLine     = BusyBound("line")
	BoundAnswers  = BusyBound("answers")
)

// An UnavailableError reports that no leader gave an answer in time; or that an earlier
// attempt of the call may have been carried out, and a leader cannot tell any more: the
// instance was started anew since the call began. The outcome is unknown then, too, and
// nothing was done by the last attempt. Or it reports that an update was accepted, and
// that its result is not known yet; see [CallUpdate].
type UnavailableError struct {
	// Nothing was done and nothing will be. When false, the outcome is
	// unknown: a repetition with the same request ID is safe for as long as that is
	// known; see [EventID].
	NotExecuted bool
	// What the last attempt met.
	Err error
}

func (e *UnavailableError) Error() string {
	if e.NotExecuted {
		return "tenuto: no leader took the call, nothing was done: " + unprefixed(e.Err.Error())
	}
	return "tenuto: no answer, the outcome is unknown: " + unprefixed(e.Err.Error())
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// unprefixed returns the text of an error as a part of another one's, which says by itself
// whose it is.
func unprefixed(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, prefix), ": "+prefix, ": ")
}

// saidOnce returns the text of an error with the prefix where it comes first, and nowhere else.
func saidOnce(text string) string {
	before, after, found := strings.Cut(text, prefix)
	if !found {
		return text
	}
	return before + prefix + unprefixed(after)
}

// prefix is how the texts of errors begin that are no part of others.
const prefix = "tenuto: "

// An InputError reports an argument that cannot be used. Nothing was done.
type InputError struct {
	Field  string
	Reason string
}

func (e *InputError) Error() string { return fmt.Sprintf("tenuto: %s %s", e.Field, e.Reason) }

// A GroupsError reports that Config.Dir is of a cluster with another number of groups
// than Config.Groups says. Its fields:
//
//	Dir  string
//	Want int // Config.Groups
//	Have int // the number of groups with which the cluster was founded
type GroupsError = journal.GroupsError

// An InternalError reports that the leading node could not carry a call out
// because of a fault of its own, or of an instance's history; its log says more.
// The outcome is unknown.
type InternalError struct{ Message string }

func (e *InternalError) Error() string { return "tenuto: internal error: " + unprefixed(e.Message) }

// The codes of failures between nodes. A code that is not known is an internal
// error.
const (
	codeNotLeader = "not_leader"
	codeUnknown   = "unknown_outcome"
	codeInternal  = "internal"
	codeNotFound  = "not_found"
	codeInput     = "input"
	codeBusy      = "busy"
	codeProtocol  = "protocol"
	codeForgotten = "forgotten"
)

// journalBusyPause is after how long to try again when the journal's queue is
// full.
const journalBusyPause = 100 * time.Millisecond

// sentinels are the errors that callers tell apart, with the codes under which they travel.
// An error that is several of them is the first.
var sentinels = []struct {
	code string
	err  error
}{
	{codeNotFound, ErrNotFound},
	{"instance_exists", ErrInstanceExists},
	{"ended", ErrEnded},
	{codeBusy, ErrBusy},
	{"no_code", ErrNoCode},
	{"request_id", ErrRequestID},
	{codeProtocol, ErrProtocol},
	{codeForgotten, actors.ErrForgotten},
	{"activity_closed", ErrActivityClosed},
	{"stalled", ErrStalled},
	{"not_stalled", ErrNotStalled},
	{"not_authorized", ErrNotAuthorized},
	{"removed", ErrRemoved},
	{"member", ErrMember},
	{"not_member", ErrNotMember},
	{"other_directory", ErrOtherDirectory},
	{"copied", ErrCopied},
	{"answers", ErrAnswers},
	{"address_taken", ErrAddressTaken},
	{"changing", ErrChanging},
	{"alone", ErrAlone},
	{"token_required", ErrTokenRequired},
	{"token_invalid", ErrTokenInvalid},
	{"token_expired", ErrTokenExpired},
	{"token_used", ErrTokenUsed},
	{"tokens", ErrTokens},
	{"groups", ErrGroups},
	{"other_cluster", ErrOtherCluster},
}

// sentinelOf returns the error that a code stands for, nil for a code that is not known.
func sentinelOf(code string) error {
	for _, known := range sentinels {
		if known.code == code {
			return known.err
		}
	}
	return nil
}

// failure turns an error of the leader's into what goes over the wire. An error of which
// any part says that the outcome is unknown never says that nothing was done.
func failure(err error) *clusterpb.Failure {
	if uncertain := outcomeUnknown(err); uncertain != nil {
		return uncertain
	}
	var busy *BusyError
	if errors.Is(err, journal.ErrBusy) {
		busy = &BusyError{RetryAfter: journalBusyPause, Bound: actors.BoundJournal, Reason: err.Error()}
	}
	if busy != nil || errors.As(err, &busy) {
		return &clusterpb.Failure{Code: codeBusy, Message: busy.Reason, NotExecuted: true, RetryAfter: int64(busy.RetryAfter), Bound: string(busy.Bound)}
	}
	var versions *VersionError
	if errors.As(err, &versions) {
		return &clusterpb.Failure{Code: codeProtocol, Message: err.Error(), NotExecuted: true, Versions: mismatch(versions)}
	}
	for _, known := range sentinels {
		if errors.Is(err, known.err) {
			return &clusterpb.Failure{Code: known.code, Message: err.Error(), NotExecuted: true}
		}
	}
	switch {
	case isNotFound(err): // purged meanwhile
		return &clusterpb.Failure{Code: codeNotFound, Message: ErrNotFound.Error(), NotExecuted: true}
	case meansAnotherLeads(err):
		return &clusterpb.Failure{Code: codeNotLeader, Message: err.Error(), NotExecuted: true}
	}
	var input *InputError
	if errors.As(err, &input) {
		return &clusterpb.Failure{Code: codeInput, Field: input.Field, Message: input.Reason, NotExecuted: true}
	}
	return &clusterpb.Failure{Code: codeInternal, Message: err.Error()}
}

// outcomeUnknown returns the failure for an error after which a call may have been carried
// out, nil for any other.
func outcomeUnknown(err error) *clusterpb.Failure {
	var unavailable *UnavailableError // of a call for which this node has needed a leader
	switch {
	case errors.As(err, &unavailable):
		if unavailable.NotExecuted {
			return &clusterpb.Failure{Code: codeNotLeader, Message: err.Error(), NotExecuted: true}
		}
		return &clusterpb.Failure{Code: codeUnknown, Message: err.Error()}
	case errors.Is(err, actors.ErrForgotten):
		return &clusterpb.Failure{Code: codeForgotten, Message: err.Error()}
	case errors.Is(err, journal.ErrUnknownOutcome), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &clusterpb.Failure{Code: codeUnknown, Message: err.Error()}
	}
	return nil
}

// meansAnotherLeads reports whether this node cannot answer, and the leader may.
func meansAnotherLeads(err error) bool {
	return errors.Is(err, journal.ErrNotLeader) || errors.Is(err, actors.ErrStopped) || errors.Is(err, journal.ErrClosed) ||
		errors.As(err, new(*state.StaleEpochError)) || errors.As(err, new(*journal.FencedError))
}

// A remoteError is an error of the leader's: known by its sentinel, with the
// leader's own words.
type remoteError struct {
	message string
	err     error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.err }

// repeatable tells whether a failed call is to be tried again.
func repeatable(f *clusterpb.Failure) bool {
	return f.Code == codeNotLeader || f.Code == codeUnknown
}

// failed turns a failure that is not repeatable into an error.
func failed(f *clusterpb.Failure) error {
	known := sentinelOf(f.Code)
	switch {
	case f.Code == codeInput:
		return &InputError{cmp.Or(f.Field, "request"), f.Message}
	case f.Code == codeBusy:
		return &BusyError{RetryAfter: time.Duration(f.RetryAfter), Bound: actors.Bound(f.Bound), Reason: f.Message}
	case f.Code == codeProtocol && f.Versions != nil:
		return readMismatch(f.Versions)
	case known == nil:
		return &InternalError{f.Message}
	case f.Message == known.Error():
		return known
	}
	return &remoteError{message: saidOnce(f.Message), err: known}
}
