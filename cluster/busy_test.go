package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
)

func TestBusyError_RoundTripsWire(t *testing.T) {
	for _, err := range []error{
		&actors.BusyError{RetryAfter: time.Second, Bound: actors.BoundInFlight, Reason: "too much"},
		fmt.Errorf("append: %w", journal.ErrBusy),
	} {
		wire := toFailure(err)
		if !wire.NotExecuted {
			t.Errorf("%v: does not say that nothing was done", err)
		}
		var busy *BusyError
		if got := fromFailure(wire); !errors.As(got, &busy) || !errors.Is(got, ErrBusy) || busy.RetryAfter <= 0 || busy.Reason == "" || busy.Bound == "" {
			t.Errorf("%v has become %v", err, got)
		}
	}
}
