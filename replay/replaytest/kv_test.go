package replaytest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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

// Two children whose first attempt fails tell their parent's key-value map in either order, and
// each counts once.
func TestPermute_ValuesAndRetriedChildren(t *testing.T) {
	arrivals := replay.KV[string]("arrivals")
	parent := replay.Orchestration[string, string]("parent")
	var orders []string
	Permute(t, 100, func(t *testing.T, env *Env) map[string]int {
		if _, err := Call(env, parent, "parent", ""); err != nil {
			t.Error(err)
		}
		first, err := ReadKV(env, "parent", arrivals)
		if err != nil {
			t.Error(err)
		}
		orders = append(orders, first["first"])
		counts, err := ReadKV(env, "parent", visits)
		if err != nil {
			t.Error(err)
		}
		return counts
	}, parent.Bind(func(ctx *replay.Context, _ string) (string, error) {
		a := helper.Start(ctx, "a", replay.Retry(replay.RetryPolicy{InitialInterval: time.Second}))
		b := helper.Start(ctx, "b", replay.Retry(replay.RetryPolicy{InitialInterval: time.Second}))
		for range 2 {
			name, err := note.Wait(ctx)
			if err != nil {
				return "", err
			}
			n, _, err := visits.Get(ctx, name)
			if err := errors.Join(err, visits.Set(ctx, name, n+1)); err != nil {
				return "", err
			}
			if _, ok, _ := arrivals.Get(ctx, "first"); !ok {
				if err := arrivals.Set(ctx, "first", name); err != nil {
					return "", err
				}
			}
		}
		_, err := replay.All(ctx, a, b)
		return "", err
	}), helper.Bind(func(ctx *replay.Context, name string) (string, error) {
		if ctx.Attempt() == 1 {
			return "", errors.New("the first attempt")
		}
		// The backoffs differ; both arrive at the same moment.
		if err := ctx.Sleep(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC).Sub(ctx.Now())); err != nil {
			return "", err
		}
		return name, note.SendTo(ctx, "parent", name)
	}))
	if slices.Sort(orders); !slices.Equal(slices.Compact(orders), []string{"a", "b"}) {
		t.Errorf("the first was %q, want each once", orders)
	}
}
