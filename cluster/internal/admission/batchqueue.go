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

// NewBatchQueue returns an empty queue. most and bytesMax bound a batch, in items and in bytes;
// size returns the bytes of an item.
func NewBatchQueue[T any](most, bytesMax int, size func(T) int) *BatchQueue[T] {
	return &BatchQueue[T]{itemsMax: most, bytesMax: bytesMax, size: size, ready: make(chan struct{}, 1)}
}

// Put adds an item and reports whether the queue accepted it. After Close it accepts none.
func (b *BatchQueue[T]) Put(one T) bool {
	b.mu.Lock()
	ended := b.closed
	if !ended {
		b.items = append(b.items, one)
	}
	b.mu.Unlock()
	if !ended {
		b.signal()
	}
	return !ended
}

// Ready returns a channel that has a value when there are items to take.
func (b *BatchQueue[T]) Ready() <-chan struct{} { return b.ready }

func (b *BatchQueue[T]) signal() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// Take removes a batch after a receive from Ready. The batch is empty if another sender was faster.
func (b *BatchQueue[T]) Take() (batch []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(b.items), b.itemsMax) && (n == 0 || bytes < b.bytesMax) {
		bytes += b.size(b.items[n])
		n++
	}
	batch = b.items[:n:n]
	b.items = b.items[n:]
	if len(b.items) > 0 {
		b.signal()
	}
	return batch
}

// Run calls sendBatch from atOnce goroutines until ctx ends, and returns the items left. An item is
// sent at once if a sender is free; otherwise items collect into batches.
func (b *BatchQueue[T]) Run(ctx context.Context, atOnce int, sendBatch func(ctx context.Context, batch []T)) (left []T) {
	var sending sync.WaitGroup
	for range atOnce {
		sending.Go(func() {
			for {
				select {
				case <-b.ready:
					if batch := b.Take(); len(batch) > 0 {
						sendBatch(ctx, batch)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	sending.Wait()
	return b.Close()
}

// Close makes Put reject further items, and returns those that are left.
func (b *BatchQueue[T]) Close() (left []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	left, b.items, b.closed = b.items, nil, true
	return left
}
