package journal

import "sync"

// fence is drawn once, when the node meets something that it cannot trust or
// cannot write. From then on nothing leaves the node: whoever draws it cuts the
// network before it goes on, the log store takes no entry and the state machine
// applies none. The Raft library panics when it cannot save its term or read
// an entry; behind the fence it may be told that it could, because what it
// believes no longer matters to anybody.
type fence struct {
	// drawn is closed when the fence is.
	drawn chan struct{}
	// cut is called before drawn is closed, and told afterwards.
	cut, told func(*FencedError)

	once  sync.Once
	cause *FencedError
}

func newFence(cut, told func(*FencedError)) *fence {
	return &fence{drawn: make(chan struct{}), cut: cut, told: told}
}

// draw fences the node for the first cause that it is given.
func (f *fence) draw(cause error) *FencedError {
	first := false
	f.once.Do(func() {
		f.cause = &FencedError{Cause: cause}
		f.cut(f.cause)
		close(f.drawn)
		first = true
	})
	if first {
		f.told(f.cause) // not in Do, where others would wait for it: it logs
	}
	return f.cause
}

// err returns a *FencedError once the fence is drawn, nil before.
func (f *fence) err() error {
	select {
	case <-f.drawn:
		return f.cause
	default:
		return nil
	}
}
