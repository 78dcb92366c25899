package admission

import (
	"context"
	"sync"
)

// A BatchQueue holds items until a sender takes them. A batch is all items that wait, up to
// itemsMax and bytesMax.
type BatchQueue[T any] struct {
	itemsMax, bytesMax int // per batch; the item that reaches bytesMax is included
	size               func(T) int
	ready              chan struct{} // has capacity 1

	mu     sync.Mutex
	items  []T
	closed bool
}

// NewBatchQueue returns an empty queue for batches of those bounds. size returns the bytes of an item.
func NewBatchQueue[T any](most, bytesMax int, size func(T) int) *BatchQueue[T] {
	return &BatchQueue[T]{itemsMax: most, bytesMax: bytesMax, size: size, ready: make(chan struct{}, 1)}
}

// Put adds an item and reports whether the queue accepted it. After Close it accepts none.
func (o *BatchQueue[T]) Put(one T) bool {
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

// Ready returns a channel that has a value when there are items to take.
func (o *BatchQueue[T]) Ready() <-chan struct{} { return o.ready }

func (o *BatchQueue[T]) signal() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// Take removes a batch after a receive from Ready. The batch is empty if another sender was faster.
func (o *BatchQueue[T]) Take() (batch []T) {
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

// Run calls sendBatch from atOnce goroutines until ctx ends, and returns the items left. An item is
// sent at once if a sender is free; otherwise items collect into batches.
func (o *BatchQueue[T]) Run(ctx context.Context, atOnce int, sendBatch func(ctx context.Context, batch []T)) (left []T) {
	var sending sync.WaitGroup
	for range atOnce {
		sending.Go(func() {
			for {
				select {
				case <-o.ready:
					if batch := o.Take(); len(batch) > 0 {
						sendBatch(ctx, batch)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	sending.Wait()
	return o.Close()
}

// Close makes Put refuse further items, and returns those that are left.
func (o *BatchQueue[T]) Close() (left []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	left, o.items, o.closed = o.items, nil, true
	return left
}
