package clock

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	began := time.Now()          // want `^calls time\.Now: use ctx\.Now\(\), which is the same on every replay$`
	_ = time.Since(began)        // want `calls time\.Since: use ctx\.Now`
	_ = time.Until(began)        // want `calls time\.Until`
	time.Sleep(time.Second)      // want `calls time\.Sleep: use ctx\.Sleep or ctx\.Timer`
	_ = time.NewTimer(1)         // want `calls time\.NewTimer`
	_ = time.Tick                // want `uses time\.Tick`
	_ = ctx.Now().Local()        // want `calls time\.Time\.Local: each node has its own time zone`
	_ = ctx.Now().In(time.Local) // want `uses time\.Local`
	clock := time.Now            // want `uses time\.Now`
	_ = clock()
	first := func() time.Time { return time.Now() } // want `calls time\.Now`
	_ = first

	// Arithmetic with ctx.Now is allowed.
	began = ctx.Now()
	if ctx.Now().Sub(began) > time.Minute || began.Add(time.Hour).Before(ctx.Now().UTC()) {
		return 0, ctx.Sleep(time.Second)
	}
	return 0, nil
}

type saga struct{ at time.Time }

func (s *saga) run(ctx *replay.Context) {
	s.at = time.Now() // want `calls time\.Now`
}

var definition = shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
	_ = time.Now() // want `calls time\.Now`
	step := func(ctx *replay.Context) (int, error) {
		_ = time.Now() // want `calls time\.Now`
		return 0, nil
	}
	_, err := replay.Map(ctx, 1, []string{in}, func(ctx *replay.Context, in string) (int, error) {
		time.Sleep(1) // want `calls time\.Sleep`
		return 0, nil
	})
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		_ = time.Now() // want `calls time\.Now`
		return err
	})
	if err != nil {
		return 0, err
	}
	return replay.Go(ctx, step).Await(ctx)
})

// An activity may read the clock.
func charge(ctx context.Context, in string) (int, error) {
	time.Sleep(time.Second)
	return time.Now().Second(), nil
}

func definitions() []replay.Definition {
	now := time.Now()
	return []replay.Definition{
		shop.Charge.Bind(charge),
		shop.Charge.Bind(func(ctx context.Context, in string) (int, error) { return time.Now().Second(), nil }),
		shop.Buy.Bind(buy),
		shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			return int(ctx.Now().Sub(now)), nil
		}),
		shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
			return int(ctx.Now().Sub(time.Now())), nil // want `calls time\.Now`
		}),
	}
}
