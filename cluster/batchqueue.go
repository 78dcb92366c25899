package cluster

import (
	"context"
	"sync"
)

// A batchQueue holds items until a sender takes them. A batch is all items that wait, up to
// itemsMax and bytesMax.
type batchQueue[T any] struct {
	itemsMax, bytesMax int // per batch; the item that reaches bytesMax is included
	size               func(T) int
	ready              chan struct{} // has capacity 1

	mu     sync.Mutex
	items  []T
	closed bool
}

func newBatchQueue[T any](most, bytesMax int, size func(T) int) *batchQueue[T] {
	return &batchQueue[T]{itemsMax: most, bytesMax: bytesMax, size: size, ready: make(chan struct{}, 1)}
}

// put adds an item and reports whether the queue accepted it. After close it accepts none.
func (o *batchQueue[T]) put(one T) bool {
	o.mu.Lock()
	ended := o.closed
	if !ended {
		o.items = append(o.items, one)
	}
	o.mu.Unlock()
	if !ended {
		o.signal()
	}
	return !ended
}

func (o *batchQueue[T]) signal() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// take removes a batch after a receive from ready. The batch is empty if another sender was faster.
func (o *batchQueue[T]) take() (batch []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(o.items), o.itemsMax) && (n == 0 || bytes < o.bytesMax) {
		bytes += o.size(o.items[n])
		n++
	}
	batch = o.items[:n:n]
	o.items = o.items[n:]
	if len(o.items) > 0 {
		o.signal()
	}
	return batch
}

// run calls sendBatch from atOnce goroutines until ctx ends, and returns the items left. An item is
// sent at once if a sender is free; otherwise items collect into batches.
func (o *batchQueue[T]) run(ctx context.Context, atOnce int, sendBatch func(ctx context.Context, batch []T)) (left []T) {
	var sending sync.WaitGroup
	for range atOnce {
		sending.Go(func() {
			for {
				select {
				case <-o.ready:
					if batch := o.take(); len(batch) > 0 {
						sendBatch(ctx, batch)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	sending.Wait()
	return o.close()
}

// close makes put refuse further items, and returns those that are left.
func (o *batchQueue[T]) close() (left []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left, o.items, o.closed = o.items, nil, true
	return left
}
