package replaytest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	seedFlag  = flag.Uint64("replaytest.seed", 1, "seed of the random orders of Permute")
	orderFlag = flag.String("replaytest.order", "", "the only order that Permute tries, as printed by a failure")
)

// Permute runs a test repeatedly, each time in its own Env and with another order of
// concurrent arrivals: results of activities that take equally long, and ends of children.
// runs is the maximum number of runs. If it covers all orders, all are tried. Otherwise
// Permute tries the default order and random ones, the same each time; -replaytest.seed
// selects others.
//
// run returns a value that must not depend on the order, such as an output or the calls of an
// activity. If two values differ as JSON, the test fails and prints both orders. Each order is
// a subtest. A failure prints its order, and -replaytest.order repeats only that one.
//
// Timers and events are not permuted: time orders them.
func Permute[T any](t *testing.T, runs int, run func(t *testing.T, env *Env) T, definitions ...replay.Definition) {
	t.Helper()
	p := &permutation{t: t}
	tryOrder := func(o *order) {
		t.Run("order", func(t *testing.T) {
			env := newEnv(t, t, o, definitions)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replaytest: to repeat only this order: -replaytest.order=%q\n%s", o, o.describe())
				}
			})
			p.check(t, o, run(t, env))
		})
	}
	if *orderFlag != "" {
		prescribed, err := parseOrder(*orderFlag)
		if err != nil {
			t.Fatalf("replaytest: %v", err)
		}
		tryOrder(&order{prescribed: prescribed})
		return
	}
	p.tryAll(runs, tryOrder)
}

// A permutation is a test that is run in several orders.
type permutation struct {
	t       *testing.T
	first   *order // the first with an outcome
	outcome []byte
}

// tryAll tries all orders if runs covers them, otherwise the default one and random ones. It stops
// at the first failure.
func (p *permutation) tryAll(runs int, try func(*order)) {
	defaultOrder := new(order)
	try(defaultOrder)
	if defaultOrder.countOrders(runs) > runs {
		for i := 1; i < runs && !p.t.Failed(); i++ {
			try(&order{random: rand.New(rand.NewPCG(*seedFlag, uint64(i)))})
		}
		return
	}
	last := defaultOrder
	for i := 1; i < runs && !p.t.Failed(); i++ {
		prescribed, more := last.nextChoices()
		if !more {
			return
		}
		last = &order{prescribed: prescribed}
		try(last)
	}
}

// check compares an outcome with the first one.
func (p *permutation) check(t testing.TB, o *order, outcome any) {
	t.Helper()
	text, err := json.MarshalIndent(outcome, "", "  ")
	if err != nil {
		t.Fatalf("replaytest: outcome: %v", err)
	}
	switch {
	case t.Failed():
	case p.first == nil:
		p.first, p.outcome = o, text
	case !bytes.Equal(p.outcome, text):
		t.Error(describeDifference(p.first, p.outcome, o, text))
	}
}

func describeDifference(first *order, outcome []byte, o *order, other []byte) string {
	return fmt.Sprintf("replaytest: the outcome depends on the order of arrivals.\n%s\nwith order %q\n%sand\n%s\nwith order %q\n%s",
		outcome, first, first.describe(), other, o, o.describe())
}
