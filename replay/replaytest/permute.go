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
	seedFlag  = flag.Uint64("replaytest.seed", 1, "what chance begins with where Permute leaves orders to it")
	orderFlag = flag.String("replaytest.order", "", "the one order that Permute tries, as a failure has printed it")
)

// Permute runs a test again and again, each time in a world of its own and with
// another order of what arrives at the same moment: results of activities that
// take equally long, ends of children. There are at most that many runs. If that
// is enough for all orders, all are tried, and otherwise the usual one and others
// by chance, the same each time; -replaytest.seed chooses others.
//
// run returns what must not depend on the order: an output, the calls of an
// activity, nothing. Outcomes that differ, as JSON, fail the test, with both
// orders. Each order is a subtest, so what else must hold is checked as usual. A
// failure prints the order, and -replaytest.order repeats it alone.
//
// Timers and events are not permuted: their order is that of their times.
func Permute[T any](t *testing.T, runs int, run func(t *testing.T, env *Env) T, definitions ...replay.Definition) {
	t.Helper()
	p := &permutation{t: t}
	tryOrder := func(o *order) {
		t.Run("order", func(t *testing.T) {
			env := newEnv(t, t, o, definitions)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replaytest: to repeat this order alone: -replaytest.order=%q\n%s", o, o.describe())
				}
			})
			p.judge(t, o, run(t, env))
		})
	}
	if *orderFlag != "" {
		given, err := parseOrder(*orderFlag)
		if err != nil {
			t.Fatalf("replaytest: %v", err)
		}
		tryOrder(&order{given: given})
		return
	}
	p.tryAll(runs, tryOrder)
}

// A permutation is a test that is run in several orders.
type permutation struct {
	t       *testing.T
	first   *order // that came to an outcome
	outcome []byte
}

// tryAll tries all orders if there are not more than that, and otherwise some,
// until one fails.
func (p *permutation) tryAll(runs int, try func(*order)) {
	usual := new(order)
	try(usual)
	if usual.many(runs) > runs {
		for i := 1; i < runs && !p.t.Failed(); i++ {
			try(&order{random: rand.New(rand.NewPCG(*seedFlag, uint64(i)))})
		}
		return
	}
	last := usual
	for i := 1; i < runs && !p.t.Failed(); i++ {
		given, more := last.next()
		if !more {
			return
		}
		last = &order{given: given}
		try(last)
	}
}

// judge compares an outcome with the first.
func (p *permutation) judge(t testing.TB, o *order, outcome any) {
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
		t.Error(differs(p.first, p.outcome, o, text))
	}
}

func differs(first *order, outcome []byte, o *order, other []byte) string {
	return fmt.Sprintf("replaytest: the outcome depends on the order of arrivals.\n%s\nwith order %q\n%sand\n%s\nwith order %q\n%s",
		outcome, first, first.describe(), other, o, o.describe())
}
