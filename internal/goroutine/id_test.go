package goroutine

import (
	"runtime"
	"sync"
	"testing"
)

func TestID_UniqueAmongRunning(t *testing.T) {
	for name, id := range map[string]func() uintptr{"ID": ID, "traceID": idFromStack} {
		t.Run(name, func(t *testing.T) {
			const count = 1000
			var mu sync.Mutex
			seen := make(map[uintptr]bool)
			started, done := make(chan struct{}, count), make(chan struct{})
			var running sync.WaitGroup
			for range count {
				running.Go(func() {
					own := id()
					mu.Lock()
					if own == 0 || seen[own] {
						t.Errorf("ID %d is zero or used by two goroutines", own)
					}
					seen[own] = true
					mu.Unlock()
					started <- struct{}{}
					<-done
					if idAfterStackGrowth(100, id) != own {
						t.Error("the ID of a goroutine changed")
					}
				})
			}
			for range count {
				<-started
			}
			close(done)
			running.Wait()
		})
	}
}

// idAfterStackGrowth calls id after the goroutine's stack has grown and moved.
func idAfterStackGrowth(n int, id func() uintptr) uintptr {
	var frame [256]byte
	if n > 0 {
		defer runtime.KeepAlive(&frame)
		return idAfterStackGrowth(n-1, id)
	}
	runtime.Gosched()
	return id()
}

func TestID_StableAcrossThreads(t *testing.T) {
	before := ID()
	for range 100 {
		runtime.LockOSThread()
		runtime.Gosched()
		runtime.UnlockOSThread()
		if ID() != before {
			t.Fatal("the ID changed")
		}
	}
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}
