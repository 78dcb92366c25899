package replaying

import (
	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	if !ctx.Replaying() { // want `^calls shop\.Charge\.Call, depending on ctx\.Replaying\(\): code that depends on ctx\.Replaying\(\) contradicts its history`
		return shop.Charge.Call(ctx, in)
	}
	if ctx.Replaying() { // want `calls ctx\.Sleep, depending on`
		in = ""
	} else {
		return 0, ctx.Sleep(1)
	}
	if !ctx.Replaying() {
		count(in)
	}
	return 0, nil
}

func count(string) {}
