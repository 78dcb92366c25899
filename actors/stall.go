package actors

// stallWatchers are those who want to know when an instance stalls.
type stallWatchers map[string]map[chan struct{}]struct{}

// WatchStalls returns a channel that has something when an instance has stalled
// since it was called, however often it did. cancel must be called.
func (p *Partition) WatchStalls(id string) (stalls <-chan struct{}, cancel func()) {
	watcher := make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers[id] == nil {
		p.watchers[id] = make(map[chan struct{}]struct{})
	}
	p.watchers[id][watcher] = struct{}{}
	return watcher, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watchers[id], watcher)
		if len(p.watchers[id]) == 0 {
			delete(p.watchers, id)
		}
	}
}

// tell tells those who watch an instance that it has stalled. The partition's
// lock is held.
func (w stallWatchers) tell(id string) {
	for watcher := range w[id] {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}
