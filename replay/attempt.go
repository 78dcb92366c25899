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

// An Attempt is one try of an activity: one call of its body.
type Attempt struct {
	Name      string
	Input     *journalpb.Payload
	Instance  string
	Execution uint64
	EventID   uint64
	// Incarnation distinguishes instances that used the same ID, before and after a purge. It is 0
	// for an instance that began before protocol 3.
	Incarnation uint64
	// Number is 1 for the first attempt. If the node of an attempt dies, the attempt is started
	// again with the same number.
	Number int
	// ScheduledTime is the cluster time at which the call was recorded; see [Context.Now]. The
	// machine's clock may differ from it by any amount.
	ScheduledTime time.Time
	// LastError is the error of the previous attempt, nil for the first.
	LastError error
	// Deadline is when the attempt times out by [StartToClose] or [ScheduleToClose], by the clock
	// of the machine that runs the attempt; zero if never. It is also the deadline of the attempt's
	// context, so that clients of other services use it.
	Deadline time.Time

	// The engine sets these fields. Details holds what an earlier attempt reported, nil if none.
	// RecordHeartbeat is called on each heartbeat; its details are nil if they could not be
	// encoded.
	Details         *journalpb.Payload
	RecordHeartbeat func(details *journalpb.Payload)

	payloads      PayloadConverter
	lastHeartbeat *lastDetails // set while the body runs, if there is a codec
}

// IdempotencyKey returns "instance/incarnation/execution/event_id". It is the same for every
// attempt of one call, and differs from that of any other call in the cluster, also when the
// instance is purged and its ID reused. The incarnation is omitted if it is 0: an instance that
// began before protocol 3 may share keys with a purged instance of the same ID.
func (a *Attempt) IdempotencyKey() string { return a.Ref().Key() }

// Ref identifies the call that the attempt belongs to.
func (a *Attempt) Ref() *journalpb.OperationRef {
	return &journalpb.OperationRef{
		Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventId: a.EventID,
	}
}

// Prefixes of tokens, by version. Version 1 has no incarnation.
const (
	tokenVersion1 = "t1."
	tokenVersion2 = "t2."
)

// Token returns the token with which this attempt can be completed from outside; see
// [ErrResultPending]. It is opaque, 1 to 300 bytes of A-Z a-z 0-9 . _ -. It is not a secret: anyone
// who may call the cluster and knows the instance can construct it.
func (a *Attempt) Token() string {
	version, text := tokenVersion1, fmt.Sprintf("%d/%d/%d/%s", a.Execution, a.EventID, a.Number, a.Instance)
	if a.Incarnation != 0 {
		version, text = tokenVersion2, fmt.Sprintf("%d/%s", a.Incarnation, text)
	}
	return version + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// A TokenError reports text that is not a token of [Attempt.Token].
type TokenError struct{ Token string }

func (e *TokenError) Error() string {
	return fmt.Sprintf("tenuto: %q is not an attempt token", e.Token)
}

// ParseToken returns the attempt that a token names. Only Instance, Incarnation, Execution, EventID
// and Number are set. The error is a [*TokenError].
func ParseToken(token string) (*Attempt, error) {
	for _, version := range []string{tokenVersion1, tokenVersion2} {
		if encoded, ok := strings.CutPrefix(token, version); ok {
			if attempt := parseToken(encoded, version == tokenVersion2); attempt != nil {
				return attempt, nil
			}
		}
	}
	return nil, &TokenError{Token: truncate(token)}
}

// parseToken parses a token after its version prefix. It returns nil if the token is invalid.
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
		digits, tail, _ := strings.Cut(rest, "/")
		if *field, err = strconv.ParseUint(digits, 10, 64); err != nil || *field == 0 {
			return nil
		}
		rest = tail
	}
	if rest == "" || !utf8.ValidString(rest) || number > math.MaxInt32 {
		return nil
	}
	attempt.Number, attempt.Instance = int(number), rest
	return attempt
}

// The causes (see [context.Cause]) with which the context of an activity's body ends, besides a
// [*TimeoutError].
var (
	// ErrActivityCanceled reports that the result is no longer wanted: the orchestration canceled
	// the activity or has ended, or the attempt was completed from outside.
	ErrActivityCanceled = errors.New("tenuto: the activity was canceled")
	// ErrNodeStopping reports that the node is stopping or has lost leadership. The activity is not
	// canceled: the next leader runs the same attempt again.
	ErrNodeStopping = errors.New("tenuto: the node is stopping")
)

// ErrResultPending is returned by the body of an activity that is completed from outside: by a
// person, a callback, another system. The body passes [Attempt.Token] to that party and returns. A
// pending attempt occupies no slot. It ends when CompleteActivity or FailActivity of package
// cluster is called with the token, on any node, or when one of the call's timeouts has passed. The
// token may be used before the body has returned.
//
// The pending state is recorded; after that no new leader starts the attempt again. If the node
// dies between the body's return and that record, the attempt is started again with the same number
// and token.
var ErrResultPending = errors.New("tenuto: the activity is completed from outside")

type attemptKey struct{}

// ActivityInfo returns the attempt to which the context of an activity's body belongs, nil for any
// other context. The caller must not change it.
func ActivityInfo(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(attemptKey{}).(*Attempt)
	return attempt
}

// attemptContext holds the attempt and reports its deadline by the local clock. The leader cancels
// the context by cluster time.
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

// RunActivity runs the body of an activity once and calls done exactly once. A panic or
// runtime.Goexit in the body becomes a [*PanicError]. After runtime.Goexit, RunActivity does not
// return, and done is called as the goroutine unwinds. Input, output and details are converted by
// [Registry.PayloadConverter]. With a codec the error is encoded too: see [DecodeError].
func (r *Registry) RunActivity(ctx context.Context, attempt *Attempt, done func(*journalpb.Payload, error)) {
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
			output, err = nil, r.payloads.sealUserError((&crash{value: value, stack: string(debug.Stack())}).error())
		}
		done(output, err)
	}()
	attempt.payloads = r.payloads
	if r.payloads.Codec != nil {
		attempt.lastHeartbeat = new(lastDetails)
	}
	if last, ok := attempt.LastError.(*Error); ok && last.sealed != nil {
		attempt.LastError = r.payloads.DecodeError(last.sealed)
	}
	output, err = body.run(attemptContext{ctx, attempt}, r.payloads, attempt.Input)
	err = r.payloads.sealUserError(err)
	returned = true
}
