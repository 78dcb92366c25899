package waits

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	ctx.Sleep(time.Hour)     // want `^drops the error of ctx\.Sleep: handle it; otherwise the code continues after a cancel or a timeout$`
	_ = ctx.Sleep(time.Hour) // want `drops the error of ctx\.Sleep`
	_ = (ctx.Sleep(1))       // want `drops the error of ctx\.Sleep`
	for {
		(ctx.Sleep(time.Hour)) // want `drops the error of ctx\.Sleep`
		break
	}
	yes, _ := shop.Approved.Wait(ctx)            // want `drops the error of shop\.Approved\.Wait`
	_, _ = shop.Approved.WaitFor(ctx, time.Hour) // want `drops the error of shop\.Approved\.WaitFor`
	var paid, _ = shop.Charge.Call(ctx, in)      // want `drops the error of shop\.Charge\.Call`
	shop.Buy.Call(ctx, in)                       // want `drops the error of shop\.Buy\.Call`
	a, b := shop.Charge.Start(ctx, in), shop.Charge.Start(ctx, in)
	winner, _ := replay.Race(ctx, a, b) // want `drops the error of replay\.Race`
	first, _ := replay.Next(ctx, a, b)  // want `drops the error of replay\.Next`
	_, _ = replay.All(ctx, a, b)        // want `drops the error of replay\.All`
	_, _ = replay.AllResults(ctx, a, b) // want `drops the error of replay\.AllResults`
	sum, _ := a.Await(ctx)              // want `drops the error of a\.Await`
	_, _ = b.AwaitFor(ctx, time.Hour)   // want `drops the error of b\.AwaitFor`
	_ = replay.AwaitUpdates(ctx)        // want `drops the error of replay\.AwaitUpdates`
	slots := replay.NewSemaphore(1)
	slots.Acquire(ctx)                                                                                    // want `drops the error of slots\.Acquire`
	replay.Map(ctx, 1, []string{in}, func(ctx *replay.Context, in string) (int, error) { return 0, nil }) // want `drops the error of replay\.Map`
	_ = yes
	return winner + first + sum + paid, nil
}

func checked(ctx *replay.Context, in string) (int, error) {
	if err := ctx.Sleep(time.Hour); err != nil {
		return 0, err
	}
	err := ctx.Sleep(time.Hour)
	if _, err := shop.Charge.Call(ctx, in); err != nil {
		ctx.Log().Warn("not paid", "err", err)
	}
	_ = ctx.Sleep(time.Hour) //tenuto:allow the next wait returns the error again
	return replay.Race(ctx, shop.Charge.Start(ctx, in), ctx.Timer(0), must(shop.Approved.Subscribe(ctx), err))
}

func must[T any](value T, err error) T { return value }

// What does not wait may be ignored.
func ignored(ctx *replay.Context, in string) {
	canceled := shop.Charge.Start(ctx, in)
	canceled.Cancel(ctx)
	_, _ = canceled.Await(ctx) // only for its end
	_ = replay.SetStatus(ctx, in)
	_ = shop.Buy.Chain(ctx, in)
	value, _ := replay.SideEffect(ctx, "in", func() (string, error) { return in, nil })
	replay.NewSemaphore(1).Release(ctx)
	_ = value
	for range replay.AsCompleted(ctx, shop.Charge.Start(ctx, in)) {
		break
	}
}

// Cancellation does not reach clean-up.
func cleanUp(ctx *replay.Context, in string) {
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		_, _ = shop.Charge.Call(ctx, in)
		return nil
	})
	ctx.OnClose(notify)
	replay.NewSaga(ctx).Compensate(ctx, func(c *replay.Context) error {
		_, _ = shop.Charge.Call(c, in)
		_ = ctx.Sleep(1) // want `drops the error of ctx\.Sleep` `uses ctx, the \*replay\.Context of a function around this one`
		return nil
	})
	protected := replay.WithoutCancel(ctx)
	_ = protected.Sleep(time.Second)
	_, _ = shop.Charge.Call(protected, in)
	_, _ = shop.Charge.Call(replay.WithoutCancel(ctx), in)
}

func notify(ctx *replay.Context, err error) error {
	_, _ = shop.Charge.Call(ctx, "")
	limited, cancel := replay.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = shop.Charge.Call(limited, "") // want `drops the error of shop\.Charge\.Call`
	return nil
}
