package engine

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// An Attempt is an attempt of an activity with what the engine needs to run it. It is the
// [host.Heartbeats] of its body.
type Attempt struct {
	replay.Attempt
	Input *journalpb.Payload
	// Headers are those of the call.
	Headers []*journalpb.Header
	// Details holds what an earlier attempt reported, nil if none.
	Details *journalpb.Payload
	// Worker takes the heartbeats. Without it, they have no effect.
	Worker HeartbeatRecorder

	context       attemptContext
	headers       host.Headers // nil if there are none
	payloads      *PayloadConverter
	lastHeartbeat *lastDetails // set while the body runs, if there is a codec
}

// A HeartbeatRecorder takes the heartbeats of an attempt; details are nil if they could not be
// encoded.
type HeartbeatRecorder interface {
	RecordHeartbeat(details *journalpb.Payload)
}

// ParseToken returns the attempt that a token of [replay.Attempt.Token] names. Only Instance,
// Incarnation, Execution, EventID and Number are set. The error is a [*replay.TokenError].
func ParseToken(token string) (*replay.Attempt, error) {
	t, ok := host.ParseToken(token)
	switch {
	case ok:
		return attemptOf(t), nil
	case strings.Contains(token, host.SignedTokenPrefix): // for example in quotes
		return nil, newSignedTokenError("is damaged or incomplete")
	}
	return nil, &replay.TokenError{Token: truncate(token)}
}

func attemptOf(t host.Token) *replay.Attempt {
	return &replay.Attempt{
		Instance: t.Instance, Incarnation: t.Incarnation, Execution: t.Execution, EventID: t.EventID, Number: t.Number,
	}
}

// newSignedTokenError returns the error for text that may contain a signed token. It does not
// contain the text: errors are logged, and a signed token is secret.
func newSignedTokenError(reason string) *replay.TokenError {
	return &replay.TokenError{Token: host.SignedTokenPrefix + "…", Reason: reason}
}

// ErrTokenExpired means that a join token or a signed token has expired.
var ErrTokenExpired = errors.New("tenuto: the token has expired")

// IsSignedToken reports whether text has the form of a signed token: if it is a token, then a
// signed one.
func IsSignedToken(text string) bool { return strings.HasPrefix(text, host.SignedTokenPrefix) }

// SignedTokenMax bounds a signed token, in bytes.
const SignedTokenMax = host.SignedTokenMax

// Bounds of the lifetime of a signed token.
const (
	SignedTokenLifetimeMin = host.SignedTokenLifetimeMin
	SignedTokenLifetimeMax = host.SignedTokenLifetimeMax
)

// UnverifiedInstance returns the instance that a signed token names, to find its leader. Anyone can
// have written it: only [TokenSigner.Verify] says that the token was signed. The error is a
// [*replay.TokenError].
func UnverifiedInstance(token string) (string, error) {
	instance, ok := host.UnverifiedInstance(token)
	if !ok || !ValidInstanceID(instance) {
		return "", newSignedTokenError("is damaged or incomplete")
	}
	return instance, nil
}

// A TokenSigner signs tokens of attempts and verifies them. It is safe for concurrent use if its
// functions are.
type TokenSigner struct {
	// Cluster is the ID of the cluster. A token is valid in that cluster only.
	Cluster string
	// Lineages returns the IDs of the lineages that the cluster continues, oldest first. The last
	// one signs, each of them is accepted, and so is a token from before the first. It may be nil:
	// none.
	Lineages func() []string
	// CheckEarlier returns an error for a token that an earlier lineage has signed, "" for the
	// first, if it is for an activity of a later one. Required with Lineages.
	CheckEarlier func(a *replay.Attempt, lineage string) error
	// URL is the URL at which the application serves completions, without a slash at its end; "" if
	// it serves none.
	URL string
	// Key returns the completion key of the cluster. It may wait for the key until ctx ends.
	Key func(ctx context.Context) ([]byte, error)
	// Now returns the time by which the tokens of an instance expire. It may wait until ctx ends.
	Now func(ctx context.Context, instance string) (time.Time, error)
}

// WithContext returns a context for [Registry.RunActivity] whose bodies can sign tokens.
func (s *TokenSigner) WithContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, host.TokenSignerKey{}, s)
}

// CompletionURL implements [host.TokenSigner].
func (s *TokenSigner) CompletionURL() string { return s.URL }

// SignToken implements [host.TokenSigner].
func (s *TokenSigner) SignToken(ctx context.Context, t host.Token, lifetime time.Duration) (string, error) {
	secret, err := s.Key(ctx)
	if err != nil {
		return "", err
	}
	now, err := s.Now(ctx, t.Instance)
	if err != nil {
		return "", err
	}
	lineages := s.lineages()
	return s.key(secret, lineages[len(lineages)-1]).Sign(t, now.Add(lifetime)), nil
}

// Sign returns a signed token of an attempt. The caller bounds the lifetime.
func (s *TokenSigner) Sign(ctx context.Context, a *replay.Attempt, lifetime time.Duration) (string, error) {
	return s.SignToken(ctx, host.Token{
		Instance: a.Instance, Incarnation: a.Incarnation, Execution: a.Execution, EventID: a.EventID, Number: a.Number,
	}, lifetime)
}

// A RemoteSigner has the tokens of attempts signed by the cluster, for a process without its key.
type RemoteSigner struct {
	URL string // as in TokenSigner
	// Request returns a signed token. Of the attempt, what [ParseToken] sets is set.
	Request func(ctx context.Context, a *replay.Attempt, lifetime time.Duration) (string, error)
}

// WithContext returns a context for [Registry.RunActivity] whose bodies can sign tokens.
func (s *RemoteSigner) WithContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, host.TokenSignerKey{}, s)
}

// CompletionURL implements [host.TokenSigner].
func (s *RemoteSigner) CompletionURL() string { return s.URL }

// SignToken implements [host.TokenSigner].
func (s *RemoteSigner) SignToken(ctx context.Context, t host.Token, lifetime time.Duration) (string, error) {
	return s.Request(ctx, attemptOf(t), lifetime)
}

// lineages returns the lineages, beginning with "" for the time before the first.
func (s *TokenSigner) lineages() []string {
	lineages := []string{""}
	if s.Lineages != nil {
		lineages = append(lineages, s.Lineages()...)
	}
	return lineages
}

// key returns the key for a lineage. No ID of a cluster contains the separator.
func (s *TokenSigner) key(secret []byte, lineage string) host.CompletionKey {
	if lineage == "" {
		return host.CompletionKey{Cluster: s.Cluster, Secret: secret}
	}
	return host.CompletionKey{Cluster: s.Cluster + "/" + lineage, Secret: secret}
}

// Verify returns the attempt that a signed token names; set are the fields that [ParseToken] sets.
// The error is a [*replay.TokenError], [ErrTokenExpired], or that of a function of s.
func (s *TokenSigner) Verify(ctx context.Context, token string) (*replay.Attempt, error) {
	if _, err := UnverifiedInstance(token); err != nil {
		return nil, err // without waiting for the key
	}
	secret, err := s.Key(ctx)
	if err != nil {
		return nil, err
	}
	lineages := s.lineages()
	var t host.Token
	var expires time.Time
	at := len(lineages) - 1
	for ok := false; ; at-- {
		if at < 0 {
			return nil, newSignedTokenError("was not signed by this cluster, or was changed")
		}
		if t, expires, ok = s.key(secret, lineages[at]).Verify(token); ok {
			break
		}
	}
	now, err := s.Now(ctx, t.Instance)
	if err != nil {
		return nil, err
	}
	if !now.Before(expires) {
		return nil, ErrTokenExpired
	}
	attempt := attemptOf(t)
	if at < len(lineages)-1 {
		if err := s.CheckEarlier(attempt, lineages[at]); err != nil {
			return nil, err
		}
	}
	return attempt, nil
}

// CurrentAttempt returns the attempt to which the context of an activity's body belongs, nil for
// any other context.
func CurrentAttempt(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(host.HeartbeatKey{}).(*Attempt)
	return attempt
}

// attemptContext holds the attempt and reports its deadline by the local clock. The leader cancels
// the context by cluster time.
type attemptContext struct {
	context.Context
	attempt *Attempt
}

func (c *attemptContext) Deadline() (time.Time, bool) {
	return c.attempt.Deadline, !c.attempt.Deadline.IsZero()
}

func (c *attemptContext) Value(key any) any {
	switch key.(type) {
	case host.AttemptKey:
		return &c.attempt.Attempt
	case host.HeartbeatKey:
		return c.attempt
	case host.HeadersKey:
		return c.attempt.headers
	}
	return c.Context.Value(key)
}

// RunActivity runs the body of an activity once and calls done exactly once. It must not be called
// again for the same attempt, which it changes. A panic or runtime.Goexit in the body becomes a
// [*replay.PanicError]. After runtime.Goexit, RunActivity does not return, and done is called as
// the goroutine unwinds. Input, output and details are converted by [Registry.PayloadConverter].
// With a codec the error is encoded too: see [DecodeError].
func (r *Registry) RunActivity(ctx context.Context, attempt *Attempt, done func(*journalpb.Payload, error)) {
	body, ok := r.activities[attempt.Name]
	if !ok {
		done(nil, &replay.NotRegisteredError{Kind: "activity", Name: attempt.Name})
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
	attempt.payloads = &r.payloads
	if len(attempt.Headers) > 0 {
		attempt.headers = hostHeaders(attempt.Headers)
	}
	if r.payloads.Codec != nil {
		attempt.lastHeartbeat = new(lastDetails)
	}
	if sealed := sealedRecord(attempt.LastError); sealed != nil {
		attempt.LastError = r.payloads.DecodeError(sealed)
	}
	attempt.context = attemptContext{ctx, attempt}
	output, err = attempt.runBody(body, r.interceptors.activities)
	err = r.payloads.sealUserError(err)
	returned = true
}

// runBody calls the body within interceptors.
func (a *Attempt) runBody(body *host.Activity, around []replay.ActivityInterceptor) (*journalpb.Payload, error) {
	if len(around) == 0 {
		return a.callBody(&a.context, body)
	}
	var output *journalpb.Payload
	call := func(i int, ctx context.Context, next func(context.Context) error) error { return around[i](ctx, next) }
	err := Intercept(context.Context(&a.context), len(around), call, func(ctx context.Context) error {
		result, err := a.callBody(ctx, body)
		output = result
		return err
	})
	if err != nil {
		return nil, err
	}
	return output, nil
}

// callBody calls the body and encodes its output.
func (a *Attempt) callBody(ctx context.Context, body *host.Activity) (*journalpb.Payload, error) {
	output, err := body.Run(ctx, a)
	if err != nil {
		return nil, err
	}
	return a.payloads.Encode(a.payloadInfo("output"), output)
}

// Decode implements [host.Decoder] for the input.
func (a *Attempt) Decode(into any) error {
	return a.payloads.Decode(a.payloadInfo("input"), a.Input, into)
}

func (a *Attempt) payloadInfo(part string) replay.PayloadInfo {
	return replay.PayloadInfo{Kind: "activity", Name: a.Name, Part: part}
}

// Heartbeat reports that the attempt is alive, and its progress.
func (a *Attempt) Heartbeat(details any) error {
	if a.Worker == nil {
		return nil
	}
	payload, err := a.encodeDetails(details)
	a.Worker.RecordHeartbeat(payload)
	return err
}

// HeartbeatDetails stores the details that an earlier attempt reported in the variable that into
// points to. It returns false if there are none or they cannot be decoded.
func (a *Attempt) HeartbeatDetails(into any) bool {
	return a.Details != nil && a.payloads.Decode(a.payloadInfo("details"), a.Details, into) == nil
}

// encodeDetails reuses the encoding of unchanged details. A codec may encode them differently each
// time, and they would then be recorded again.
func (a *Attempt) encodeDetails(details any) (*journalpb.Payload, error) {
	plain, err := a.payloads.serialize(a.payloadInfo("details"), details)
	if err != nil || a.payloads.Codec == nil {
		return plain, err
	}
	a.lastHeartbeat.Lock()
	defer a.lastHeartbeat.Unlock()
	if a.lastHeartbeat.sealed == nil || !bytes.Equal(a.lastHeartbeat.plain, plain.Data) {
		a.lastHeartbeat.plain = plain.Data
		a.lastHeartbeat.sealed, err = a.payloads.seal(plain)
	}
	return a.lastHeartbeat.sealed, err
}

// lastDetails holds the details of the latest heartbeat.
type lastDetails struct {
	sync.Mutex
	plain  []byte
	sealed *journalpb.Payload // nil if they could not be encoded
}
