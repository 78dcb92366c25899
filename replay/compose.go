package replay

import (
	"iter"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A Result is how one operation ended.
type Result[T any] struct {
	Value T
	Err   error
}

// AllResults waits until every operation is complete and returns all results, including failed
// ones, in the order of the arguments. It returns an error only if the scope of ctx ends first.
func AllResults[T any](ctx *Context, futures ...*Future[T]) ([]Result[T], error) {
	results := make([]Result[T], len(futures))
	for i, f := range futures {
		if err := ctx.scope.Wait(f.core()); err != nil {
			return nil, ctx.scope.Observe(err)
		}
		results[i].Value, results[i].Err = f.result(ctx)
	}
	return results, nil
}

// AsCompleted yields the indexes and futures in the order of completion, waiting for each; awaiting
// a yielded future returns at once. The sequence ends early if the scope of ctx ends; then
// ctx.Err() is not nil.
func AsCompleted[T any](ctx *Context, futures ...*Future[T]) iter.Seq2[int, *Future[T]] {
	return func(yield func(int, *Future[T]) bool) {
		x := ctx.execution()
		x.Check("AsCompleted")
		arrived := make([]host.Promise, 0, len(futures))
		index := make(map[host.Promise][]int, len(futures))
		wakeup := x.NewPromise()
		for i, f := range futures {
			p := f.core()
			ctx.scope.CheckFuture("AsCompleted", p)
			index[p] = append(index[p], i)
			if len(index[p]) == 1 {
				collectResolved(x, p, &arrived, &wakeup)
			}
		}
		for next := 0; next < len(index); next++ {
			if next == len(arrived) {
				wakeup = x.NewPromise()
				if err := ctx.scope.Wait(wakeup); err != nil {
					return
				}
			}
			if !ctx.scope.Includes(arrived[next]) {
				return
			}
			for _, i := range index[arrived[next]] {
				if !yield(i, futures[i]) {
					return
				}
			}
		}
	}
}

// collectResolved adds p to arrived, in the order of resolution. If p is still pending, it does so
// later and then resolves the current wakeup promise.
func collectResolved(x host.Execution, p host.Promise, arrived *[]host.Promise, wakeup *host.Promise) {
	if seq := p.Seq(); seq != 0 {
		at := len(*arrived)
		for at > 0 && (*arrived)[at-1].Seq() > seq {
			at--
		}
		*arrived = append(*arrived, nil)
		copy((*arrived)[at+1:], (*arrived)[at:])
		(*arrived)[at] = p
		return
	}
	p.OnResolved(func() {
		*arrived = append(*arrived, p)
		if (*wakeup).Seq() == 0 {
			x.Resolve(*wakeup, nil)
		}
	})
}

// Map calls fn for each input in its own coroutine, at most limit at a time, and returns the
// results in the order of the inputs. The first error ends the scope of the other calls; Map
// returns that error after all calls have returned. If the scope of ctx ends first, Map returns the
// error of that scope. A limit below 1 means no limit. If fn is nil, the error is an
// [*InvalidError].
func Map[I, O any](ctx *Context, limit int, inputs []I, fn func(ctx *Context, input I) (O, error)) ([]O, error) {
	if fn == nil {
		ctx.execution().Check("Map")
		return nil, &InvalidError{Field: "function of Map", Reason: "is nil"}
	}
	if limit < 1 || limit > len(inputs) {
		limit = len(inputs)
	}
	inner, cancel := WithCancel(ctx)
	results := make([]O, len(inputs))
	next := 0
	var first error
	work := func(*Context) (struct{}, error) {
		for next < len(inputs) && inner.scope.Cause() == nil {
			i := next
			next++
			output, err := fn(inner, inputs[i])
			if ended := ctx.scope.Cause(); ended != nil {
				err = ended
			}
			if err != nil && first == nil {
				first = err
				cancel()
			}
			results[i] = output
		}
		return struct{}{}, nil
	}
	workers := make([]*Future[struct{}], limit)
	for i := range workers {
		workers[i] = Go(ctx, work)
	}
	if _, err := AllResults(WithoutCancel(ctx), workers...); err != nil {
		return nil, err
	}
	if first == nil && next < len(inputs) {
		first = ctx.scope.Cause() // the scope ended before a worker started
	}
	if first != nil {
		return nil, ctx.scope.Observe(first)
	}
	return results, nil
}
