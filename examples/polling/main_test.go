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

// In an hour it asks some sixty times: often at first, then once a minute.
func TestItAsksLessAndLessOften(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1))...)
	var asked []time.Time
	done := env.Now().Add(time.Hour)
	replaytest.Stub(env, Ask, func(context.Context, string) (Job, error) {
		asked = append(asked, time.Now())
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
	if len(asked) < 55 || len(asked) > 75 {
		t.Errorf("asked %d times", len(asked))
	}
	for i := 1; i < len(asked); i++ {
		if pause := asked[i].Sub(asked[i-1]); pause < time.Second || pause > 66*time.Second {
			t.Errorf("pause %d is %v", i, pause)
		}
	}
	if pause := asked[1].Sub(asked[0]); pause > 2*time.Second {
		t.Errorf("the first pause is %v", pause)
	}
}

func TestAJobThatTakesTooLongIsCalledOff(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1_000_000))...)
	began := env.Now()
	patient := request
	patient.Limit = 10 * time.Minute
	_, err := replaytest.Call(env, Export, "export", patient)
	if !errors.Is(err, replay.ErrTimeout) {
		t.Errorf("error %v", err)
	}
	if took := env.Now().Sub(began); took != patient.Limit {
		t.Errorf("it took %v", took)
	}
	env.ExpectCalls(Begin, 1)
	env.ExpectCalls(Forget, 1)
}

// A system that is down for a while is no reason to begin another job.
func TestFailuresOfTheOtherSystem(t *testing.T) {
	env := replaytest.New(t, definitions(newExporter(io.Discard, 1))...)
	replaytest.Stub(env, Ask, replaytest.Returns[string](Job{100, "export.csv"}, nil)).
		FailFirst(5, errors.New("service unavailable"))
	if _, err := replaytest.Call(env, Export, "export", request); err != nil {
		t.Error(err)
	}
	env.ExpectCalls(Begin, 1)
	env.ExpectCalls(Ask, 1)
}

func TestItRuns(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), "", &out); err != nil {
		t.Fatal(err)
	}
	if want := "begin to export orders\n 20%\n 40%\n 60%\n 80%\n100%\nexported to export.csv\n"; out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}
