package replaytest

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A bubble runs functions one after the other on a goroutine of its own inside
// of a synctest bubble, where time is virtual. The test itself stays outside:
// while none of its functions runs, the bubble's goroutine waits for it, which
// is no durable block, so that time stands still. And what is blocked inside can
// be watched from outside, in real time.
type bubble struct {
	id     string // as the headers of stacks name it
	calls  chan func()
	ended  chan struct{} // closed when everything in it has ended
	look   time.Duration // how often a call that takes long is looked at, in real time
	longer time.Duration // when it takes too long
}

// newBubble starts a bubble. The test must not be in one itself.
func newBubble(t *testing.T) *bubble {
	b := &bubble{
		calls:  make(chan func()),
		ended:  make(chan struct{}),
		look:   time.Second,
		longer: 10 * time.Second,
	}
	ready := make(chan struct{})
	go func() {
		defer close(b.ended)
		synctest.Test(t, func(*testing.T) {
			b.id = ownBubble()
			close(ready)
			for call := range b.calls {
				call()
			}
		})
	}()
	<-ready
	return b
}

// do runs a function in the bubble and waits for it. It returns false when that
// does not come to its end in real time: what the goroutines of the bubble do is
// in stacks then, and the bubble is of no more use.
func (b *bubble) do(call func()) (stacks []stack, ok bool) {
	done := make(chan struct{})
	b.calls <- func() {
		call()
		close(done)
	}
	return b.watch(done, func() []stack { return stacksOf(b.id) })
}

// watch waits, in real time, until done is closed. It gives up when orchestration
// code stays blocked where it must not, or when all is taking too long.
func (b *bubble) watch(done <-chan struct{}, look func() []stack) (stacks []stack, ok bool) {
	every := time.NewTicker(b.look)
	defer every.Stop()
	var suspects []stack
	for began := time.Now(); ; {
		select {
		case <-done:
			return nil, true
		case <-every.C:
		}
		stacks := look()
		blocked := blockedCode(stacks)
		if stuck := common(blocked, suspects); len(stuck) > 0 {
			return stuck, false
		}
		suspects = blocked
		if time.Since(began) > b.longer {
			return stacks, false
		}
	}
}

// common returns those goroutines of a that are in b as well, and where they
// were.
func common(a, b []stack) []stack {
	var same []stack
	for _, s := range a {
		if slices.ContainsFunc(b, func(other stack) bool { return other.id == s.id && other.text == s.text }) {
			same = append(same, s)
		}
	}
	return same
}

// end lets the bubble's goroutine go and waits until all are gone. None of the
// others may be blocked for ever.
func (b *bubble) end() {
	close(b.calls)
	<-b.ended
}
