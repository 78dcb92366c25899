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

// padded is a text with an encoding of that many bytes, which is shorter after it was decoded.
type padded struct {
	text   string
	length int
}

func (p padded) MarshalJSON() ([]byte, error) {
	return []byte(`"` + p.text + strings.Repeat(" ", max(p.length-2-len(p.text), 0)) + `"`), nil
}

func (p *padded) UnmarshalJSON(data []byte) error {
	p.text = strings.TrimRight(string(data[1:len(data)-1]), " ")
	return nil
}

// setPadded sets values of padded texts, and returns which calls were rejected. A text that ends
// with a minus is deleted instead.
func setPadded(ctx *replay.Context, length func(string) int, texts ...string) (outcome string, err error) {
	pads := replay.KV[padded]("pads")
	for _, text := range texts {
		if key, deletes := strings.CutSuffix(text, "-"); deletes {
			if err := pads.Delete(ctx, key); err != nil {
				return outcome, err
			}
			continue
		}
		err := pads.Set(ctx, text, padded{text, length(text)})
		switch {
		case errors.As(err, new(*replay.InvalidError)), errors.As(err, new(*replay.PayloadError)):
			outcome += text + " "
		case err != nil:
			return outcome, err
		}
	}
	return outcome, nil
}

// A history replays with code that encodes recorded values so that they exceed a bound, and calls
// that were rejected are rejected again.
func TestKV_RecordedValueWinsOverBounds(t *testing.T) {
	lengthOf := func(of map[string]int) func(string) int {
		return func(text string) int { return max(of[text], 16000) }
	}
	texts := strings.Fields("a b c d e f g h i j k l m n o")
	for name, today := range map[string]map[string]int{
		"same": nil, "one value": {"a": 16385}, "all maps": {"a": 16384, "b": 16384, "c": 16384, "d": 16384, "r": 40000},
		"beyond a payload": {"b": 3 << 20, "y": 2 << 20}, "each": {"a": 17000, "o": 17000, "x": 17000, "y": 17000, "z": 20000},
	} {
		t.Run(name, func(t *testing.T) {
			code := func(length func(string) int, patched bool) *engine.Registry {
				return script(t, func(ctx *replay.Context) (string, error) {
					if patched && replay.Patched(ctx, "p") {
						return "", errors.New("patched")
					}
					// z is rejected; r is too, but not after a deletion.
					first, err := setPadded(ctx, length, append(texts, "z", "x", "r", "r", "x-", "r", "z")...)
					if err != nil {
						return "", err
					}
					if _, err := goOn.Wait(ctx); err != nil {
						return "", err
					}
					second, err := setPadded(ctx, length, "z", "r-", "y", "z")
					return first + "/ " + second, err
				})
			}
			then := lengthOf(map[string]int{"z": 20000, "x": 10, "r": 16384})
			in := &instance{registry: code(then, false)}
			defer in.evict()
			mustTurn(t, in, started("script", nil))
			mustTurn(t, in, external("go", nil, ""))
			const want = `OrchestrationCompleted output="z r r z / z z "`
			if last := lastEvent(in); last != want {
				t.Fatalf("recorded %s", last)
			}
			grown := map[string]int{"z": 20000, "r": 16384}
			for text, length := range today {
				grown[text] = length
			}
			for _, patched := range []bool{false, true} {
				for _, registry := range []*engine.Registry{code(lengthOf(grown), patched), withEncryption(t, code(lengthOf(grown), patched))} {
					again := &instance{registry: registry, history: in.history}
					x := engine.NewExecution("i", 1, registry, nil)
					defer x.Evict()
					if err := x.Replay(again.sealedHistory(in.history)); err != nil || !x.Ended() {
						t.Errorf("patched %t: ended %t, %v", patched, x.Ended(), err)
					}
				}
			}
		})
	}
}

// After a replay, the maps have the recorded sizes, whatever today's encoding is.
func TestKV_RecordedSizesCount(t *testing.T) {
	code := func(length int) *engine.Registry {
		return script(t, func(ctx *replay.Context) (string, error) {
			of := func(string) int { return length }
			if _, err := setPadded(ctx, of, strings.Fields("a b c d e f g h i j")...); err != nil {
				return "", err
			}
			if _, err := goOn.Wait(ctx); err != nil {
				return "", err
			}
			rejected, err := setPadded(ctx, func(string) int { return 16384 }, strings.Fields("k l m n o p q r s t")...)
			return rejected, err
		})
	}
	old := &instance{registry: code(1000)}
	defer old.evict()
	mustTurn(t, old, started("script", nil))
	// 10,060 bytes with names and keys leave room for 15 values of 16 KiB; of today's encoding, for
	// 9.
	in := &instance{registry: code(10000), history: old.history}
	defer in.evict()
	mustTurn(t, in, external("go", nil, ""))
	if last := lastEvent(in); last != `OrchestrationCompleted output=""` {
		t.Error(last)
	}
	if values := in.history[1].GetValueSet().GetValue().GetData(); len(values) != 1000 {
		t.Errorf("%d bytes", len(values))
	}
}

// Strictly, the larger encoding is a mismatch, not an error for the code.
func TestKV_GrownValueIsMismatchIfStrict(t *testing.T) {
	code := func(length int) *engine.Registry {
		return script(t, func(ctx *replay.Context) (string, error) {
			return setPadded(ctx, func(string) int { return length }, "a")
		})
	}
	in := &instance{registry: code(16384)}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	x := engine.NewExecution("i", 1, code(16385).WithStrict(true), nil)
	defer x.Evict()
	var mismatch *replay.Mismatch
	if err := x.Replay(eventSeq(in.history)); !errors.As(err, &mismatch) || mismatch.Kind != replay.ScheduledDifferently || !mismatch.Strict || mismatch.EventID != 2 {
		t.Errorf("%v", err)
	}
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
