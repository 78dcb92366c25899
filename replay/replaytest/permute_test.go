package replaytest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// inArrivalOrder returns the results in the order of arrival.
func inArrivalOrder(ctx *replay.Context, in string) (string, error) {
	var order []string
	var futures []*replay.Future[string]
	for _, part := range strings.Split(in, " ") {
		futures = append(futures, replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			output, err := work.Call(ctx, part)
			order = append(order, output)
			return output, err
		}))
	}
	_, err := replay.All(ctx, futures...)
	return strings.Join(order, " "), err
}

// outcomes runs a test in its permutations and returns their outcomes.
func outcomes(t *testing.T, runs int, input string, definitions ...replay.Definition) []string {
	t.Helper()
	var all []string
	Permute(t, runs, func(t *testing.T, env *Env) struct{} {
		Stub(env, work, echo)
		output, err := Call(env, program, "i", input)
		if err != nil {
			t.Error(err)
		}
		all = append(all, output)
		return struct{}{}
	}, definitions...)
	return all
}

func TestPermute_TriesAllOrdersIfFew(t *testing.T) {
	got := outcomes(t, 100, "a b c", program.Bind(inArrivalOrder))
	if got[0] != "a b c" {
		t.Errorf("first %q", got[0])
	}
	slices.Sort(got)
	if want := []string{"a b c", "a c b", "b a c", "b c a", "c a b", "c b a"}; !slices.Equal(got, want) {
		t.Errorf("orders %q", got)
	}
}

func TestPermute_SamplesDeterministicallyIfMany(t *testing.T) {
	first := outcomes(t, 8, "a b c d e f", program.Bind(inArrivalOrder))
	if again := outcomes(t, 8, "a b c d e f", program.Bind(inArrivalOrder)); !slices.Equal(again, first) {
		t.Errorf("orders %q and then %q", first, again)
	}
	slices.Sort(first)
	if different := len(slices.Compact(first)); len(first) != 8 || different < 6 {
		t.Errorf("%d orders, %d different", len(first), different)
	}
}

func TestPermute_PermutesEndsOfChildren(t *testing.T) {
	parent := func(ctx *replay.Context, in string) (string, error) {
		var children []replay.Awaitable
		for _, part := range strings.Split(in, " ") {
			children = append(children, helper.Start(ctx, part))
		}
		winner, err := replay.Race(ctx, children...)
		return fmt.Sprint(winner), err
	}
	child := func(_ *replay.Context, in string) (string, error) { return in, nil }
	got := outcomes(t, 100, "a b c", program.Bind(parent), helper.Bind(child))
	slices.Sort(got)
	if different := slices.Compact(got); !slices.Equal(different, []string{"0", "1", "2"}) {
		t.Errorf("winners %q", different)
	}
}

// Activities of different duration arrive by time.
func TestPermute_KeepsTimeOrder(t *testing.T) {
	var all []string
	Permute(t, 10, func(t *testing.T, env *Env) string {
		Stub(env, work, func(_ context.Context, in string) (string, error) {
			pause, err := time.ParseDuration(in)
			time.Sleep(pause)
			return in, err
		})
		output, err := Call(env, program, "i", "3s 1s 2s")
		if err != nil {
			t.Error(err)
		}
		all = append(all, output)
		return output
	}, program.Bind(inArrivalOrder))
	if !slices.Equal(all, []string{"1s 2s 3s"}) {
		t.Errorf("arrived %q", all)
	}
}

func TestPermute_ShowsBothOrders(t *testing.T) {
	run := func(prescribed ...int) (*order, string) {
		o := &order{prescribed: prescribed}
		var outcome string
		text := failuresOf(t, func(tb testing.TB) {
			env := newEnv(tb, t, o, []replay.Definition{program.Bind(inArrivalOrder)})
			Stub(env, work, echo)
			outcome, _ = Call(env, program, "i", "a b")
		})
		if text != "" {
			t.Fatalf("failed: %s", text)
		}
		return o, outcome
	}
	defaultOrder, first := run()
	other, second := run(1)
	if defaultOrder.String() != "0" || other.String() != "1" || first != "a b" || second != "b a" {
		t.Fatalf("order %v yields %q, %v yields %q", defaultOrder, first, other, second)
	}
	text := describeDifference(defaultOrder, []byte(first), other, []byte(second))
	wantFailure(t, text, "depends on the order", "a b\nwith order \"0\"\n    1. work of i (event 2), of 2 arrivals",
		"b a\nwith order \"1\"\n    1. work of i (event 3), of 2 arrivals")
}

// check is called with a recorder that may fail.
func TestPermute_FailsIfOutcomesDiffer(t *testing.T) {
	p := &permutation{t: t}
	first := &order{choices: []choice{{0, 2, "x"}}}
	p.check(t, first, []string{"a"})
	p.check(t, &order{choices: []choice{{1, 2, "y"}}}, []string{"a"})
	if p.first != first || string(p.outcome) != "[\n  \"a\"\n]" {
		t.Errorf("first outcome %s", p.outcome)
	}
	text := failuresOf(t, func(tb testing.TB) { p.check(tb, &order{choices: []choice{{1, 2, "y"}}}, []string{"b"}) })
	wantFailure(t, text, "depends on the order", `"a"`, `"b"`, `with order "1"`)
}

func TestParseOrder_RepeatsOrder(t *testing.T) {
	prescribed, err := parseOrder("0-2-1")
	if err != nil || !slices.Equal(prescribed, []int{0, 2, 1}) {
		t.Errorf("%v, %v", prescribed, err)
	}
	for _, text := range []string{"", "x", "1-", "-1", "1--2"} {
		if _, err := parseOrder(text); err == nil {
			t.Errorf("%q is accepted as an order", text)
		}
	}
	*orderFlag = "2-1"
	defer func() { *orderFlag = "" }()
	if got := outcomes(t, 100, "a b c", program.Bind(inArrivalOrder)); !slices.Equal(got, []string{"c b a"}) {
		t.Errorf("orders %q", got)
	}
}
