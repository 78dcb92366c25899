package admission

import (
	"context"
	"sync"
	"time"
)

// A Notifier wakes all goroutines that wait for a change. The zero value is ready to use.
type Notifier struct {
	mu      sync.Mutex
	changed chan struct{}
}

// Next returns a channel that is closed at the next Notify. The caller must get it before it checks
// the state that may change.
func (n *Notifier) Next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

// Notify closes the channel of every earlier Next.
func (n *Notifier) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// Sleep waits for delay, unless ctx ends or closing is closed first.
func Sleep(ctx context.Context, closing <-chan struct{}, delay time.Duration) error {
	_, err := SleepUntil(ctx, closing, nil, delay)
	return err
}

// SleepUntil is Sleep that also returns when changed is closed, and reports whether it was.
func SleepUntil(ctx context.Context, closing, changed <-chan struct{}, delay time.Duration) (notified bool, err error) {
	select {
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	default:
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-changed:
		return true, nil
	case <-closing:
		return false, ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
