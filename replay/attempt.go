package replay

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An Attempt is one run of an activity's body.
type Attempt struct {
	Name      string
	Input     *journalpb.Payload
	Instance  string
	Execution uint64
	EventID   uint64
	// Tells the run from every other run under the same instance ID, before or after a
	// purge; 0 for a run that began before the cluster spoke protocol 3.
	Incarnation uint64
	// 1 for the first. One that a node has lost track of is begun again under
	// its number.
	Number int
	// When the call was recorded, by the cluster time: see [Context.Now]. The clock of
	// the machine may differ from it by any amount.
	Scheduled time.Time
	// What the attempt before failed with; nil for the first.
	LastError error
	// When the attempt will be given up, by [StartToClose] or [ScheduleToClose];
	// zero if never. It is the deadline of its context, too, so that clients of
	// other services know of it, and by the clock of the machine that makes the attempt.
	Deadline time.Time

	// For those who run attempts: the details that an earlier attempt has
	// reported, nil for none, and what is told of a heartbeat; the payload is nil
	// if the details could not be encoded.
	Details *journalpb.Payload
	Beat    func(details *journalpb.Payload)

	payloads Payloads
	last     *lastDetails // set while the body runs, if there is a codec
}

// IdempotencyKey returns "instance/incarnation/execution/event_id": the same for
// every attempt of one call, and for no other call of the same cluster ever, also when the
// instance is purged and its ID is used again. The incarnation is left out if it is 0: of
// runs that began before protocol 3 one may have the key of an earlier one that was purged.
func (a *Attempt) IdempotencyKey() string { return a.Ref().Key() }

// Ref names the call that the attempt belongs to.
func (a *Attempt) Ref() *journalpb.OperationRef {
	return &journalpb.OperationRef{
		Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventId: a.EventID,
	}
}

// Every token begins with its version. One of version 1 has no incarnation.
const (
	tokenVersion1 = "t1."
	tokenVersion2 = "t2."
)

// Token returns the name under which this attempt can be completed from outside;
// see [ErrPending]. It is opaque, 1 to 300 bytes of A-Z a-z 0-9 . _ -, and no
// secret: whoever may call the cluster and knows the instance can make one.
func (a *Attempt) Token() string {
	version, text := tokenVersion1, fmt.Sprintf("%d/%d/%d/%s", a.Execution, a.EventID, a.Number, a.Instance)
	if a.Incarnation != 0 {
		version, text = tokenVersion2, fmt.Sprintf("%d/%s", a.Incarnation, text)
	}
	return version + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// A TokenError reports text that is no token of [Attempt.Token].
type TokenError struct{ Token string }

func (e *TokenError) Error() string {
	return fmt.Sprintf("tenuto: %q is no token of an attempt", e.Token)
}

// ParseToken returns the attempt that a token names: its Instance, Incarnation,
// Execution, EventID and Number. The error is a [*TokenError].
func ParseToken(token string) (*Attempt, error) {
	for _, version := range []string{tokenVersion1, tokenVersion2} {
		if encoded, ok := strings.CutPrefix(token, version); ok {
			if attempt := parseToken(encoded, version == tokenVersion2); attempt != nil {
				return attempt, nil
			}
		}
	}
	return nil, &TokenError{Token: cut(token)}
}

// parseToken returns the attempt that a token names behind its version, nil if it
// names none.
func parseToken(encoded string, hasIncarnation bool) *Attempt {
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil
	}
	attempt := new(Attempt)
	var number uint64
	fields := []*uint64{&attempt.Execution, &attempt.EventID, &number}
	if hasIncarnation {
		fields = append([]*uint64{&attempt.Incarnation}, fields...)
	}
	rest := string(text)
	for _, field := range fields {
		digits, behind, _ := strings.Cut(rest, "/")
		if *field, err = strconv.ParseUint(digits, 10, 64); err != nil || *field == 0 {
			return nil
		}
		rest = behind
	}
	if rest == "" || !utf8.ValidString(rest) || number > math.MaxInt32 {
		return nil
	}
	attempt.Number, attempt.Instance = int(number), rest
	return attempt
}

// The causes (see [context.Cause]) with which the context of an activity's body
// ends, besides a [*TimeoutError].
var (
	// ErrGivenUp: the result is not wanted any more. The orchestration has given
	// the activity up or has ended, or the attempt was completed from outside.
	ErrGivenUp = errors.New("tenuto: the activity was given up")
	// ErrNodeStopping: the node stops or does not lead any more. Nobody has given
	// the activity up: it is run again, as the same attempt, wherever the lead is
	// taken next.
	ErrNodeStopping = errors.New("tenuto: the node is stopping")
)

// ErrPending is returned by the body of an activity whose end comes from outside:
// from a person, a callback, another system. The body passes [Attempt.Token] on
// to where the end will come from and returns; no place is occupied while the
// attempt is pending. It ends when somebody calls CompleteActivity or
// FailActivity of package cluster with the token, on any node, or when one of the
// call's limits of time has passed. The token may be used before the body has
// returned.
//
// That the attempt is pending is recorded; from then on no new leader begins it
// again. If the node dies between the return of the body and that record, it is
// begun again, under the same number, hence with the same token.
var ErrPending = errors.New("tenuto: the activity is completed from outside")

type attemptKey struct{}

// ActivityInfo returns the attempt that the context of an activity's body
// belongs to, nil for any other context. It must not be changed.
func ActivityInfo(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(attemptKey{}).(*Attempt)
	return attempt
}

// attemptContext is a context that knows the attempt, and has its deadline by the local
// clock. The leader ends it, by the cluster time.
type attemptContext struct {
	context.Context
	attempt *Attempt
}

func (c attemptContext) Deadline() (time.Time, bool) {
	return c.attempt.Deadline, !c.attempt.Deadline.IsZero()
}

func (c attemptContext) Value(key any) any {
	if key == (attemptKey{}) {
		return c.attempt
	}
	return c.Context.Value(key)
}

// Run runs the body of an activity once. A panic, or a call of runtime.Goexit,
// in it becomes a [*PanicError]; in the second case Run does not return, and
// done is called as the goroutine unwinds. done is called exactly once. Input,
// output and details are encoded as [Registry.Payloads] says, and with a codec
// so is the error: see [DecodeError].
func (r *Registry) Run(ctx context.Context, attempt *Attempt, done func(*journalpb.Payload, error)) {
	body, ok := r.activities[attempt.Name]
	if !ok {
		done(nil, &NoCodeError{Activity: true, Name: attempt.Name})
		return
	}
	var output *journalpb.Payload
	var err error
	returned := false
	defer func() {
		if value := recover(); !returned {
			output, err = nil, r.payloads.sealed((&crash{value: value, stack: string(debug.Stack())}).error())
		}
		done(output, err)
	}()
	attempt.payloads = r.payloads
	if r.payloads.Codec != nil {
		attempt.last = new(lastDetails)
	}
	if last, ok := attempt.LastError.(*Error); ok && last.sealed != nil {
		attempt.LastError = r.payloads.DecodeError(last.sealed)
	}
	output, err = body.run(attemptContext{ctx, attempt}, r.payloads, attempt.Input)
	err = r.payloads.sealed(err)
	returned = true
}
