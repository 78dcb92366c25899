package facts

import (
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/prices"
	"rules/shop"
)

func buy(ctx *replay.Context, order shop.Order) (int, error) {
	_ = prices.Price("tea")               // want `^calls prices\.Price, which calls hour \(prices\.go:22\), which calls time\.Now \(prices\.go:25\): use ctx\.Now\(\), which is the same on every replay$`
	_ = total(order)                      // want `calls total, which calls prices\.Price \(facts\.go:\d+\), which calls hour`
	new(prices.Table).Fill()              // want `calls prices\.Table\.Fill, which calls time\.Now`
	_ = prices.Even(3)                    // want `calls prices\.Even`
	_, _ = prices.First(order.Items)      // want `calls prices\.First`
	prices.SetCurrency("USD")             // want `calls prices\.SetCurrency, which writes the package variable Currency`
	slices.SortFunc(order.Items, byPrice) // want `uses byPrice, which calls prices\.Price`
	pay(ctx)                              // what it does is reported where it does it
	_ = prices.List(order.Items) + prices.Zone(ctx)
	_ = prices.Approved()
	var source prices.Source = new(prices.Table)
	source.Fill() // want `^calls source\.Fill, which may call prices\.Table\.Fill, which calls time\.Now \(prices\.go:37\): use ctx`
	at, err := replay.SideEffect(ctx, "price", func() (int, error) { return prices.Price("tea"), nil })
	_ = at
	return 0, err
}

func pay(ctx *replay.Context) {
	_ = time.Now() // want `calls time\.Now`
}

func total(order shop.Order) int {
	sum := 0
	for _, item := range order.Items {
		sum += prices.Price(item)
	}
	return sum
}

func byPrice(a, b string) int { return prices.Price(a) - prices.Price(b) }
