package actors

import (
	"bytes"
	"runtime"
	"testing"
	"testing/synctest"
)

// self returns what names the running goroutine.
func self() string {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	return string(stack[:bytes.IndexByte(stack, '[')])
}

func TestDispatcherReusesItsGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(dispatcher)
		names := make(map[string]int)
		for range 100 {
			d.Schedule(func() { names[self()]++ })
			synctest.Wait()
		}
		if len(names) != 1 {
			t.Errorf("%d goroutines for one thing at a time", len(names))
		}
		d.close()
		d.wait()
	})
}

func TestDispatcherKeepsNoMoreThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(dispatcher)
		leave := make(chan struct{})
		for range 3 * parkedMax {
			d.Schedule(func() { <-leave })
		}
		d.Schedule(runtime.Goexit) // ends its goroutine and nothing else
		synctest.Wait()
		if len(d.parked) != 0 {
			t.Errorf("%d parked while all are at work", len(d.parked))
		}
		close(leave)
		synctest.Wait()
		if len(d.parked) != parkedMax {
			t.Errorf("%d parked", len(d.parked))
		}
		// The parked ones take what comes, and only then new ones are made.
		again := make(chan struct{})
		for range parkedMax {
			d.Schedule(func() { <-again })
		}
		synctest.Wait()
		if len(d.parked) != 0 {
			t.Errorf("%d parked besides new ones", len(d.parked))
		}
		close(again)
		synctest.Wait()
		d.close()
		d.wait()
		// What is scheduled too late still runs, on a goroutine that ends.
		ran := false
		d.Schedule(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("dropped")
		}
	})
}
