package actors_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// aeadCodec encrypts with a fresh nonce each time.
type aeadCodec struct{ cipher.AEAD }

func newAEADCodec(t *testing.T) engine.PayloadConverter {
	t.Helper()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return engine.PayloadConverter{Codec: aeadCodec{aead}}
}

func (a aeadCodec) Encode(data []byte) ([]byte, string, error) {
	return a.Seal(nil, nil, data, nil), "sealed", nil
}

func (a aeadCodec) Decode(data []byte, _ string) ([]byte, error) { return a.Open(nil, nil, data, nil) }

// A repeated call encodes its value again, and the codec's output differs.
func TestCompleteActivity_DuplicateUnderCodec(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		payloads := newAEADCodec(t)
		var o pendingActivity
		n := leadWith(t, newTestJournal(), actors.Config{}, payloads, o.bind(), call(), program("resigned", acceptFailure))
		complete := func(token, text string, failure error) error {
			t.Helper()
			attempt, err := engine.ParseToken(token)
			if err != nil {
				t.Fatal(err)
			}
			c := activity.Completion{
				Ref:     &journalpb.OperationRef{Instance: attempt.Instance, Execution: attempt.Execution, EventId: attempt.EventID},
				Attempt: attempt.Number,
			}
			if failure != nil {
				c.Error, err = payloads.EncodeError(failure)
			} else {
				c.Result, err = payloads.Encode(replay.PayloadInfo{Kind: "activity", Name: "work", Part: "result"}, text)
			}
			if err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error, 1)
			n.partition.CompleteActivity(c, func(err error) { outcome <- err })
			return <-outcome
		}
		ask := func(id, program string) string {
			n.start(id, program, "").want(nil)
			waitIdle()
			return o.last()
		}
		done := ask("done", "call")
		final := ask("final", "resigned")
		for range 3 {
			if err := complete(done, "granted", nil); err != nil {
				t.Errorf("completed: %v", err)
			}
			if err := complete(final, "", replay.NonRetryable(errors.New("rejected"))); err != nil {
				t.Errorf("failed: %v", err)
			}
		}
		if err := complete(done, "denied", nil); !errors.Is(err, activity.ErrClosed) {
			t.Errorf("another value: %v", err)
		}
		if err := complete(final, "", replay.NonRetryable(errors.New("forbidden"))); !errors.Is(err, activity.ErrClosed) {
			t.Errorf("another error: %v", err)
		}
		again := ask("again", "call")
		for range 3 { // the next attempt is not due yet
			if err := complete(again, "", errors.New("not today")); err != nil {
				t.Errorf("failed, to be tried again: %v", err)
			}
		}
	})
}

// acceptFailure returns normally if its activity fails.
func acceptFailure(ctx *replay.Context, _ string) (string, error) {
	_, err := work.Call(ctx, 0)
	if err == nil {
		return "", errors.New("it has not failed")
	}
	return "failed", nil
}

// A codecBlocking blocks in Decode of a text until the channel blocked is closed.
type codecBlocking struct {
	aeadCodec
	text    string
	blocked chan struct{}
	enabled atomic.Bool
}

func (c *codecBlocking) Decode(data []byte, contentType string) ([]byte, error) {
	decoded, err := c.aeadCodec.Decode(data, contentType)
	if c.enabled.Load() && bytes.Contains(decoded, []byte(c.text)) {
		<-c.blocked
	}
	return decoded, err
}

// A codec may call a service. While it decodes, other activities go on.
func TestCompleteActivity_BlockedCodecDelaysNoActivity(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		codec := &codecBlocking{aeadCodec: newAEADCodec(t).Codec.(aeadCodec), text: "not today", blocked: make(chan struct{})}
		payloads := engine.PayloadConverter{Codec: codec}
		var o pendingActivity
		n := leadWith(t, newTestJournal(), actors.Config{}, payloads, o.bind(), call())
		ask := func(id string) string {
			n.start(id, "call", "").want(nil)
			waitIdle()
			return o.last()
		}
		fail := func(token string) <-chan error {
			attempt, err := engine.ParseToken(token)
			if err != nil {
				t.Fatal(err)
			}
			failure, err := payloads.EncodeError(errors.New(codec.text))
			if err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error, 1)
			go n.partition.CompleteActivity(activity.Completion{
				Ref:     &journalpb.OperationRef{Instance: attempt.Instance, Execution: attempt.Execution, EventId: attempt.EventID},
				Attempt: attempt.Number, Error: failure,
			}, func(err error) { outcome <- err })
			return outcome
		}
		first := ask("first")
		if err := <-fail(first); err != nil {
			t.Fatal(err)
		}
		codec.enabled.Store(true)
		repeated := fail(first)
		waitIdle()
		if ask("second") == first {
			t.Error("the activity of another instance has not begun")
		}
		close(codec.blocked)
		if err := <-repeated; err != nil {
			t.Errorf("repeated completion: %v", err)
		}
	})
}

// While a repeated completion is compared, the first one is recorded.
func TestCompleteActivity_RecordedDuringComparison(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		codec := &codecBlocking{aeadCodec: newAEADCodec(t).Codec.(aeadCodec), text: "granted", blocked: make(chan struct{})}
		payloads := engine.PayloadConverter{Codec: codec}
		var o pendingActivity
		n := leadWith(t, newTestJournal(), actors.Config{}, payloads, o.bind(), call())
		n.start("i", "call", "").want(nil)
		waitIdle()
		attempt, err := engine.ParseToken(o.last())
		if err != nil {
			t.Fatal(err)
		}
		complete := func() <-chan error {
			c := activity.Completion{
				Ref:     &journalpb.OperationRef{Instance: attempt.Instance, Execution: attempt.Execution, EventId: attempt.EventID},
				Attempt: attempt.Number,
			}
			if c.Result, err = payloads.Encode(replay.PayloadInfo{}, "granted"); err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error, 1)
			go n.partition.CompleteActivity(c, func(err error) { outcome <- err })
			return outcome
		}
		n.journal.holdAppends()
		first := complete()
		waitIdle()
		codec.enabled.Store(true)
		second := complete()
		waitIdle()
		n.journal.releaseAppends()
		if err := <-first; err != nil {
			t.Errorf("first: %v", err)
		}
		waitIdle()
		close(codec.blocked)
		select {
		case err := <-second:
			if err != nil {
				t.Errorf("second: %v", err)
			}
		case <-time.After(time.Hour):
			t.Error("the second completion is not answered")
		}
	})
}
