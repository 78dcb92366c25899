// Package prices is what orchestrations in other packages call.
package prices

import (
	"sort"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/shop"
)

var (
	Base     = 1
	Last     string
	Currency = "EUR" // want Currency:`changed at prices\.go:\d+`
)

func SetCurrency(c string) { Currency = c } // want SetCurrency:`global: writes the package variable Currency`

// Price depends on the hour.
func Price(item string) int { // want Price:`^clock: calls hour \(prices\.go:22\), which calls time\.Now \(prices\.go:25\)$`
	return Base * hour()
}

func hour() int { return time.Now().Hour() } // want hour:`clock: calls time\.Now \(prices\.go:25\)`

// List is pure.
func List(items []string) int { return len(items) }

// Approved gives a reason for reading the clock.
func Approved() time.Time {
	return time.Now() //tenuto:allow shown to people and nothing else
}

type Table struct{ at time.Time }

func (t *Table) Fill() { t.at = time.Now() } // want Fill:`clock: calls time\.Now`

type Source interface{ Fill() }

// Even and Odd call each other.
func Even(n int) bool { return n == 0 || Odd(n-1) } // want Even:`clock: calls Odd \(prices\.go:\d+\), which calls time\.Now`

func Odd(n int) bool { // want Odd:`clock: calls time\.Now`
	_ = time.Now()
	return n != 0 && Even(n-1)
}

// Names come in the order of the map.
func Names(m map[string]int) []string { // want Names:`^unordered: fills names in the order of a map \(prices\.go:52\) and returns it`
	var names []string
	for name := range m {
		names = append(names, name)
	}
	return names
}

// Sorted are the names in order.
func Sorted(m map[string]int) []string {
	names := Names(m)
	sort.Strings(names)
	return names
}

// Pay makes a durable call.
func Pay(ctx *replay.Context, item string) error { // want Pay:`durable: calls shop\.Charge\.Call .*; ordered: calls shop\.Charge\.Call`
	_, err := shop.Charge.Call(ctx, item)
	return err
}

// Zone makes none.
func Zone(ctx *replay.Context) int { return ctx.Now().Year() } // want Zone:`^$`

// First is generic.
func First[T any](items []T) (T, time.Time) { return items[0], time.Now() } // want First:`clock`
