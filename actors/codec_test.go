package actors_test

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// sealing encrypts under a fresh nonce each time.
type sealing struct{ cipher.AEAD }

func newSealing(t *testing.T) replay.Payloads {
	t.Helper()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return replay.Payloads{Codec: sealing{aead}}
}

func (s sealing) Encode(data []byte) ([]byte, string, error) {
	return s.Seal(nil, nil, data, nil), "sealed", nil
}

func (s sealing) Decode(data []byte, _ string) ([]byte, error) { return s.Open(nil, nil, data, nil) }

// A call that is repeated encodes its value again, which a codec makes something
// else of.
func TestSameCompletionUnderACodecIsKnownAgain(t *testing.T) {
	virtually(t, func(t *testing.T) {
		payloads := newSealing(t)
		var o office
		n := leadWith(t, newTestJournal(), actors.Config{}, payloads, o.bind(), call(), program("resigned", resigned))
		complete := func(token, text string, failure error) error {
			t.Helper()
			attempt, err := replay.ParseToken(token)
			if err != nil {
				t.Fatal(err)
			}
			c := actors.Completion{
				Ref:     &journalpb.OperationRef{Instance: attempt.Instance, Execution: attempt.Execution, EventId: attempt.EventID},
				Attempt: attempt.Number,
			}
			if failure != nil {
				c.Error, err = payloads.EncodeError(failure)
			} else {
				c.Result, err = payloads.Encode(replay.PayloadOf{Kind: "activity", Name: "work", Part: "result"}, text)
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
			idle()
			return o.last()
		}
		done := ask("done", "call")
		final := ask("final", "resigned")
		for range 3 {
			if err := complete(done, "granted", nil); err != nil {
				t.Errorf("completed: %v", err)
			}
			if err := complete(final, "", replay.NonRetryable(errors.New("refused"))); err != nil {
				t.Errorf("failed: %v", err)
			}
		}
		if err := complete(done, "denied", nil); !errors.Is(err, actors.ErrActivityClosed) {
			t.Errorf("another value: %v", err)
		}
		if err := complete(final, "", replay.NonRetryable(errors.New("forbidden"))); !errors.Is(err, actors.ErrActivityClosed) {
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

// resigned takes no failure for the end.
func resigned(ctx *replay.Context, _ string) (string, error) {
	_, err := work.Call(ctx, 0)
	if err == nil {
		return "", errors.New("it has not failed")
	}
	return "failed", nil
}
