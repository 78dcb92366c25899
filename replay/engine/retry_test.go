package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func TestRetryAfter_Backoff(t *testing.T) {
	policy := func(p replay.RetryPolicy) *journalpb.ActivityOptions { return engine.RecordedOptions(replay.Retry(p)) }
	cases := []struct {
		name    string
		options *journalpb.ActivityOptions
		attempt int
		chance  float64
		want    time.Duration
	}{
		{"default, first", nil, 1, 0.5, time.Second},
		{"default, second", nil, 2, 0.5, 2 * time.Second},
		{"default, seventh", nil, 7, 0.5, 64 * time.Second},
		{"default, longest", nil, 8, 0.5, 100 * time.Second},
		{"default, ages later", nil, 1 << 40, 0.5, 100 * time.Second},
		{"shortest by chance", nil, 1, 0, 800 * time.Millisecond},
		{"longest by chance", nil, 1, 1, 1200 * time.Millisecond},
		{"zero values are defaults", policy(replay.RetryPolicy{}), 3, 0.5, 4 * time.Second},
		{"interval", policy(replay.RetryPolicy{InitialInterval: time.Minute}), 1, 0.5, time.Minute},
		{"interval over the longest", policy(replay.RetryPolicy{InitialInterval: time.Hour}), 1, 0.5, 100 * time.Second},
		{"backoff", policy(replay.RetryPolicy{Backoff: 10}), 2, 0.5, 10 * time.Second},
		{"backoff below 1", policy(replay.RetryPolicy{Backoff: 0.5}), 5, 0.5, time.Second},
		{"longest", policy(replay.RetryPolicy{MaxInterval: 3 * time.Second}), 9, 0.5, 3 * time.Second},
		{"negative values are defaults", policy(replay.RetryPolicy{InitialInterval: -1, Backoff: -1, MaxInterval: -1, MaxAttempts: -1}), 2, 0.5, 2 * time.Second},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			delay, again := engine.RetryAfter(test.options, test.attempt, errors.New("x"), test.chance)
			if !again || delay != test.want {
				t.Errorf("%v, %t, want %v", delay, again, test.want)
			}
		})
	}
}

func TestRetryAfter_Stops(t *testing.T) {
	coded := replay.WithCode("full", errors.New("x"))
	cases := []struct {
		name    string
		policy  replay.RetryPolicy
		attempt int
		err     error
		again   bool
	}{
		{"unlimited", replay.RetryPolicy{}, 1000000, coded, true},
		{"before the last", replay.RetryPolicy{MaxAttempts: 3}, 2, coded, true},
		{"after the last", replay.RetryPolicy{MaxAttempts: 3}, 3, coded, false},
		{"only one", replay.RetryPolicy{MaxAttempts: 1}, 1, coded, false},
		{"code", replay.RetryPolicy{NonRetryableCodes: []string{"empty", "full"}}, 1, coded, false},
		{"wrapped code", replay.RetryPolicy{NonRetryableCodes: []string{"full"}}, 1, fmt.Errorf("w: %w", coded), false},
		{"another code", replay.RetryPolicy{NonRetryableCodes: []string{"empty"}}, 1, coded, true},
		{"no code", replay.RetryPolicy{NonRetryableCodes: []string{""}}, 1, errors.New("x"), true},
		{"marked", replay.RetryPolicy{}, 1, replay.NonRetryable(coded), false},
		{"wrapped mark", replay.RetryPolicy{}, 1, fmt.Errorf("w: %w", replay.NonRetryable(errors.New("x"))), false},
		{"marked far down", replay.RetryPolicy{}, 1, replay.WithCode("a", fmt.Errorf("w: %w", replay.NonRetryable(coded))), false},
		{"panic", replay.RetryPolicy{}, 1, &replay.PanicError{Message: "x"}, true},
		{"timeout", replay.RetryPolicy{NonRetryableCodes: []string{"tenuto.timeout"}}, 1, replay.ErrTimeout, false},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			if _, again := engine.RetryAfter(engine.RecordedOptions(replay.Retry(test.policy)), test.attempt, test.err, 0.5); again != test.again {
				t.Errorf("retry is %t", again)
			}
			// The same after the error was recorded.
			decoded := engine.DecodeError(engine.EncodeError(test.err))
			if _, again := engine.RetryAfter(engine.RecordedOptions(replay.Retry(test.policy)), test.attempt, decoded, 0.5); again != test.again {
				t.Errorf("after decoding: retry is %t", again)
			}
		})
	}
}
