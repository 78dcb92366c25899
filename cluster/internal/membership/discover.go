package membership

import (
	"context"
	"errors"
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
	// discoverGrace is how long a call may take to return after its context has ended.
	discoverGrace = time.Second
	// A call that brings nothing is repeated after a pause that doubles from the first to the last.
	discoverBackoffMin = 200 * time.Millisecond
	discoverBackoffMax = 2 * time.Second
)

// A Discover function returns addresses at which nodes may be.
type Discover func(ctx context.Context) ([]string, error)

// Bounded returns a function that calls d, but returns soon after its context has ended even if d
// does not. Until d has returned, it does not call it again. A panic of d is an error. It returns
// nil for nil.
func Bounded(d Discover) Discover {
	if d == nil {
		return nil
	}
	free := make(chan struct{}, 1) // has an element while d does not run
	free <- struct{}{}
	return func(ctx context.Context) ([]string, error) {
		select {
		case <-free:
		default:
			return nil, errors.New("the function has not returned since it was called last, although its context has ended")
		}
		var found []string
		var err error
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			defer func() { free <- struct{}{} }()
			found, err = d.recovering(ctx)
		}()
		select {
		case <-returned:
			return found, err
		case <-ctx.Done():
		}
		grace := time.NewTimer(discoverGrace)
		defer grace.Stop()
		select {
		case <-returned:
			return found, err
		case <-grace.C:
			return nil, fmt.Errorf("the function has not returned %v after the end of its context: %w", discoverGrace, context.Cause(ctx))
		}
	}
}

// recovering calls the function. A panic is an error.
func (d Discover) recovering(ctx context.Context) (found []string, err error) {
	defer func() {
		if value := recover(); value != nil {
			found, err = nil, fmt.Errorf("panic: %v", value)
		}
	}()
	return d(ctx)
}

// Addresses calls the function, which [Bounded] has returned, and returns at most AddressesMax
// addresses, sorted, each once.
func (d Discover) Addresses(ctx context.Context) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
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
