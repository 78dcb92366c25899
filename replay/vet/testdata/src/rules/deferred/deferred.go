package deferred

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/prices"
	"rules/shop"
)

type bus interface{ Close(ctx *replay.Context) }

func buy(ctx *replay.Context, in string, b bus) (int, error) {
	defer shop.Charge.Call(ctx, in) // want `^calls shop\.Charge\.Call in a deferred function: deferred functions also run when the instance is evicted, where durable calls do nothing; use ctx\.OnClose or replay\.NewSaga$`
	defer func() {
		if err := prices.Pay(ctx, in); err != nil { // want `calls prices\.Pay in a deferred function, which calls shop\.Charge\.Call`
			ctx.Log().Warn("not paid")
		}
	}()
	defer prices.Pay(ctx, in) // want `calls prices\.Pay in a deferred function`
	defer b.Close(ctx)        // want `calls b\.Close in a deferred function`

	places := replay.NewSemaphore(1)
	defer places.Release(ctx)
	inner, cancel := replay.WithTimeout(ctx, time.Second)
	defer cancel()
	paid := shop.Charge.Start(inner, in)
	defer paid.Cancel(ctx)
	defer ctx.Log().Info("done")
	defer note(shop.Charge.Call(ctx, in)) // the argument is evaluated here, not on return
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		_, err = shop.Charge.Call(ctx, in)
		return err
	})
	return paid.Await(ctx)
}

func note(int, error) {}
