package measure

import (
	"sync"
	"time"
)

// peakInterval is the sampling interval of a Peak.
const peakInterval = 20 * time.Millisecond

// A Peak samples the largest memory of this process between start and stop, garbage included.
type Peak struct {
	most    uint64
	once    sync.Once
	stop    chan struct{}
	watcher sync.WaitGroup
}

// StartPeak starts sampling. The caller stops it.
func StartPeak() *Peak {
	p := &Peak{stop: make(chan struct{})}
	p.watcher.Go(p.watch)
	return p
}

func (p *Peak) watch() {
	every := time.NewTicker(peakInterval)
	defer every.Stop()
	for {
		p.most = max(p.most, liveBytes())
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
	return max(p.most, liveBytes())
}
