package maporder

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/prices"
	"rules/shop"
)

type carrier interface {
	Send(ctx *replay.Context, item string) error
}

func loops(ctx *replay.Context, stock map[string]int, by carrier) error {
	for item := range stock { // want `^ranges over a map and calls shop\.Charge\.Call: the order of a map differs on replay; sort it first, as slices\.Sorted\(maps\.Keys\(m\)\) does$`
		if _, err := shop.Charge.Call(ctx, item); err != nil {
			return err
		}
	}
	for item := range maps.Keys(stock) { // want `ranges over a map and calls prices\.Pay, which calls shop\.Charge\.Call`
		prices.Pay(ctx, item)
	}
	for item := range stock { // want `ranges over a map and calls by\.Send`
		by.Send(ctx, item)
	}
	pay := func(ctx *replay.Context, item string) {}
	for item := range stock { // want `ranges over a map and calls pay`
		pay(ctx, item)
	}
	for range stock { // want `ranges over a map and calls ctx\.UUID`
		_ = ctx.UUID()
	}
	sum := 0
	for item, n := range stock {
		sum += n + len(item) + prices.Zone(ctx)
		stock[item] = 0
	}
	for _, item := range slices.Sorted(maps.Keys(stock)) {
		prices.Pay(ctx, item)
	}
	for _, item := range prices.Sorted(stock) {
		prices.Pay(ctx, item)
	}
	return nil
}

func slicesOf(ctx *replay.Context, stock map[string]int) error {
	var items, sorted, counted []string
	text := ""
	for item := range stock {
		items = append(items, item)
		sorted = append(sorted, item)
		counted = append(counted, item)
		text += item
	}
	use(shop.Ship.Call(ctx, items)) // want `^fills items in the order of a map \(maporder\.go:\d+\) and calls shop\.Ship\.Call with it: the order`
	sort.Strings(sorted)
	use(shop.Ship.Call(ctx, sorted))
	for range len(counted) {
		use(shop.Ship.Call(ctx, nil))
	}
	use(shop.Charge.Call(ctx, text)) // want `fills text in the order of a map`

	names := prices.Names(stock)
	for _, name := range names { // want `calls prices\.Names, which fills names in the order of a map .*, ranges over it and calls shop\.Charge\.Start`
		use(shop.Charge.Start(ctx, name).Await(ctx))
	}
	use(shop.Place.Call(ctx, shop.Order{Items: prices.Names(stock)})) // want `calls prices\.Names, which .* and calls shop\.Place\.Call with it`
	keys := slices.Collect(maps.Keys(stock))
	use(shop.Charge.Call(ctx, strings.Join(keys, ",")))                                                            // want `collects maps\.Keys\(stock\) and calls shop\.Charge\.Call with it`
	use(replay.Map(ctx, 2, slices.Collect(maps.Keys(stock)), func(ctx *replay.Context, item string) (int, error) { // want `collects maps\.Keys\(stock\) and calls replay\.Map with it`
		return shop.Charge.Call(ctx, item)
	}))

	unsorted := prices.Names(stock)
	use(slices.IsSorted(unsorted), nil)
	use(shop.Ship.Call(ctx, unsorted)) // want `calls prices\.Names, which .* and calls shop\.Ship\.Call with it`
	again := prices.Names(stock)
	slices.Sort(again)
	_, err := shop.Ship.Call(ctx, again)
	return err
}

var list = shop.List.Bind(func(ctx *replay.Context, stock map[string]int) ([]string, error) {
	var items []string
	for item := range stock {
		items = append(items, item)
	}
	return items, nil // want `fills items in the order of a map .* and returns it`
})

var count = shop.List.Bind(func(ctx *replay.Context, stock map[string]int) ([]string, error) {
	longest := func() []string {
		var items []string
		for item := range stock {
			items = append(items, item)
		}
		return items
	}
	return longest()[:0], nil
})

func use[T any](T, error) {}
