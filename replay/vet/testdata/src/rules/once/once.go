package once

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	var at time.Time
	n, err := replay.SideEffect(ctx, "price", func() (n int, err error) {
		at = time.Now()                    // want `^writes at, which is declared outside of the function that replay\.SideEffect calls: on replay the function is not called; return the value, and make durable calls outside the function$`
		n, err = shop.Charge.Call(ctx, in) // want `calls shop\.Charge\.Call in the function that replay\.SideEffect calls`
		var mu sync.Mutex
		mu.Lock()
		seen := map[string]bool{}
		seen[in] = true
		n++
		return n, errors.Join(err, os.Remove("price"))
	})
	_ = at
	if err != nil {
		return n, err
	}
	return replay.SideEffect(ctx, "price", price)
}

func price() (int, error) { return time.Now().Day(), nil }
