package raftlog

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A slow disk that answers must not cost leadership again and again.
func TestBusyDisk_GetsMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stalls atomic.Int32
		d := NewDisk(400*time.Millisecond, func(uint64) {}, func(time.Duration) { stalls.Add(1) }, func(time.Duration) {})
		for i, step := range []struct {
			rest, write time.Duration
			stalls      int32 // so far
		}{
			{0, 300 * time.Millisecond, 0},
			{0, 3 * time.Second, 1}, // it did hang
			{0, 500 * time.Millisecond, 2},
			{0, 900 * time.Millisecond, 2}, // known to be busy
			{50 * time.Second, 900 * time.Millisecond, 2},
			{50 * time.Second, 900 * time.Millisecond, 2}, // still busy
			{0, 1100 * time.Millisecond, 3},
			{busyDuration, 500 * time.Millisecond, 4},
		} {
			time.Sleep(step.rest)
			if err := d.write(func() error { time.Sleep(step.write); return nil }); err != nil {
				t.Error(err)
			}
			if got := stalls.Load(); got != step.stalls {
				t.Errorf("write %d: %d stalls, want %d", i, got, step.stalls)
			}
		}
	})
}

func TestDisk_ReportsStallWithoutLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, written := make(chan struct{}), make(chan struct{})
		block := func(time.Duration) { <-release }
		d := NewDisk(time.Second, func(uint64) {}, block, block)
		go func() { _ = d.write(func() error { <-written; return nil }) }()
		time.Sleep(2 * time.Second)
		synctest.Wait() // it is in onStall
		if !d.IsStalled() || d.WriteAge() != 2*time.Second {
			t.Errorf("hangs %t, for %v", d.IsStalled(), d.WriteAge())
		}
		<-d.StallStarted()
		close(written)
		synctest.Wait() // it is in onRecover
		if d.IsStalled() || d.WriteAge() != 0 {
			t.Errorf("hangs %t, for %v", d.IsStalled(), d.WriteAge())
		}
		close(release)
	})
}
