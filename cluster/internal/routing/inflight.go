package routing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// InFlight holds the calls in flight to a leader. They can be canceled, because a leader may
// hang or lose leadership without an answer.
type InFlight struct {
	mu    sync.Mutex
	calls map[*inFlightCall]struct{}
}

type inFlightCall struct {
	address string
	since   time.Time
	cancel  context.CancelFunc
}

// Begin returns a context that ends when CancelIf cancels the call. end must be called.
func (i *InFlight) Begin(ctx context.Context, address string) (limited context.Context, end func()) {
	limited, cancel := context.WithCancel(ctx)
	begun := &inFlightCall{address: address, since: time.Now(), cancel: cancel}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.calls == nil {
		i.calls = make(map[*inFlightCall]struct{})
	}
	i.calls[begun] = struct{}{}
	return limited, func() {
		cancel()
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.calls, begun)
	}
}

// CancelExcept cancels the calls to all addresses but the leader's.
func (i *InFlight) CancelExcept(leader string) {
	i.CancelIf(func(address string) bool { return address != leader })
}

// CancelIf cancels the calls to addresses for which lost is true.
func (i *InFlight) CancelIf(lost func(address string) bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for open := range i.calls {
		if lost(open.address) {
			open.cancel()
			delete(i.calls, open)
		}
	}
}

// SlowAddress returns the address of a call in flight since before a time, "" if there is none.
func (i *InFlight) SlowAddress(before time.Time) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	for open := range i.calls {
		if open.since.Before(before) {
			return open.address
		}
	}
	return ""
}

// A MaxIndex is the highest index of a journal that an answer has shown.
type MaxIndex struct{ atomic.Uint64 }

// Advance records an index that an answer has shown.
func (m *MaxIndex) Advance(index uint64) {
	for seen := m.Load(); index > seen; seen = m.Load() {
		m.CompareAndSwap(seen, index)
	}
}

// ErrorResponse returns the response to a call that could not be made, or got no answer.
func ErrorResponse(err error) *clusterpb.Response {
	var unreached *transport.UnreachableError
	switch {
	case errors.As(err, &unreached):
		return wire.NotLeader(err.Error())
	case status.Code(err) == codes.Unimplemented || status.Code(err) == codes.ResourceExhausted:
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeInternal, Message: err.Error(), NotExecuted: true}}
	}
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: err.Error()}}
}
