package capture

import (
	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	paid := replay.Go(ctx, func(inner *replay.Context) (int, error) {
		return shop.Charge.Call(ctx, in) // want `^uses ctx, the \*replay\.Context of a function around this one: use the \*replay\.Context that this function is given$`
	})
	sent := replay.Go(ctx, func(*replay.Context) (int, error) {
		return shop.Charge.Call(ctx, in) // want `uses ctx, the \*replay\.Context of a function around this one`
	})
	right := replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		each := func(s string) (int, error) { return shop.Charge.Call(ctx, s) }
		inner, cancel := replay.WithCancel(ctx)
		defer cancel()
		if _, err := shop.Charge.Call(inner, in); err != nil {
			return 0, err
		}
		return each(in)
	})
	ctx.OnClose(func(_ *replay.Context, err error) error {
		return ctx.Sleep(1) // want `uses ctx, the \*replay\.Context of a function around this one`
	})
	_, err := replay.All(ctx, paid, sent, right)
	return 0, err
}
