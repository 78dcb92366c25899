package admission

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func sizeOne(int) int { return 1 }

// Items that arrive while all senders are busy are sent together; items that arrive while one is
// free are sent alone, at once.
func TestBatchQueue_BatchesWhileSendersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewBatchQueue(3, 100, sizeOne)
		free := make(chan struct{})
		var batches [][]int
		ctx, end := context.WithCancel(t.Context())
		var sending sync.WaitGroup
		sending.Go(func() {
			o.Run(ctx, 1, func(_ context.Context, batch []int) {
				batches = append(batches, slices.Clone(batch))
				<-free
			})
		})
		o.Put(1)
		synctest.Wait()
		for n := range 4 {
			o.Put(n + 2)
		}
		for range 3 {
			free <- struct{}{}
			synctest.Wait()
		}
		end()
		sending.Wait()
		if want := [][]int{{1}, {2, 3, 4}, {5}}; !slices.EqualFunc(batches, want, slices.Equal) {
			t.Errorf("taken %v, want %v", batches, want)
		}
	})
}

func TestBatchQueue_BatchBytesAreBounded(t *testing.T) {
	o := NewBatchQueue(100, 10, func(size int) int { return size })
	for _, size := range []int{4, 5, 7, 50, 1, 9, 9} {
		o.Put(size)
	}
	var batches [][]int
	for batch := o.Take(); len(batch) > 0; batch = o.Take() {
		batches = append(batches, batch)
	}
	// An item larger than a batch is sent.
	if want := [][]int{{4, 5, 7}, {50}, {1, 9}, {9}}; !slices.EqualFunc(batches, want, slices.Equal) {
		t.Errorf("taken %v, want %v", batches, want)
	}
}

// At the end each item is sent or returned: none is lost.
func TestBatchQueue_CloseReturnsUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewBatchQueue(1, 100, sizeOne)
		var sent []int
		ctx, end := context.WithCancel(t.Context())
		left := make(chan []int)
		go func() {
			left <- o.Run(ctx, 1, func(ctx context.Context, batch []int) {
				sent = append(sent, batch...)
				<-ctx.Done()
			})
		}()
		for n := range 3 {
			if !o.Put(n) {
				t.Errorf("%d was not accepted", n)
			}
			synctest.Wait()
		}
		end()
		transferred := <-left
		if all := slices.Concat(sent, transferred); !slices.Equal(all, []int{0, 1, 2}) {
			t.Errorf("sent or left: %v", all)
		}
		if o.Put(3) {
			t.Error("accepted after the end")
		}
	})
}
