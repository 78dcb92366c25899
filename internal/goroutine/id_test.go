package goroutine

import (
	"runtime"
	"sync"
	"testing"
)

func TestGoroutinesThatRunHaveDifferentNumbers(t *testing.T) {
	for name, id := range map[string]func() uintptr{"ID": ID, "traceID": traceID} {
		t.Run(name, func(t *testing.T) {
			const many = 1000
			var mu sync.Mutex
			seen := make(map[uintptr]bool)
			begun, done := make(chan struct{}, many), make(chan struct{})
			var running sync.WaitGroup
			for range many {
				running.Go(func() {
					mine := id()
					mu.Lock()
					if mine == 0 || seen[mine] {
						t.Errorf("%d is the number of two goroutines, or none", mine)
					}
					seen[mine] = true
					mu.Unlock()
					begun <- struct{}{}
					<-done
					if deep(100, id) != mine {
						t.Error("the number of a goroutine has changed")
					}
				})
			}
			for range many {
				<-begun
			}
			close(done)
			running.Wait()
		})
	}
}

// deep has the goroutine's stack grow and move first.
func deep(n int, id func() uintptr) uintptr {
	var room [256]byte
	if n > 0 {
		defer runtime.KeepAlive(&room)
		return deep(n-1, id)
	}
	runtime.Gosched()
	return id()
}

func TestAGoroutineKeepsItsNumberOnAnotherThread(t *testing.T) {
	before := ID()
	for range 100 {
		runtime.LockOSThread()
		runtime.Gosched()
		runtime.UnlockOSThread()
		if ID() != before {
			t.Fatal("it has changed")
		}
	}
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}
