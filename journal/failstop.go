package journal

import "sync"

// failStop is triggered once, when the node finds something that it cannot trust or cannot write.
// From then on nothing leaves the node: Fail cuts the network before it returns, the log store
// takes no entry and the state machine applies none. The Raft library panics when it cannot save
// its term or read an entry. After a failure the stores may report success to it instead, because
// nothing based on that can leave the node.
type failStop struct {
	// failed is closed when the node has failed.
	failed chan struct{}
	// disconnect is called before failed is closed, report afterwards.
	disconnect, report func(*NodeFailedError)

	once  sync.Once
	cause *NodeFailedError
}

func newFailStop(cut, logged func(*NodeFailedError)) *failStop {
	return &failStop{failed: make(chan struct{}), disconnect: cut, report: logged}
}

// Fail fails the node for the first cause that it is given, and returns a *NodeFailedError.
func (f *failStop) Fail(cause error) error {
	first := false
	f.once.Do(func() {
		f.cause = &NodeFailedError{Cause: withFileErrors(cause)}
		f.disconnect(f.cause)
		close(f.failed)
		first = true
	})
	if first {
		f.report(f.cause) // outside Do: concurrent callers of Do would wait for it
	}
	return f.cause
}

// Err returns a *NodeFailedError once the node has failed, nil before.
func (f *failStop) Err() error {
	select {
	case <-f.failed:
		return f.cause
	default:
		return nil
	}
}
