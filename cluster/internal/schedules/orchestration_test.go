package schedules

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var report = replay.Orchestration[time.Duration, string]("report")

// sleeping is the body of report: it takes as long as its input says.
func sleeping(ctx *replay.Context, d time.Duration) (string, error) {
	return "done", ctx.Sleep(d)
}

// newEnv returns an environment in which a schedule can start report.
func newEnv(t *testing.T, more ...replay.Definition) *replaytest.Env {
	t.Helper()
	var env *replaytest.Env
	definitions := Definitions(func(_ context.Context, id, reason string) error { return env.Terminate(id, reason) })
	env = replaytest.New(t, append(append(definitions, report.Bind(sleeping)), more...)...)
	return env
}

// create starts a schedule of report.
func create(t *testing.T, env *replaytest.Env, spec Spec, takes time.Duration) *replaytest.Run[Description] {
	t.Helper()
	input, err := json.Marshal(takes)
	if err != nil {
		t.Fatal(err)
	}
	run, err := replaytest.StartRun(env, Orchestration, "s", Input{Spec: spec, Target: Target{report.Name(), input}})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func describe(t *testing.T, env *replaytest.Env) Description {
	t.Helper()
	d, err := replaytest.Query(env, "s", DescribeQuery, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSchedule_StartsEachHour(t *testing.T) {
	env := newEnv(t)
	create(t, env, Spec{Cron: []string{"@hourly"}}, time.Minute)
	env.Advance(5*time.Hour + time.Minute)
	d := describe(t, env)
	t.Logf("%+v", d)
	t.Log(env.Instances())
	t.Log(len(env.History("s").Events))
	if d.Started != 5 {
		t.Errorf("started %d", d.Started)
	}
}
