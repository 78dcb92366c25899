package state

import (
	"slices"
	"sync"
)

// watchers holds the channels of callers that wait for instances to change or end.
type watchers struct {
	mu         sync.Mutex
	byInstance map[string][]watcher
}

type watcher struct {
	ch       chan struct{}
	endsOnly bool
}

// Watch returns a channel that receives a value after the instance has changed: one value, however
// often it changed since the last receive. To miss no change, call Watch first and read then. The
// instance need not exist yet. cancel ends the watch and may be called more than once. The channel
// is never closed.
func (m *Machine) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	return m.watchers.add(instance, false)
}

// WatchEnd is like Watch, but signals only changes after which the instance has ended or is
// unknown.
func (m *Machine) WatchEnd(instance string) (changed <-chan struct{}, cancel func()) {
	return m.watchers.add(instance, true)
}

// settingsKey is the key of those that watch the settings. It is no instance ID.
const settingsKey = ""

// WatchSettings is like [Machine.Watch] for the settings of the cluster and the roles of its
// members.
func (m *Machine) WatchSettings() (changed <-chan struct{}, cancel func()) {
	return m.watchers.add(settingsKey, false)
}

func (w *watchers) add(instance string, endsOnly bool) (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byInstance == nil {
		w.byInstance = map[string][]watcher{}
	}
	w.byInstance[instance] = append(w.byInstance[instance], watcher{ch, endsOnly})
	return ch, func() { w.remove(instance, ch) }
}

func (w *watchers) remove(instance string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.byInstance[instance], func(other watcher) bool { return other.ch == ch })
	if len(rest) == 0 {
		delete(w.byInstance, instance)
		return
	}
	w.byInstance[instance] = rest
}

// notify signals that an instance has changed; isRunning reports whether it is running.
func (w *watchers) notify(instance string, isRunning bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watcher := range w.byInstance[instance] {
		if !isRunning || !watcher.endsOnly {
			signal(watcher.ch)
		}
	}
}

func (w *watchers) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, all := range w.byInstance {
		for _, watcher := range all {
			signal(watcher.ch)
		}
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // a value is waiting already
	}
}
