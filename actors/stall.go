package actors

import (
	"errors"
	"maps"

	"github.com/tenuto-dev/tenuto/replay"
)

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

// WaitingForCode returns how many instances cannot go on because this node has no code for
// them, by the code that they wait for. An instance that nothing has arrived for is not among
// them.
func (p *Partition) WaitingForCode() map[Code]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.waiting)
}

// countWaiting counts an instance that has stalled for a reason, or does not any more. The
// partition's lock is held.
func (p *Partition) countWaiting(reason error, change int) {
	var noCode *replay.NoCodeError
	if !errors.As(reason, &noCode) || noCode.Activity {
		return
	}
	code := Code{noCode.Name, noCode.Version}
	if p.waiting[code] += change; p.waiting[code] == 0 {
		delete(p.waiting, code)
	}
}
