package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An Attempt is one try of an activity: one call of its body.
type Attempt struct {
	Name      string
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
}

// IdempotencyKey returns "instance/incarnation/execution/event_id". It is the same for every
// attempt of one call, and differs from that of any other call in the cluster, also when the
// instance is purged and its ID reused. The incarnation is omitted if it is 0: an instance that
// began before protocol 3 may share keys with a purged instance of the same ID.
func (a *Attempt) IdempotencyKey() string { return a.token().OperationKey() }

// Token returns the plain token with which this attempt can be completed from outside; see
// [ErrResultPending]. It is opaque, 1 to 300 bytes of A-Z a-z 0-9 . _ -, and does not expire. It is
// forgeable: anyone who knows the instance can construct it. So it is for operators and trusted
// services, which may call the cluster anyway. Third parties get a [Attempt.SignedToken].
func (a *Attempt) Token() string { return a.token().String() }

// SignedToken returns a token for third parties, with which this attempt can be completed from
// outside: only the cluster can make it, and it expires after lifetime, 1 s to 30 days, by cluster
// time. It is a secret: anyone who has it can end this attempt, and after the end can ask whether a
// value equals the recorded result. It is opaque, 1 to 400 bytes of A-Z a-z 0-9 . _ -, and differs
// from call to call. Earlier ones stay valid.
//
// ctx is the context of the activity's body, or one derived from it. It bounds the wait for the key
// of the cluster, which every node has soon after the cluster was founded. Concurrent calls are
// allowed.
//
// Errors: [*InvalidError] for the lifetime, and for a context of no activity or of another attempt.
// While a member does not speak protocol 4, cluster.ErrProtocol; otherwise ctx's, or
// cluster.ErrClosed.
func (a *Attempt) SignedToken(ctx context.Context, lifetime time.Duration) (string, error) {
	signer, err := a.signer(ctx, lifetime)
	if err != nil {
		return "", err
	}
	token, err := signer.SignToken(ctx, a.token(), lifetime)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return token, nil
}

// CompletionURL returns a URL with a [Attempt.SignedToken]: a POST to it with a JSON value
// completes the attempt. It is cluster.Config.CompletionURL, "/complete/" and the token; package
// replaytest uses https://replaytest.invalid. With "/fail/" in place of "/complete/" it fails the
// attempt. See cluster.Node.CompletionHandler.
//
// Errors: those of SignedToken, and [*InvalidError] if cluster.Config.CompletionURL is empty.
func (a *Attempt) CompletionURL(ctx context.Context, lifetime time.Duration) (string, error) {
	signer, err := a.signer(ctx, lifetime)
	if err != nil {
		return "", err
	}
	base := signer.CompletionURL()
	if base == "" {
		return "", &InvalidError{Field: "Config.CompletionURL", Reason: "is empty: set where the application serves Node.CompletionHandler"}
	}
	token, err := a.SignedToken(ctx, lifetime)
	if err != nil {
		return "", err
	}
	return base + "/complete/" + token, nil
}

// signer returns what signs the tokens of this attempt.
func (a *Attempt) signer(ctx context.Context, lifetime time.Duration) (host.TokenSigner, error) {
	if lifetime < host.SignedTokenLifetimeMin || lifetime > host.SignedTokenLifetimeMax {
		return nil, &InvalidError{Field: "lifetime", Reason: fmt.Sprintf("is %v: %v to %v are allowed",
			lifetime, host.SignedTokenLifetimeMin, host.SignedTokenLifetimeMax)}
	}
	signer, ok := ctx.Value(host.TokenSignerKey{}).(host.TokenSigner)
	switch attempt := ActivityInfo(ctx); {
	case !ok || attempt == nil:
		return nil, &InvalidError{Field: "context", Reason: "is not that of an activity's body"}
	case attempt.token() != a.token():
		return nil, &InvalidError{Field: "context", Reason: "belongs to another attempt"}
	}
	return signer, nil
}

func (a *Attempt) token() host.Token {
	return host.Token{
		Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventID: a.EventID, Number: a.Number,
	}
}

// A TokenError reports text that is neither a token of [Attempt.Token] nor one of
// [Attempt.SignedToken]. A signed token that was changed, or that another cluster has signed, is
// none.
type TokenError struct {
	// Token is the text, shortened. If the text may contain a signed token, it is left out.
	Token string
	// Reason is why a signed token is not valid; "" for other text.
	Reason string
}

func (e *TokenError) Error() string {
	if e.Reason != "" {
		return "tenuto: the signed token " + e.Reason
	}
	return fmt.Sprintf("tenuto: %q is not an attempt token", e.Token)
}

// The causes (see [context.Cause]) with which the context of an activity's body ends, besides a
// [*TimeoutError].
var (
	// ErrActivityCanceled reports that the result is no longer wanted: the orchestration canceled
	// the activity or has ended, or the attempt was completed from outside.
	ErrActivityCanceled = errors.New("tenuto: the activity was canceled")
	// ErrNodeStopping reports that the node is stopping. The activity is not canceled: the same
	// attempt runs again on another node, or on this one after a restart.
	ErrNodeStopping = errors.New("tenuto: the node is stopping")
)

// ErrResultPending is returned by the body of an activity that is completed from outside: by a
// person, a callback, another system. The body passes [Attempt.SignedToken] or, to a trusted party,
// [Attempt.Token] to that party and returns. A pending attempt occupies no slot. It ends when
// CompleteActivity or FailActivity of package cluster is called with the token, on any node, or
// when one of the call's timeouts has passed. The token may be used before the body has returned.
//
// The pending state is recorded; after that no new leader starts the attempt again. If the node
// dies between the body's return and that record, the attempt is started again with the same number
// and token.
var ErrResultPending = errors.New("tenuto: the activity is completed from outside")

// ActivityInfo returns the attempt to which the context of an activity's body belongs, nil for any
// other context. The caller must not change it.
func ActivityInfo(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(host.AttemptKey{}).(*Attempt)
	return attempt
}

// Heartbeat reports that the activity attempt of ctx is alive, and its progress. The next attempt,
// on any node, reads the details with [HeartbeatDetails]; operators see them too.
//
// It may be called as often as needed. Details are recorded only when they have changed, and at
// most once a second, or once in a third of the call's [HeartbeatTimeout] if that is longer. If the
// node dies, the latest details may be lost. If only the attempt fails, no details are lost.
//
// Heartbeat returns the cause with which the context has ended; the body should then return. It
// returns a [*PayloadError] or a [*CodecError] if details cannot be encoded; the attempt still
// counts as alive. Outside an activity, such as in a test of its body, it does nothing.
func Heartbeat[T any](ctx context.Context, details T) error {
	heartbeats, ok := ctx.Value(host.HeartbeatKey{}).(host.Heartbeats)
	if !ok {
		return context.Cause(ctx)
	}
	err := heartbeats.Heartbeat(details)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// HeartbeatDetails returns the details that an earlier attempt of the same call reported last. It
// returns false if there are none or they do not decode as a T.
func HeartbeatDetails[T any](ctx context.Context) (T, bool) {
	var details, zero T
	heartbeats, ok := ctx.Value(host.HeartbeatKey{}).(host.Heartbeats)
	if !ok || !heartbeats.HeartbeatDetails(&details) {
		return zero, false
	}
	return details, true
}
