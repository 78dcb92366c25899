package engine_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// wantInvalid checks the field and the limit that an error names.
func wantInvalid(err error, field, reason string) error {
	var invalid *replay.InvalidError
	if !errors.As(err, &invalid) || !strings.Contains(invalid.Field, field) || !strings.Contains(invalid.Reason, reason) {
		return fmt.Errorf("the error is %v, want it to name %q and %q", err, field, reason)
	}
	return nil
}

func TestAttribute_BoundsAreErrors(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		problems := errors.Join(
			wantInvalid(region.Set(ctx, strings.Repeat("x", 257)), `attribute "region"`, "has 257 bytes: at most 256"),
			wantInvalid(region.Set(ctx, "\xff"), `attribute "region"`, "UTF-8"),
			wantInvalid(amount.Set(ctx, math.NaN()), `attribute "amount"`, "finite"),
			wantInvalid(amount.Set(ctx, math.Inf(-1)), `attribute "amount"`, "finite"),
			wantInvalid(shipBefore.Set(ctx, time.Date(1500, 1, 1, 0, 0, 0, 0, time.UTC)), `attribute "ship-before"`, "1678"),
			wantInvalid(shipBefore.Set(ctx, time.Date(2263, 1, 1, 0, 0, 0, 0, time.UTC)), `attribute "ship-before"`, "2262"),
			wantInvalid(replay.Attribute[int]("").Set(ctx, 1), "attribute", "0 bytes"),
		)
		for i := range 32 {
			problems = errors.Join(problems, replay.Attribute[int](fmt.Sprint("a", i)).Set(ctx, i))
		}
		problems = errors.Join(problems,
			wantInvalid(region.Set(ctx, "x"), `attribute "region"`, "at most 32"),
			region.Remove(ctx),
			replay.Attribute[int]("a31").Set(ctx, 32),
			replay.Attribute[int]("a0").Remove(ctx),
			region.Set(ctx, strings.Repeat("x", 256)),
		)
		return "", problems
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationCompleted output=""`)
		if n := countEvents(in, journalpb.TypeAttributeSet); n != 35 {
			t.Errorf("%d attributes recorded, want 35", n)
		}
	})
}

func TestKV_BoundsAreErrors(t *testing.T) {
	large := strings.Repeat("x", 16<<10-2) // with its quotes as large as a value may be
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		problems := errors.Join(
			wantInvalid(notes.Set(ctx, "", "x"), `key-value map "notes"`, "0 bytes: 1 to 128"),
			wantInvalid(notes.Set(ctx, strings.Repeat("k", 129), "x"), `key-value map "notes"`, "129 bytes: 1 to 128"),
			wantInvalid(notes.Set(ctx, "\xff", "x"), `key-value map "notes"`, "UTF-8"),
			wantInvalid(notes.Set(ctx, "k", large+"x"), `key "k"`, "has 16385 bytes: at most 16384"),
			wantInvalid(notes.Set(ctx, "k", strings.Repeat("x", replay.PayloadMax)), `key "k"`, "has 1048578 bytes: at most 16384"),
			wantInvalid(replay.KV[string]("").Set(ctx, "k", "x"), "key-value map", "0 bytes"),
		)
		var unencodable *replay.PayloadError
		if err := replay.KV[any]("notes").Set(ctx, "k", func() {}); !errors.As(err, &unencodable) {
			problems = errors.Join(problems, fmt.Errorf("a function: %v", err))
		}
		for i := range 15 {
			problems = errors.Join(problems, notes.Set(ctx, fmt.Sprint("large", i), large))
		}
		problems = errors.Join(problems,
			wantInvalid(notes.Set(ctx, "sixteenth", large), `key "sixteenth"`, "all maps of an instance have at most 262144"),
			notes.Set(ctx, "large0", "small"),
			notes.Set(ctx, "sixteenth", large),
		)
		for i := range 15 {
			problems = errors.Join(problems, notes.Delete(ctx, fmt.Sprint("large", i)))
		}
		for i := range 99 {
			problems = errors.Join(problems, stock.Set(ctx, fmt.Sprint("k", i), i))
		}
		problems = errors.Join(problems,
			wantInvalid(stock.Set(ctx, "k99", 99), `key "k99"`, "at most 100"),
			stock.Set(ctx, "k98", 0),
			notes.Delete(ctx, "sixteenth"),
			stock.Set(ctx, "k99", 99),
		)
		return fmt.Sprint(len(stock.Keys(ctx)), len(notes.Keys(ctx))), problems
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationCompleted output="100 0"`)
	})
}

// Code reads what it set before, whichever coroutine set it, and a value of another type is an
// error that it can handle.
func TestKV_ReadsLastValue(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		setter := replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			if err := stock.Set(ctx, "pears", 1); err != nil {
				return 0, err
			}
			if _, err := goOn.Wait(ctx); err != nil {
				return 0, err
			}
			return 0, stock.Set(ctx, "pears", 2)
		})
		before, set, _ := stock.Get(ctx, "pears")
		if _, err := setter.Await(ctx); err != nil {
			return "", err
		}
		after, _, err := stock.Get(ctx, "pears")
		var mistyped *replay.PayloadError
		_, found, typeErr := replay.KV[string]("stock").Get(ctx, "pears")
		return fmt.Sprint(before, set, after, found, errors.As(typeErr, &mistyped)), err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationCompleted output="0 false 2 true true"`)
	})
}

// The functions of queries and of Await read values; they must not set them.
func TestKV_ReadByQueriesAndConditions(t *testing.T) {
	count := replay.Query[any, int]("count")
	in := &instance{registry: script(t, func(ctx *replay.Context) (string, error) {
		if err := count.Handle(ctx, func(any) (int, error) {
			n, _, err := stock.Get(ctx, "pears")
			return n + 10*len(stock.Keys(ctx)), err
		}); err != nil {
			return "", err
		}
		wrong := replay.Query[any, int]("wrong")
		if err := wrong.Handle(ctx, func(any) (int, error) { return 0, stock.Set(ctx, "pears", 7) }); err != nil {
			return "", err
		}
		replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			for i := range 3 {
				if _, err := goOn.Wait(ctx); err != nil {
					return 0, err
				}
				if err := stock.Set(ctx, "pears", i+1); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
		return "three", replay.Await(ctx, func() bool {
			n, _, err := stock.Get(ctx, "pears")
			return err == nil && n == 3
		})
	})}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	for want := range 3 {
		if want > 0 {
			want += 10
		}
		output, err := in.resident.Query("count", nil)
		if err != nil || string(output.GetData()) != fmt.Sprint(want) {
			t.Errorf("the query returns %s, %v; want %d", output.GetData(), err, want)
		}
		if _, err := in.resident.Query("wrong", nil); err == nil {
			t.Error("a query has set a value")
		}
		mustTurn(t, in, external("go", nil, ""))
	}
	if last := lastEvent(in); last != `OrchestrationCompleted output="three"` {
		t.Errorf("the last event is %s", last)
	}
	checkReplays(t, in)
}

// The first event of the next execution holds what the code has set, in order.
func TestPublishedState_CarriedOverInOrder(t *testing.T) {
	in := &instance{registry: programRegistry(t)}
	defer in.evict()
	mustTurn(t, in, started("publishes", 0))
	mustTurn(t, in, activityCompleted(10, nil))
	carried := in.successor.GetOrchestrationStarted()
	var got []string
	for _, attribute := range carried.Attributes {
		got = append(got, attribute.Name+"="+engine.AttributeText(attribute.Value))
	}
	for _, value := range carried.Values {
		got = append(got, value.Map+"/"+value.Key+"="+string(value.Value.Data))
	}
	const want = `amount=12.5 region=north ship-before=2026-01-01T00:00:00Z notes/pears="ripe" stock/apples=5 stock/pears=3`
	if text := strings.Join(got, " "); text != want {
		t.Errorf("carried over: %s\nwant %s", text, want)
	}
}

func TestAttribute_TextAndIn(t *testing.T) {
	type level int
	at := time.Date(2026, 3, 1, 12, 0, 0, 5, time.FixedZone("", 3600))
	attributes := map[string]string{
		"region": region.Text("north"), "urgent": urgent.Text(true), "amount": amount.Text(0.1), "ship-before": shipBefore.Text(at),
		"level": replay.Attribute[level]("level").Text(-7), "big": replay.Attribute[int64]("big").Text(math.MinInt64),
	}
	if want := "map[amount:0.1 big:-9223372036854775808 level:-7 region:north ship-before:2026-03-01T11:00:00.000000005Z urgent:true]"; fmt.Sprint(attributes) != want {
		t.Errorf("texts %v, want %s", attributes, want)
	}
	north, _ := region.In(attributes)
	isUrgent, _ := urgent.In(attributes)
	paid, _ := amount.In(attributes)
	ships, _ := shipBefore.In(attributes)
	seven, _ := replay.Attribute[level]("level").In(attributes)
	big, _ := replay.Attribute[int64]("big").In(attributes)
	if north != "north" || !isUrgent || paid != 0.1 || !ships.Equal(at) || seven != -7 || big != math.MinInt64 {
		t.Errorf("read back as %q %t %v %v %v %v", north, isUrgent, paid, ships, seven, big)
	}
	if _, ok := replay.Attribute[bool]("region").In(attributes); ok {
		t.Error("a text that is no bool was read as one")
	}
	if _, ok := replay.Attribute[time.Time]("urgent").In(attributes); ok {
		t.Error("a text that is no time was read as one")
	}
	if _, ok := region.In(nil); ok {
		t.Error("a missing attribute was found")
	}
}
