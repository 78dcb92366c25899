package membership

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// Bounds of discovery.
const (
	// AddressesMax bounds the addresses that one call of a Discover function may return. The first
	// in sorted order are used.
	AddressesMax = 64
	// discoverTimeout bounds one call.
	discoverTimeout = 10 * time.Second
	// A call that brings nothing is repeated after a pause that doubles from the first to the last.
	discoverBackoffMin = 200 * time.Millisecond
	discoverBackoffMax = 2 * time.Second
)

// A Discover function returns addresses at which nodes may be.
type Discover func(ctx context.Context) ([]string, error)

// Addresses calls the function, and returns at most AddressesMax addresses, sorted, each once. A
// panic of the function is an error.
func (d Discover) Addresses(ctx context.Context) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	defer func() {
		if value := recover(); value != nil {
			addresses, err = nil, fmt.Errorf("discover: panic: %v", value)
		}
	}()
	found, err := d(ctx)
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	for _, address := range found {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("discover: %w", &replay.InvalidError{Field: "Discover", Reason: "has returned an address that is not host:port: " + err.Error()})
		}
	}
	found = slices.Compact(slices.Sorted(slices.Values(found)))
	return found[:min(len(found), AddressesMax)], nil
}

// A Discoverer finds nodes while they are needed.
type Discoverer struct {
	Discover Discover
	// Needed reports whether nodes must be found. Between calls of Discover it is asked often.
	Needed func() bool
	// Introduce introduces this node to the node at an address. It must return when ctx ends.
	Introduce func(ctx context.Context, address string)
	// Failed is told why a call of Discover brought nothing.
	Failed func(error)

	mu   sync.Mutex
	last []string
}

// neededInterval is how often a Discoverer asks whether nodes must be found.
const neededInterval = 100 * time.Millisecond

// introduceTimeout bounds the introductions of one round.
const introduceTimeout = 2 * time.Second

// Run finds nodes until ctx ends.
func (d *Discoverer) Run(ctx context.Context) {
	delay := discoverBackoffMin
	for {
		pause := neededInterval
		if d.Needed() {
			d.round(ctx)
			pause, delay = delay, min(2*delay, discoverBackoffMax)
		} else {
			delay = discoverBackoffMin
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// round asks for addresses once, and introduces this node at each.
func (d *Discoverer) round(ctx context.Context) {
	addresses, err := d.Discover.Addresses(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.Failed(err)
		}
		addresses = d.Last() // nodes may still be there
	}
	d.mu.Lock()
	d.last = addresses
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, introduceTimeout)
	defer cancel()
	var introducing sync.WaitGroup
	for _, address := range addresses {
		introducing.Go(func() { d.Introduce(ctx, address) })
	}
	introducing.Wait()
}

// Last returns the addresses that were found last.
func (d *Discoverer) Last() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}
