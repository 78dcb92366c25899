package shared

import (
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

// A test may watch.
func TestBuy(t *testing.T) {
	runs := 0
	shop.Buy.Bind(func(ctx *replay.Context, in string) (int, error) {
		runs++
		return replay.SideEffect(ctx, "run", func() (int, error) {
			runs++
			return runs, nil
		})
	})
	if runs > 0 {
		t.Error(runs)
	}
}
