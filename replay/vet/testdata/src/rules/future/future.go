package future

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

type open struct{ paid *replay.Future[int] }

func buy(ctx *replay.Context, in string) (*replay.Future[int], error) {
	shop.Charge.Start(ctx, in)      // want `^drops the future of shop\.Charge\.Start: await it, or cancel it with Cancel$`
	_ = shop.Charge.Start(ctx, in)  // want `drops the future of shop\.Charge\.Start`
	ctx.Timer(time.Second)          // want `drops the future of ctx\.Timer`
	replay.Go(ctx, pump)            // want `drops the future of replay\.Go`
	lost := shop.Buy.Start(ctx, in) // want `drops the future of shop\.Buy\.Start`
	_ = lost
	var all, none []*replay.Future[int]
	all = append(all, shop.Charge.Start(ctx, in))
	none = append(none, shop.Charge.Start(ctx, in)) // want `drops the future of shop\.Charge\.Start`
	none = append(none, shop.Charge.Start(ctx, in)) // want `drops the future of shop\.Charge\.Start`

	_ = replay.Go(ctx, pump) // the blank identifier says that nothing awaits it
	shop.Buy.Start(ctx, in, replay.OnParentClose(replay.AbandonChild))
	kept := &open{paid: shop.Charge.Start(ctx, in)}
	kept.paid = shop.Charge.Start(ctx, in)
	canceled := shop.Approved.Subscribe(ctx)
	canceled.Cancel(ctx)
	fixed := make([]*replay.Future[int], 1)
	fixed[0] = shop.Charge.Start(ctx, in)
	returned, later := shop.Charge.Start(ctx, in), shop.Charge.Start(ctx, in)
	if _, err := later.Await(ctx); err != nil {
		return nil, err
	}
	if _, err := replay.All(ctx, append(fixed, all...)...); err != nil {
		return nil, err
	}
	return returned, nil
}

func pump(ctx *replay.Context) (int, error) { return shop.Charge.Call(ctx, "") }
