package actors

import (
	"errors"
	"maps"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/replay"
)

// stallWatchers are the channels notified when an instance stalls.
type stallWatchers map[string]map[chan struct{}]struct{}

// WatchStalls returns a channel that receives a value when an instance stalls after the call.
// Several stalls before the caller receives are one value. The caller must call cancel.
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

// notify tells the watchers of an instance that it has stalled. The partition's lock is held.
func (w stallWatchers) notify(id string) {
	for watcher := range w[id] {
		select {
		case watcher <- struct{}{}:
		default:
		}
	}
}

// WaitingForCode returns the number of instances that cannot continue because this node lacks
// their code, by code. An instance without new messages is not counted.
func (p *Partition) WaitingForCode() map[session.Code]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.waitingForCode)
}

// adjustWaitingForCode adds change to the number of instances that wait for the code named by a reason.
// The partition's lock is held.
func (p *Partition) adjustWaitingForCode(reason error, change int) {
	var noCode *replay.NoCodeError
	if !errors.As(reason, &noCode) || noCode.Activity {
		return
	}
	code := session.Code{Name: noCode.Name, Version: noCode.Version}
	if p.waitingForCode[code] += change; p.waitingForCode[code] == 0 {
		delete(p.waitingForCode, code)
	}
}
