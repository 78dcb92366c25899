package shared

import (
	"strings"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

type buyer struct {
	count int
	seen  map[string]bool
	name  string
}

// buy is bound as it is: all instances on a node have the same buyer.
func (b *buyer) buy(ctx *replay.Context, in string) (int, error) {
	b.count++         // want `^writes b\.count of the receiver of an orchestration: other instances share it and replays repeat it; keep it in a variable of the orchestration, in its input or in an activity$`
	b.seen[in] = true // want `writes b\.seen\[in\] of the receiver`
	own := &buyer{name: b.name}
	own.step(ctx)
	return shop.Charge.Call(ctx, b.name)
}

// step has a receiver of the instance's own.
func (b *buyer) step(ctx *replay.Context) { b.count++ }

func definitions(prefix string) []replay.Definition {
	total, rate, mode := 0, 1, "a"
	rate = 2
	b := &buyer{}
	definitions := []replay.Definition{
		shop.Buy.Bind(b.buy),
		shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			total++   // want `writes total, which is declared outside of the orchestration`
			b.count++ // want `writes b, which is declared outside of the orchestration`
			sum, n := 0, rate
			add := func(i int) { sum += i }
			add(n)
			done := replay.Go(ctx, func(ctx *replay.Context) (int, error) {
				sum++
				return sum, nil
			})
			if mode == "a" { // want `reads mode, which is changed outside of the orchestration \(shared\.go:\d+\)`
				return sum, nil
			}
			return done.Await(ctx)
		}),
	}
	for _, name := range strings.Fields(prefix) {
		definitions = append(definitions, shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			return shop.Charge.Call(ctx, name+in)
		}))
	}
	mode = "b"
	return definitions
}

var places = replay.NewSemaphore(3)

func limited(ctx *replay.Context, in string) (int, error) {
	if err := places.Acquire(ctx); err != nil { // want `uses places, which is declared outside of the orchestration and belongs to one instance`
		return 0, err
	}
	own := replay.NewSemaphore(3)
	defer own.Release(ctx)
	return 0, own.Acquire(ctx)
}
