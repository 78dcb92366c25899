package instances

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A copy is delivered only when the one in flight is answered. There is no partition to deliver to.
func TestDeliverCopy_WaitsForSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := NewInputs(Partition{})
		i.copySlot <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		done := make(chan struct{})
		go func() {
			_, err = i.copySlot.deliver(ctx, nil, "a", actors.Message{})
			close(done)
		}()
		synctest.Wait() // it has not been delivered
		cancel()
		if <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want %v", err, context.Canceled)
		}
	})
}

func TestCopyTarget_DependsOnWholeSource(t *testing.T) {
	i := NewInputs(Partition{Owns: func(string) bool { return true }})
	r := &clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_FORK, RequestId: "r"}
	long := strings.Repeat("x", 64)
	if a, b := i.copyTarget(long+"a", r), i.copyTarget(long+"b", r); a == b || a != i.copyTarget(long+"a", r) {
		t.Errorf("forks of two instances: %q and %q", a, b)
	}
}
