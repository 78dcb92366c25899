package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var request = Request{What: "orders", First: time.Second, Longest: time.Minute, Limit: 6 * time.Hour}

// In an hour it polls about sixty times: often at first, then once a minute.
func TestExport_PollsWithBackoff(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1))...)
	var polledAt []time.Time
	done := env.Now().Add(time.Hour)
	replaytest.Stub(env, Ask, func(context.Context, string) (Job, error) {
		polledAt = append(polledAt, time.Now())
		if time.Now().Before(done) {
			return Job{Percent: 50}, nil
		}
		return Job{100, "export.csv"}, nil
	})
	env.ReplayEvery(20)
	file, err := replaytest.Call(env, Export, "export", request)
	if err != nil || file != "export.csv" {
		t.Errorf("%q: %v", file, err)
	}
	if len(polledAt) < 55 || len(polledAt) > 75 {
		t.Errorf("asked %d times", len(polledAt))
	}
	for i := 1; i < len(polledAt); i++ {
		if interval := polledAt[i].Sub(polledAt[i-1]); interval < time.Second || interval > 66*time.Second {
			t.Errorf("pause %d is %v", i, interval)
		}
	}
	if interval := polledAt[1].Sub(polledAt[0]); interval > 2*time.Second {
		t.Errorf("the first pause is %v", interval)
	}
}

func TestExport_TimeoutForgetsJob(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1_000_000))...)
	began := env.Now()
	shortRequest := request
	shortRequest.Limit = 10 * time.Minute
	_, err := replaytest.Call(env, Export, "export", shortRequest)
	if !errors.Is(err, replay.ErrTimeout) {
		t.Errorf("error %v", err)
	}
	if took := env.Now().Sub(began); took != shortRequest.Limit {
		t.Errorf("it took %v", took)
	}
	env.ExpectCalls(Begin, 1)
	env.ExpectCalls(Forget, 1)
}

// Failed polls must not start another job.
func TestExport_RetriesFailedPolls(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1))...)
	replaytest.Stub(env, Ask, replaytest.Returns[string](Job{100, "export.csv"}, nil)).
		FailFirst(5, errors.New("service unavailable"))
	if _, err := replaytest.Call(env, Export, "export", request); err != nil {
		t.Error(err)
	}
	env.ExpectCalls(Begin, 1)
	env.ExpectCalls(Ask, 1)
}

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	if want := "begin to export orders\n 20%\n 40%\n 60%\n 80%\n100%\nexported to export.csv\n"; out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}
