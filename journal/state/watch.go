package state

import (
	"slices"
	"sync"
)

// watchers are those who wait for instances to change.
type watchers struct {
	mu sync.Mutex
	of map[string][]chan struct{}
}

// Watch returns a channel that holds a token after the instance has changed:
// one token, however often it changed since the last was taken. Watch first and
// read then, and no change is missed. The instance need not exist yet. cancel
// ends the watch and may be called more than once; the channel is never closed.
func (m *Machine) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	m.watchers.add(instance, ch)
	return ch, func() { m.watchers.remove(instance, ch) }
}

func (w *watchers) add(instance string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]chan struct{}{}
	}
	w.of[instance] = append(w.of[instance], ch)
}

func (w *watchers) remove(instance string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.of[instance], func(other chan struct{}) bool { return other == ch })
	if len(rest) == 0 {
		delete(w.of, instance)
		return
	}
	w.of[instance] = rest
}

func (w *watchers) notify(instance string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ch := range w.of[instance] {
		wake(ch)
	}
}

func (w *watchers) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.of {
		for _, ch := range all {
			wake(ch)
		}
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a token is there already
	}
}
