package locks

import (
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (int, error) {
	var mu sync.Mutex
	mu.Lock() // want `^calls sync\.Mutex\.Lock: coroutines run one at a time and need no locks; replay\.NewSemaphore is for sections that block$`
	mu.Unlock()
	var group sync.WaitGroup
	group.Add(1) // want `calls sync\.WaitGroup\.Add`
	group.Done()
	group.Wait() // want `calls sync\.WaitGroup\.Wait: use replay\.Go and await the futures`
	var n atomic.Int64
	n.Add(1)                // want `calls atomic\.Int64\.Add`
	atomic.AddInt32(nil, 1) // want `calls atomic\.AddInt32`
	var once sync.Once
	once.Do(func() {}) // want `calls sync\.Once\.Do`

	gather() // want `calls gather, which calls sync\.WaitGroup\.Wait`
	s := &stock{}
	s.take() // a lock that is released before the function returns is harmless

	places := replay.NewSemaphore(1)
	if err := places.Acquire(ctx); err != nil {
		return 0, err
	}
	defer places.Release(ctx)
	return 0, nil
}

type stock struct {
	mu sync.Mutex
	n  int
}

func (s *stock) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
}

func gather() { // want gather:`sync: calls sync\.WaitGroup\.Wait`
	var group sync.WaitGroup
	group.Wait()
}
