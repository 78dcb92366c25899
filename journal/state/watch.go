package state

import (
	"slices"
	"sync"
)

// watchers are those who wait for instances to change, or to end.
type watchers struct {
	mu sync.Mutex
	of map[string][]watcher
}

type watcher struct {
	ch     chan struct{}
	ofEnds bool
}

// Watch returns a channel that holds a token after the instance has changed:
// one token, however often it changed since the last was taken. Watch first and
// read then, and no change is missed. The instance need not exist yet. cancel
// ends the watch and may be called more than once; the channel is never closed.
func (m *Machine) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	return m.watchers.add(instance, false)
}

// WatchEnd is Watch for those who wait for the end of a run: the channel holds a
// token after a change that has left the instance ended or unknown.
func (m *Machine) WatchEnd(instance string) (changed <-chan struct{}, cancel func()) {
	return m.watchers.add(instance, true)
}

func (w *watchers) add(instance string, ofEnds bool) (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]watcher{}
	}
	w.of[instance] = append(w.of[instance], watcher{ch, ofEnds})
	return ch, func() { w.remove(instance, ch) }
}

func (w *watchers) remove(instance string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.of[instance], func(other watcher) bool { return other.ch == ch })
	if len(rest) == 0 {
		delete(w.of, instance)
		return
	}
	w.of[instance] = rest
}

// notify tells that an instance has changed, and whether it runs.
func (w *watchers) notify(instance string, runs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watcher := range w.of[instance] {
		if !runs || !watcher.ofEnds {
			wake(watcher.ch)
		}
	}
}

func (w *watchers) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.of {
		for _, watcher := range all {
			wake(watcher.ch)
		}
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a token is there already
	}
}
