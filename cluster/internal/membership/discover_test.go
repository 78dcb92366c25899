package membership

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A function that ignores the end of its context does not keep its caller, and is not called again
// before it has returned.
func TestBounded_FunctionBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		release := make(chan struct{})
		bounded := Bounded(func(context.Context) ([]string, error) {
			if calls.Add(1) == 1 {
				<-release
			}
			return []string{"a:1"}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if found, err := bounded(ctx); found != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute+discoverGrace {
			t.Errorf("%v, %v, after %v", found, err, time.Since(began))
		}
		if found, err := bounded(t.Context()); found != nil || err == nil || calls.Load() != 1 {
			t.Errorf("while the first call runs: %v, %v, %d calls", found, err, calls.Load())
		}
		close(release)
		synctest.Wait()
		for range 3 {
			if found, err := bounded(t.Context()); len(found) != 1 || err != nil {
				t.Errorf("after the first call: %v, %v", found, err)
			}
		}
	})
}

func TestBounded_FunctionPanics(t *testing.T) {
	bounded := Bounded(func(context.Context) ([]string, error) { panic("as wanted") })
	for range 2 {
		if found, err := bounded.Addresses(t.Context()); found != nil || err == nil || err.Error() != "discover: panic: as wanted" {
			t.Errorf("%v, %v", found, err)
		}
	}
	if Bounded(nil) != nil {
		t.Error("nil became a function")
	}
}
