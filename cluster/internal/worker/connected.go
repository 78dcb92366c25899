package worker

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A Connected holds the workers that are connected to the leader of a partition and are no nodes.
// Its zero value is empty. Its methods may be called concurrently.
type Connected struct {
	mu  sync.Mutex
	all map[*Session]bool
}

// A Session is the connection of one worker.
type Session struct {
	of          *Connected
	address     string
	since       time.Time
	lastContact atomic.Int64 // Unix nanoseconds
	registered  atomic.Pointer[clusterpb.RegisterWorker]
	draining    atomic.Bool
}

// Add adds a connection. It returns nil if there are as many as most already.
func (c *Connected) Add(address string, most int) *Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= most {
		return nil
	}
	if c.all == nil {
		c.all = make(map[*Session]bool)
	}
	s := &Session{of: c, address: address, since: time.Now()}
	s.Contact()
	c.all[s] = true
	return s
}

// Contact notes that the worker has sent a message.
func (s *Session) Contact() { s.lastContact.Store(time.Now().UnixNano()) }

// Register notes what the worker has registered. The caller must not change it later.
func (s *Session) Register(registration *clusterpb.RegisterWorker) { s.registered.Store(registration) }

// Drain notes that the worker takes no more attempts.
func (s *Session) Drain() { s.draining.Store(true) }

// Remove removes the connection.
func (s *Session) Remove() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	delete(s.of.all, s)
}

// List returns the registered workers in order of their IDs. used returns how many slots the
// attempts of the leader use.
func (c *Connected) List(used func(*clusterpb.RegisterWorker) int) (all []*clusterpb.ConnectedWorker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.all {
		r := s.registered.Load()
		if r == nil {
			continue
		}
		all = append(all, &clusterpb.ConnectedWorker{
			Worker: r.Worker, Client: r.Client, Address: s.address, Tags: r.Tags, Activities: r.Activities, Slots: r.Slots,
			Used: uint32(used(r)), Since: s.since.UnixNano(), LastContact: s.lastContact.Load(), Draining: s.draining.Load(),
		})
	}
	slices.SortFunc(all, func(a, b *clusterpb.ConnectedWorker) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Since, b.Since))
	})
	return all
}
