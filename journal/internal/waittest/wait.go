package waittest

import (
	"os"
	"testing"
	"time"
)

// Timeout bounds every wait of a test, longer than a slow machine needs.
const Timeout = 2 * time.Minute

// Repetitions is how often a test of damage is repeated: all times with "make faults", which sets
// TENUTO_FAULTS, otherwise only the first few; with -short, an eighth of those.
func Repetitions(all, few int) int {
	if os.Getenv("TENUTO_FAULTS") != "" {
		return all
	}
	if testing.Short() {
		return max(few/8, 1)
	}
	return few
}

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(Timeout)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %v: %s", Timeout, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Receive receives from a channel, or fails the test after a timeout.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(Timeout):
		t.Fatalf("timeout after %v: %s", Timeout, what)
		panic("not reached")
	}
}
