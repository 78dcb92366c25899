package again

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

func statement(ctx *replay.Context, in string) (int, error) {
	shop.Buy.ContinueAsNew(ctx, in) // want `^drops the error of shop\.Buy\.ContinueAsNew: return it from the orchestration, which otherwise does not continue as new$`
	return 0, nil
}

func blank(ctx *replay.Context, in string) (int, error) {
	_ = shop.Buy.ContinueAsNew(ctx, in)           // want `drops the error of shop\.Buy\.ContinueAsNew`
	var _ error = shop.Buy.ContinueAsNew(ctx, in) // want `drops the error of shop\.Buy\.ContinueAsNew`
	defer shop.Buy.ContinueAsNew(ctx, in)         // want `drops the error of shop\.Buy\.ContinueAsNew`
	return 0, nil
}

func onlyLogged(ctx *replay.Context, in string) (int, error) {
	if err := shop.Buy.ContinueAsNew(ctx, in); err != nil { // want `drops the error of shop\.Buy\.ContinueAsNew`
		ctx.Log().Error("again", "err", err, "text", err.Error(), "is", errors.Is(err, errors.ErrUnsupported))
	}
	if shop.Buy.ContinueAsNew(ctx, in) != nil { // want `drops the error of shop\.Buy\.ContinueAsNew`
		return 0, nil
	}
	lost := shop.Buy.ContinueAsNew(ctx, in) // want `drops the error of shop\.Buy\.ContinueAsNew`
	_ = lost
	text := fmt.Sprint(shop.Buy.ContinueAsNew(ctx, in)) // want `drops the error of shop\.Buy\.ContinueAsNew`
	return len(text), nil
}

// An earlier return of the same variable is that of another error.
func reused(ctx *replay.Context, in string) (int, error) {
	paid, err := shop.Charge.Call(ctx, in)
	if err != nil {
		return 0, err
	}
	err = shop.Buy.ContinueAsNew(ctx, in) // want `drops the error of shop\.Buy\.ContinueAsNew`
	return paid, nil
}

func viaCaller(ctx *replay.Context, in string) (int, error) {
	next(ctx, in)                 // want `^drops the error of next, which returns shop\.Buy\.ContinueAsNew \(again\.go:\d+\): return it`
	_, _ = nextWithSum(ctx, 1)    // want `^drops the error of nextWithSum, which returns next \(again\.go:\d+\), which returns shop\.Buy`
	sum, _ := nextWithSum(ctx, 1) // want `drops the error of nextWithSum`
	return sum, nil
}

func next(ctx *replay.Context, in string) error { // want next:`continuing: returns shop\.Buy\.ContinueAsNew \(again\.go:\d+\)`
	return shop.Buy.ContinueAsNew(ctx, in)
}

func nextWithSum(ctx *replay.Context, sum int) (int, error) {
	return sum, next(ctx, "")
}

func allowed(ctx *replay.Context, in string) (int, error) {
	_ = shop.Buy.ContinueAsNew(ctx, in) //tenuto:allow only checks that the input can be encoded
	return 0, nil
}

func returned(ctx *replay.Context, in string) (sum int, err error) {
	switch in {
	case "direct":
		return 1, shop.Buy.ContinueAsNew(ctx, in)
	case "joined":
		return 1, errors.Join(err, shop.Buy.ContinueAsNew(ctx, in))
	case "wrapped":
		return 1, fmt.Errorf("again: %w", next(ctx, in))
	case "variable":
		again := shop.Buy.ContinueAsNew(ctx, in)
		ctx.Log().Info("again", "err", again)
		return 1, again
	case "copied":
		first := shop.Buy.ContinueAsNew(ctx, in)
		second := first
		return 1, second
	case "if":
		if again := shop.Buy.ContinueAsNew(ctx, in); again != nil {
			return 0, again
		}
	case "tuple":
		sum, again := nextWithSum(ctx, 1)
		return sum, again
	case "stored":
		kept := struct{ err error }{shop.Buy.ContinueAsNew(ctx, in)}
		return 1, kept.err
	case "loop":
		var again error
		for again == nil {
			again = shop.Buy.ContinueAsNew(ctx, in)
		}
		return 1, again
	}
	retry(func() error { return shop.Buy.ContinueAsNew(ctx, in) })
	err = shop.Buy.ContinueAsNew(ctx, in) // a named result
	return
}

func retry(fn func() error) {}
