package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func ones(int) int { return 1 }

// What comes while all who carry are on their way is taken together; what comes when one
// is free goes alone, at once.
func TestAnOutboxGivesTogetherWhatHasComeMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(3, 100, ones)
		free := make(chan struct{})
		var batches [][]int
		ctx, end := context.WithCancel(t.Context())
		var carrying sync.WaitGroup
		carrying.Go(func() {
			o.carry(ctx, 1, func(_ context.Context, batch []int) {
				batches = append(batches, slices.Clone(batch))
				<-free
			})
		})
		o.put(1)
		synctest.Wait()
		for n := range 4 {
			o.put(n + 2)
		}
		for range 3 {
			free <- struct{}{}
			synctest.Wait()
		}
		end()
		carrying.Wait()
		if want := [][]int{{1}, {2, 3, 4}, {5}}; !slices.EqualFunc(batches, want, slices.Equal) {
			t.Errorf("taken %v, want %v", batches, want)
		}
	})
}

func TestABatchOfAnOutboxHasABoundOfBytes(t *testing.T) {
	o := newOutbox(100, 10, func(size int) int { return size })
	for _, size := range []int{4, 5, 7, 50, 1, 9, 9} {
		o.put(size)
	}
	var batches [][]int
	for batch := o.take(); len(batch) > 0; batch = o.take() {
		batches = append(batches, batch)
	}
	// One that is larger does not wait for ever.
	if want := [][]int{{4, 5, 7}, {50}, {1, 9}, {9}}; !slices.EqualFunc(batches, want, slices.Equal) {
		t.Errorf("taken %v, want %v", batches, want)
	}
}

// At the end each is brought, or given back: none is lost.
func TestWhatIsLeftInAnOutboxIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox(1, 100, ones)
		var brought []int
		ctx, end := context.WithCancel(t.Context())
		left := make(chan []int)
		go func() {
			left <- o.carry(ctx, 1, func(ctx context.Context, batch []int) {
				brought = append(brought, batch...)
				<-ctx.Done()
			})
		}()
		for n := range 3 {
			if !o.put(n) {
				t.Errorf("%d was not taken", n)
			}
			synctest.Wait()
		}
		end()
		given := <-left
		if all := slices.Concat(brought, given); !slices.Equal(all, []int{0, 1, 2}) {
			t.Errorf("brought or left: %v", all)
		}
		if o.put(3) {
			t.Error("taken after the end")
		}
	})
}
