package global

import (
	"errors"
	"flag"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"rules/prices"
	"rules/shop"
)

var (
	count   int
	seen    = map[string]bool{}
	hits    atomic.Int64
	cache   sync.Map
	limit   = 10 // want limit:`changed at global\.go:\d+`
	verbose bool // a flag
	factor  = 2  // never set
	table   map[string]int
	now     = time.Now // want now:`clock: uses time\.Now`
	errNone = errors.New("none")
	faked   = 3 // set by a test
)

func init() {
	table = map[string]int{"a": 1}
}

func main() {
	limit = 11
	flag.BoolVar(&verbose, "v", false, "")
	limit = 12
}

func buy(ctx *replay.Context, in string) (int, error) {
	count++          // want `^writes the package variable count: the state of the process differs on replay; keep it in a variable of the orchestration, in its input or in an activity$`
	seen[in] = true  // want `writes the package variable seen`
	delete(seen, in) // want `writes the package variable seen`
	prices.Last = in // want `writes the package variable prices\.Last`
	hits.Add(1)      // want `writes the package variable hits` `calls atomic\.Int64\.Add`
	remember(in)     // want `calls remember, which writes the package variable cache`
	if limit > 10 {  // want `reads the package variable limit, which is changed at global\.go:\d+`
		return 0, errNone
	}
	if verbose { // want `reads the package variable verbose, which is changed at global\.go:\d+`
		return 0, nil
	}
	_ = now()           // want `calls now, which uses time\.Now \(global\.go:\d+\)`
	_ = prices.Currency // want `reads the package variable prices\.Currency, which is changed at prices\.go:\d+`
	_ = prices.Base + faked
	return shop.Charge.Call(ctx, in)
}

func remember(in string) { // want remember:`global: writes the package variable cache \(global\.go:\d+\)`
	cache.Store(in, factor*table[in])
}
