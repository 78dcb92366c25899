// Package dynamic calls through interfaces and function values.
package dynamic

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/prices"
	"rules/shop"
)

type pricer interface{ price(item string) int }

type fixed map[string]int

func (f fixed) price(item string) int { return f[item] }

type live struct{}

func (live) price(item string) int { return prices.Price(item) } // want price:`clock: calls prices\.Price`

type doubled struct{ pricer }

func total(p pricer, items ...string) int { // want total:`clock: calls p\.price \(dynamic\.go:\d+\), which may call live\.price, which calls prices\.Price`
	sum := 0
	for _, item := range items {
		sum += p.price(item)
	}
	return sum
}

// What orchestration code passes hides what report passes.
func sum(p pricer, items ...string) int { return p.price(items[0]) }

func report() int { return sum(live{}, "") + Sum(live{}) }

// What the activity passes does not count.
func worth(p pricer, item string) int { return p.price(item) }

func (d *desk) quote(item string) int { return worth(d.spare, item) + Sum(d.spare) }

// Other packages may pass other values.
func Sum(p pricer) int { return p.price("") }

type desk struct {
	pricer  pricer
	spare   pricer
	faked   pricer // replaced by a test
	unknown pricer
	now     func() time.Time
	pure    func() time.Time
	all     []pricer
	byName  map[string]pricer
	steps   []func() int
}

func newDesk(p pricer) *desk {
	d := &desk{pricer: p, spare: fixed{}, now: time.Now, pure: func() time.Time { return time.Time{} }, all: []pricer{fixed{}}}
	d.byName = map[string]pricer{"live": live{}}
	d.faked = fixed{}
	d.all = append(d.all, &live{})
	d.steps = append(d.steps, func() int { return time.Now().Second() })
	return d
}

func choose(isLive bool) (pricer, bool) {
	if isLive {
		return live{}, true
	}
	return fixed{}, false
}

func (d *desk) buy(ctx *replay.Context, in string) (int, error) {
	_ = d.pricer.price(in) // want `^calls d\.pricer\.price, which may call live\.price, which calls prices\.Price \(dynamic\.go:\d+\), which calls hour .*: use ctx\.Now`
	_ = d.spare.price(in)
	_ = d.faked.price(in)
	_ = d.unknown.price(in)
	_ = d.pricer.price(in) //tenuto:allow only shown to people
	_ = d.now()            // want `^calls d\.now, which may call time\.Now: use ctx\.Now`
	_ = d.pure()
	for _, p := range d.all {
		_ = p.price(in) // want `calls p\.price, which may call live\.price`
	}
	_ = d.byName[in].price(in)            // want `calls d\.byName\[in\]\.price, which may call live\.price`
	_ = d.steps[0]()                      // want `calls d\.steps\[0\], which may call the function at dynamic\.go:\d+, which calls time\.Now`
	_ = total(live{}, in)                 // want `calls total, which calls p\.price`
	_ = sum(fixed{}, in) + d.quote(in)    // fine
	_ = doubled{pricer: live{}}.price(in) // want `calls doubled{…}\.price, which may call live\.price`
	chosen, ok := choose(len(in) > 1)
	_, _ = chosen.price(in), ok // want `calls chosen\.price, which may call live\.price`
	var local pricer = fixed{}
	_ = local.price(in)
	_ = pricer(fixed{}).price(in) + pricer(live{}).price(in) // want `calls pricer\(live{}\)\.price, which may call live\.price`
	_ = generic(live{}, in)                                  // want `calls generic, which calls p\.price`
	named := prices.Approved
	_ = named()
	return shop.Charge.Call(ctx, in)
}

func generic[P pricer](p P, item string) int { return p.price(item) }

var clock func() time.Time

func init() { clock = time.Now }

func definitions(ctx context.Context) []replay.Definition {
	hour := func() int { return time.Now().Hour() }
	return []replay.Definition{
		shop.Buy.Bind(newDesk(live{}).buy),
		shop.Charge.Bind(charge),
		shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			_ = clock()        // want `calls clock, which may call time\.Now`
			return hour(), nil // want `calls hour, which may call the function at dynamic\.go:\d+, which calls time\.Now`
		}),
		shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			minute := func() int { return time.Now().Minute() } // want `calls time\.Now`
			return minute(), nil
		}),
	}
}

func charge(ctx context.Context, in string) (int, error) {
	return worth(live{}, in), nil
}
