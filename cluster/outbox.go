package cluster

import (
	"context"
	"sync"
)

// An outbox holds what waits to be sent until somebody takes it, in batches: all that has
// come meanwhile.
type outbox[T any] struct {
	most, bytesMax int // in a batch; one that is larger goes alone
	size           func(T) int
	filled         chan struct{} // has room for one

	mu      sync.Mutex
	waiting []T
	ended   bool
}

func newOutbox[T any](most, bytesMax int, size func(T) int) *outbox[T] {
	return &outbox[T]{most: most, bytesMax: bytesMax, size: size, filled: make(chan struct{}, 1)}
}

// put puts one in, and tells whether it will be carried: not after the end.
func (o *outbox[T]) put(one T) bool {
	o.mu.Lock()
	ended := o.ended
	if !ended {
		o.waiting = append(o.waiting, one)
	}
	o.mu.Unlock()
	if !ended {
		o.wake()
	}
	return !ended
}

func (o *outbox[T]) wake() {
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// take takes a batch out, when filled says that there is something, or an empty one if
// another was faster.
func (o *outbox[T]) take() (batch []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(o.waiting), o.most) && (n == 0 || bytes < o.bytesMax) {
		bytes += o.size(o.waiting[n])
		n++
	}
	batch = o.waiting[:n:n]
	o.waiting = o.waiting[n:]
	if len(o.waiting) > 0 {
		o.wake()
	}
	return batch
}

// carry has batches brought, a few at once, until ctx ends: alone when there is little, so
// that nothing waits for company, and together what has come while all who carry were on
// their way. It returns what is left.
func (o *outbox[T]) carry(ctx context.Context, atOnce int, bring func(ctx context.Context, batch []T)) (left []T) {
	var carrying sync.WaitGroup
	for range atOnce {
		carrying.Go(func() {
			for {
				select {
				case <-o.filled:
					if batch := o.take(); len(batch) > 0 {
						bring(ctx, batch)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	carrying.Wait()
	return o.end()
}

// end has no more be put in, and returns what is left.
func (o *outbox[T]) end() (left []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left, o.waiting, o.ended = o.waiting, nil, true
	return left
}
