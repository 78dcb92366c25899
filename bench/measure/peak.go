package measure

import (
	"sync"
	"time"
)

// peakEvery is how often a Peak looks.
const peakEvery = 20 * time.Millisecond

// A Peak is the most memory that this process holds between its start and its
// stop, garbage included, as far as looking now and then can tell.
type Peak struct {
	most    uint64
	once    sync.Once
	stop    chan struct{}
	watcher sync.WaitGroup
}

// StartPeak begins to look. The caller stops it.
func StartPeak() *Peak {
	p := &Peak{stop: make(chan struct{})}
	p.watcher.Go(p.watch)
	return p
}

func (p *Peak) watch() {
	every := time.NewTicker(peakEvery)
	defer every.Stop()
	for {
		p.most = max(p.most, held())
		select {
		case <-every.C:
		case <-p.stop:
			return
		}
	}
}

// Stop returns the peak in bytes. It may be called twice.
func (p *Peak) Stop() uint64 {
	p.once.Do(func() { close(p.stop) })
	p.watcher.Wait()
	return max(p.most, held())
}
