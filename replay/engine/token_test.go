package engine_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// tokenNow is the cluster time in tests of tokens.
var tokenNow = time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)

// newTokenSigner returns a signer of a cluster, at tokenNow plus a time that the caller may change.
func newTokenSigner(cluster, secret string) (signer *engine.TokenSigner, passed *time.Duration) {
	passed = new(time.Duration)
	return &engine.TokenSigner{
		Cluster: cluster,
		Key:     func(context.Context) ([]byte, error) { return []byte(secret), nil },
		Now:     func(context.Context, string) (time.Time, error) { return tokenNow.Add(*passed), nil },
	}, passed
}

// signToken returns the signed token of an attempt, as its body gets it.
func signToken(t testing.TB, signer *engine.TokenSigner, attempt replay.Attempt, lifetime time.Duration) string {
	t.Helper()
	attempt.Name = "signs"
	handle := replay.Activity[string, string]("signs")
	registry, err := engine.NewRegistry(handle.Bind(func(ctx context.Context, _ string) (string, error) {
		return replay.ActivityInfo(ctx).SignedToken(ctx, lifetime)
	}))
	if err != nil {
		t.Fatal(err)
	}
	var token string
	registry.RunActivity(signer.WithContext(context.Background()), &engine.Attempt{Attempt: attempt}, func(output *journalpb.Payload, failure error) {
		if err = failure; err == nil {
			err = engine.Decode(output, &token)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

var tokenAttempts = []replay.Attempt{
	{Instance: "a", Execution: 1, EventID: 2, Number: 1},
	{Instance: "a/b/7::1.2", Incarnation: journalpb.NewIncarnation(3, 17), Execution: 1 << 40, EventID: 1 << 50, Number: 1 << 20},
	{Instance: strings.Repeat("x", 128), Incarnation: 1<<64 - 1, Execution: 1<<64 - 1, EventID: 1<<64 - 1, Number: 1<<31 - 1},
}

func TestSignedToken_RoundTrip(t *testing.T) {
	signer, passed := newTokenSigner(strings.Repeat("c", 64), "secret")
	alphabet := regexp.MustCompile(`^t3\.[A-Za-z0-9_-]+$`)
	for _, a := range tokenAttempts {
		*passed = 0
		token := signToken(t, signer, a, time.Hour)
		if len(token) > 400 || !alphabet.MatchString(token) || !engine.IsSignedToken(token) {
			t.Errorf("%d bytes: %s", len(token), token)
		}
		*passed = time.Hour - 1
		got, err := signer.Verify(context.Background(), token)
		if err != nil || got.IdempotencyKey() != a.IdempotencyKey() || got.Number != a.Number {
			t.Errorf("%s: %+v, %v", token, got, err)
		}
		if instance, err := engine.UnverifiedInstance(token); err != nil || instance != a.Instance {
			t.Errorf("%s: instance %q, %v", token, instance, err)
		}
		*passed = time.Hour
		if got, err := signer.Verify(context.Background(), token); !errors.Is(err, engine.ErrTokenExpired) || got != nil {
			t.Errorf("%s at its expiry: %+v, %v", token, got, err)
		}
	}
}

// expectForged checks that a text is rejected, and that the error contains no part of it.
func expectForged(t testing.TB, signer *engine.TokenSigner, what, text string) {
	t.Helper()
	var wrong *replay.TokenError
	got, err := signer.Verify(context.Background(), text)
	if !errors.As(err, &wrong) || got != nil {
		t.Errorf("%s: %+v, %v; want a TokenError", what, got, err)
	} else if len(text) > 20 && strings.Contains(err.Error()+wrong.Token, text[3:20]) {
		t.Errorf("%s: the error %q contains a part of the token", what, err)
	}
}

// A change of any bit of the text or of what it encodes makes a token invalid, and no other text
// stands for the same token.
func TestSignedToken_RejectsEveryChange(t *testing.T) {
	signer, _ := newTokenSigner("shop", "secret")
	token := signToken(t, signer, tokenAttempts[1], time.Hour)
	for at := range token {
		for bit := range 8 {
			changed := []byte(token)
			changed[at] ^= 1 << bit
			expectForged(t, signer, fmt.Sprintf("bit %d of character %d flipped", bit, at), string(changed))
		}
		expectForged(t, signer, fmt.Sprintf("truncated to %d", at), token[:at])
		expectForged(t, signer, fmt.Sprintf("begins at %d", at+1), token[at+1:])
		for _, inserted := range []string{"\n", "\r", "=", " ", "A"} {
			expectForged(t, signer, fmt.Sprintf("%q inserted at %d", inserted, at), token[:at]+inserted+token[at:])
		}
	}
	decoded, err := base64.RawURLEncoding.DecodeString(token[3:])
	if err != nil {
		t.Fatal(err)
	}
	for at := range decoded {
		for bit := range 8 {
			changed := append([]byte(nil), decoded...)
			changed[at] ^= 1 << bit
			expectForged(t, signer, fmt.Sprintf("bit %d of byte %d flipped", bit, at), "t3."+base64.RawURLEncoding.EncodeToString(changed))
		}
	}
	for _, suffix := range []string{"\n", "A", "AA", "=", "==", "."} {
		expectForged(t, signer, fmt.Sprintf("with %q at its end", suffix), token+suffix)
	}
	expectForged(t, signer, "too long", token+strings.Repeat("A", 400))
	expectForged(t, signer, "under another version", "t2."+token[3:])
	expectForged(t, signer, "a plain token", tokenAttempts[1].Token())
	expectForged(t, signer, "a plain token under the prefix", "t3."+tokenAttempts[1].Token()[3:])
}

// A token is valid for the cluster and the key with which it was signed.
func TestSignedToken_IsForOneCluster(t *testing.T) {
	signer, _ := newTokenSigner("shop", "secret")
	token := signToken(t, signer, tokenAttempts[0], time.Hour)
	for _, other := range [][2]string{{"shop", "secreT"}, {"shop2", "secret"}, {"shoP", "secret"}, {"sho", "secret"}, {"", "secret"}, {"shop", ""}} {
		signer, _ := newTokenSigner(other[0], other[1])
		expectForged(t, signer, fmt.Sprintf("cluster %q with key %q", other[0], other[1]), token)
	}
}

// A signed token in quotes or with a space, which users paste, does not get into logs by the error.
func TestParseToken_ErrorOmitsSignedToken(t *testing.T) {
	signer, _ := newTokenSigner("shop", "secret")
	token := signToken(t, signer, tokenAttempts[0], time.Hour)
	for _, text := range []string{token, " " + token, `"` + token + `"`, "https://shop.example/complete/" + token} {
		var wrong *replay.TokenError
		if _, err := engine.ParseToken(text); !errors.As(err, &wrong) || strings.Contains(err.Error()+wrong.Token, token[3:10]) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := engine.ParseToken("no token"); err == nil || err.Error() != `tenuto: "no token" is not an attempt token` {
		t.Errorf("text that is no token: %v", err)
	}
}

func TestSignedToken_ChecksItsArguments(t *testing.T) {
	attempt := &replay.Attempt{Instance: "a", Execution: 1, EventID: 2, Number: 1}
	signer, _ := newTokenSigner("shop", "secret")
	outside, handle := signer.WithContext(context.Background()), replay.Activity[string, string]("signs")
	expectInvalid := func(what, field string, err error) {
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v; want an error for %q", what, err, field)
		}
	}
	called := false
	registry, err := engine.NewRegistry(handle.Bind(func(ctx context.Context, _ string) (string, error) {
		called = true
		for _, lifetime := range []time.Duration{-1, 0, time.Second - 1, 30*24*time.Hour + 1} {
			_, err := replay.ActivityInfo(ctx).SignedToken(ctx, lifetime)
			expectInvalid(lifetime.String(), "lifetime", err)
			_, err = replay.ActivityInfo(ctx).CompletionURL(ctx, lifetime)
			expectInvalid(lifetime.String(), "lifetime", err)
		}
		for _, lifetime := range []time.Duration{time.Second, 30 * 24 * time.Hour} {
			if _, err := replay.ActivityInfo(ctx).SignedToken(ctx, lifetime); err != nil {
				t.Errorf("%v: %v", lifetime, err)
			}
		}
		_, err := (&replay.Attempt{Instance: "b", Execution: 1, EventID: 2, Number: 1}).SignedToken(ctx, time.Hour)
		expectInvalid("another attempt", "context", err)
		_, err = replay.ActivityInfo(ctx).SignedToken(context.Background(), time.Hour)
		expectInvalid("another context", "context", err)
		_, err = replay.ActivityInfo(ctx).CompletionURL(ctx, time.Hour)
		expectInvalid("without a URL", "Config.CompletionURL", err)
		signer.URL = "https://shop.example/hooks"
		token, err := replay.ActivityInfo(ctx).SignedToken(ctx, time.Hour)
		if err != nil {
			t.Error(err)
		}
		if url, err := replay.ActivityInfo(ctx).CompletionURL(ctx, time.Hour); err != nil || url != "https://shop.example/hooks/complete/"+token {
			t.Errorf("%s, %v", url, err)
		}
		return "", nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = attempt.SignedToken(outside, time.Hour)
	expectInvalid("outside an activity", "context", err)
	registry.RunActivity(outside, &engine.Attempt{Attempt: replay.Attempt{Name: "signs", Instance: "a", Execution: 1, EventID: 2, Number: 1}},
		func(_ *journalpb.Payload, err error) {
			if err != nil || !called {
				t.Errorf("the body: %v", err)
			}
		})
}

// FuzzSignedToken checks that no text but the signed one is accepted, and that none crashes.
func FuzzSignedToken(f *testing.F) {
	signer, _ := newTokenSigner("shop", "secret")
	signed := make(map[string]bool)
	for _, a := range tokenAttempts {
		token := signToken(f, signer, a, time.Hour)
		signed[token] = true
		f.Add(token)
		f.Add(a.Token())
		f.Add(token[:len(token)-1])
		f.Add("t3." + a.Token()[3:])
	}
	f.Add("t3.")
	f.Add("t3." + strings.Repeat("A", 60))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := signer.Verify(context.Background(), text)
		if (err == nil) != signed[text] {
			t.Fatalf("%q: %+v, %v", text, got, err)
		}
		instance, err := engine.UnverifiedInstance(text)
		if err == nil && !engine.ValidInstanceID(instance) {
			t.Fatalf("%q names instance %q", text, instance)
		}
		if attempt, err := engine.ParseToken(text); err == nil && engine.IsSignedToken(text) {
			t.Fatalf("%q is a plain token too: %+v", text, attempt)
		}
	})
}
