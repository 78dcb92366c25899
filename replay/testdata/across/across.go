// Package across calls a package that reads the clock.
package across

import (
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/testdata/across/prices"
)

var charge = replay.Activity[int, string]("charge")

// Buy is an orchestration.
func Buy(ctx *replay.Context, item string) (string, error) {
	price := prices.Of(item)
	return charge.Call(ctx, price)
}
