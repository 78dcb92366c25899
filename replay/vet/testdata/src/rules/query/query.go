package query

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func buy(ctx *replay.Context, in string) (int, error) {
	paid, asked := 0, 0
	err := shop.State.Handle(ctx, func(string) (int, error) {
		asked++                                            // want `^writes asked, which is declared outside of the function that answers a query: queries only read, between turns`
		if _, err := shop.Approved.Wait(ctx); err != nil { // want `calls shop\.Approved\.Wait in the function that answers a query`
			return 0, err
		}
		return paid + time.Now().Second() - time.Now().Second(), nil // nobody records an answer
	})
	if err != nil {
		return 0, err
	}
	return asked, shop.Change.Handle(ctx, func(n int) error {
		if n < 0 {
			return errors.New("negative")
		}
		paid = n // want `writes paid, which is declared outside of the function that validates an update`
		return nil
	}, func(ctx *replay.Context, n int) (int, error) {
		paid = n
		return shop.Charge.Call(ctx, in)
	})
}
