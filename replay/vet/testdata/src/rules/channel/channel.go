package channel

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	c := make(chan int, 1)
	c <- 1               // want `^sends on a channel: use futures with replay\.Next or replay\.Race, or an event$`
	<-c                  // want `receives from a channel`
	if n := <-c; n > 0 { // want `receives from a channel`
		return n, nil
	}
	for range c { // want `receives from a channel`
	}
	select { // want `selects among channels`
	case c <- 2:
	case n, ok := <-c:
		_, _ = n, ok
	case <-c:
		c <- 3 // want `sends on a channel`
	}
	close(c) // want `closes a channel`
	for i := range 3 {
		_ = i
	}
	paid, late := shop.Charge.Start(ctx, in), ctx.Timer(time.Hour)
	return replay.Race(ctx, paid, late)
}
