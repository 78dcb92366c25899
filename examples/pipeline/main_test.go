package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var source = Source{"https://example.org/weather.csv"}

func TestPipeline_ServiceDownForAnHour(t *testing.T) {
	env := replaytest.New(t, definitions(&steps{out: io.Discard})...)
	up := env.Now().Add(time.Hour)
	replaytest.Stub(env, Publish, func(context.Context, File) (string, error) {
		if time.Now().Before(up) {
			return "", errors.New("service unavailable")
		}
		return "https://example.org/published", nil
	})
	report, err := replaytest.Call(env, Pipeline, "pipeline", source)
	if err != nil || report != (Report{"https://example.org/published", 1000}) {
		t.Errorf("%+v: %v", report, err)
	}
	env.ExpectCalls(Convert, 1) // completed steps are not repeated
	// An activity is two events, regardless of the number of attempts.
	if n := len(env.History("pipeline").Events); n != 8 {
		t.Errorf("%d events", n)
	}
}

// The real step with real heartbeats.
func TestConvert_ResumesFromHeartbeat(t *testing.T) {
	var out strings.Builder
	env := replaytest.New(t, definitions(&steps{out: &out, failAtRow: 750})...)
	if _, err := replaytest.Call(env, Pipeline, "pipeline", source); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"from row 0, attempt 1\n", "from row 700, attempt 2\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// A hanging attempt times out after 10 s without a heartbeat.
func TestConvert_HangingAttemptTimesOut(t *testing.T) {
	env := replaytest.New(t, definitions(&steps{out: io.Discard})...)
	var causes []error
	replaytest.Stub(env, Convert, func(ctx context.Context, raw File) (File, error) {
		if replay.ActivityInfo(ctx).Number == 1 {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			return File{}, ctx.Err()
		}
		return raw, nil
	})
	began := env.Now()
	if _, err := replaytest.Call(env, Pipeline, "pipeline", source); err != nil {
		t.Error(err)
	}
	if took := env.Now().Sub(began); took < 10*time.Second || took > 11*time.Second {
		t.Errorf("it took %v", took)
	}
	if !slices.ContainsFunc(causes, func(err error) bool { return errors.Is(err, replay.ErrTimeout) }) {
		t.Errorf("causes %v", causes)
	}
}

func TestPipeline_WrongFileIsNotRetried(t *testing.T) {
	env := replaytest.New(t, definitions(&steps{out: io.Discard})...)
	began := env.Now()
	_, err := replaytest.Call(env, Pipeline, "pipeline", Source{"https://example.org/cat.gif"})
	if !errors.Is(err, ErrNotMeasurements) || env.Now() != began {
		t.Errorf("after %v: %v", env.Now().Sub(began), err)
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"convert weather.csv from row 0, attempt 1\n", "from row 700, attempt 2\n", "1000 rows are at https://"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
