package replaytest

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	visits = replay.KV[int]("visits")
	level  = replay.Attribute[int]("level")
)

// countVisits counts in a key-value map, one visit a day, and continues as new each day.
func countVisits(ctx *replay.Context, day string) (string, error) {
	n, _, err := visits.Get(ctx, "total")
	if err != nil {
		return "", err
	}
	if err := errors.Join(visits.Set(ctx, "total", n+1), level.Set(ctx, n/2), ctx.Sleep(24*time.Hour)); err != nil {
		return "", err
	}
	if n == 4 {
		return day, nil
	}
	return "", program.ContinueAsNew(ctx, fmt.Sprint("day ", n+1))
}

func TestReadKV_VirtualDays(t *testing.T) {
	env := New(t, program.Bind(countVisits))
	env.ReplayEvery(1)
	run := begin(env, program, "v", "day 0")
	check := func(total, wantLevel int) {
		t.Helper()
		values, err := ReadKV(env, "v", visits)
		if err != nil || !maps.Equal(values, map[string]int{"total": total}) {
			t.Errorf("the map has %v, %v, want total %d", values, err, total)
		}
		status, err := env.Get("v")
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := level.In(status.Attributes); !ok || n != wantLevel {
			t.Errorf("the attributes are %v, want level %d", status.Attributes, wantLevel)
		}
	}
	check(1, 0)
	env.Advance(48*time.Hour + time.Second)
	check(3, 1)
	if day, err := run.Wait(); err != nil || day != "day 4" {
		t.Errorf("ended with %q, %v", day, err)
	}
	check(5, 2)
	if _, err := ReadKV(env, "unknown", visits); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown instance: %v", err)
	}
	var mistyped *replay.PayloadError
	if _, err := ReadKV(env, "v", replay.KV[string]("visits")); !errors.As(err, &mistyped) {
		t.Errorf("numbers read as strings: %v", err)
	}
}
