package goroutine

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	go notify() // want `^starts a goroutine: use replay\.Go or replay\.Map, which run coroutines in a fixed order$`
	go func() { // want `starts a goroutine`
		time.Sleep(1)
	}()
	background() // want `calls background, which starts a goroutine \(goroutine\.go:\d+\): use replay\.Go`
	return replay.Go(ctx, func(ctx *replay.Context) (int, error) { return shop.Charge.Call(ctx, in) }).Await(ctx)
}

func notify() { time.Sleep(1) }

func background() { // want background:`^goroutine: starts a goroutine \(goroutine\.go:\d+\)$`
	go notify()
}
