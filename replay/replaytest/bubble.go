package replaytest

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A bubble runs functions one at a time on a goroutine inside a synctest bubble, where time is
// virtual. The test stays outside. Between calls the bubble's goroutine waits for the next one,
// which is not durably blocking, so time stands still. The test can watch blocked goroutines of the
// bubble from outside, in real time.
type bubble struct {
	id           string // as in the headers of stacks
	calls        chan func()
	done         chan struct{} // closed when everything in it has ended
	pollInterval time.Duration // between checks of a slow call, in real time
	timeout      time.Duration // of a call, in real time
}

// newBubble starts a bubble. The test must not run in one.
func newBubble(t *testing.T) *bubble {
	b := &bubble{
		calls:        make(chan func()),
		done:         make(chan struct{}),
		pollInterval: time.Second,
		timeout:      10 * time.Second,
	}
	ready := make(chan struct{})
	go func() {
		defer close(b.done)
		synctest.Test(t, func(*testing.T) {
			b.id = currentBubble()
			close(ready)
			for call := range b.calls {
				call()
			}
		})
	}()
	<-ready
	return b
}

// do runs a function in the bubble and waits for it. It returns false and the stacks of the
// bubble's goroutines if the function does not return in time. The bubble is unusable then.
func (b *bubble) do(call func()) (stacks []stack, ok bool) {
	done := make(chan struct{})
	b.calls <- func() {
		call()
		close(done)
	}
	return b.watch(done, func() []stack { return stacksOf(b.id) })
}

// watch waits, in real time, until done is closed. It returns false if orchestration code
// stays blocked outside durable calls, or after the timeout.
func (b *bubble) watch(done <-chan struct{}, capture func() []stack) (stacks []stack, ok bool) {
	every := time.NewTicker(b.pollInterval)
	defer every.Stop()
	var suspects []stack
	for began := time.Now(); ; {
		select {
		case <-done:
			return nil, true
		case <-every.C:
		}
		stacks := capture()
		blocked := blockedCode(stacks)
		if stuck := commonStacks(blocked, suspects); len(stuck) > 0 {
			return stuck, false
		}
		suspects = blocked
		if time.Since(began) > b.timeout {
			return stacks, false
		}
	}
}

// commonStacks returns the goroutines of a that are in b with the same stack.
func commonStacks(a, b []stack) []stack {
	var same []stack
	for _, s := range a {
		if slices.ContainsFunc(b, func(other stack) bool { return other.id == s.id && other.text == s.text }) {
			same = append(same, s)
		}
	}
	return same
}

// end stops the bubble's goroutine and waits until all goroutines have ended. None of them may
// be blocked forever.
func (b *bubble) end() {
	close(b.calls)
	<-b.done
}
