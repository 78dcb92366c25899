package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	// describeAtOnce bounds the instances that one list asks at the same time.
	describeAtOnce = 16
	// describeSoon is how long a list with the parameter "soon" waits for answers.
	describeSoon = 40 * time.Millisecond
	// knownBytesMax is about how many bytes of answers are kept.
	knownBytesMax = 16 << 20
)

// descriptions ask the schedules or the jobs of a list for their state. An answer takes a turn of
// the instance, which may have to be loaded, so it is kept until the instance records another
// event. The methods may be called concurrently.
type descriptions[D any] struct {
	ask func(ctx context.Context, id string) (*D, error)
	// size returns about how many bytes an answer takes; isValid reports whether it is valid at a
	// time.
	size    func(*D) int
	isValid func(*D, time.Time) bool

	mu    sync.Mutex
	known map[string]knownDescription[D] // by ID
	bytes int                            // of known
}

type knownDescription[D any] struct {
	of    instanceState
	value *D
}

// instanceState differs after an instance has changed.
type instanceState struct {
	execution, lastEvent uint64
	state                cluster.State
}

// described is an instance of a list with its answer. It has neither a value nor an error if the
// instance cannot answer in its state, or has not answered soon enough.
type described[D any] struct {
	*cluster.Status
	value *D
	err   error
	// unanswered says that the instance has not answered soon enough.
	unanswered bool
}

// of returns the instances with their answers. limit bounds the wait for these, unless it is 0. The
// error is that of ctx.
func (d *descriptions[D]) of(ctx context.Context, instances []*cluster.Status, limit time.Duration) ([]described[D], error) {
	asking, cancel := context.WithCancel(ctx)
	if limit > 0 {
		asking, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	all := make([]described[D], len(instances))
	var group errgroup.Group
	group.SetLimit(describeAtOnce)
	for i, status := range instances {
		one := &all[i]
		one.Status, one.value = status, d.knownOf(status)
		if one.value != nil || !repliesSoon(status.State) {
			continue
		}
		group.Go(func() error {
			if one.unanswered = asking.Err() != nil; !one.unanswered {
				one.value, one.err = d.ask(asking, status.InstanceID)
				one.unanswered = one.err != nil && asking.Err() != nil
			}
			switch {
			case one.unanswered:
				one.value, one.err = nil, nil
			case one.err == nil:
				d.keep(status, one.value)
			}
			return nil
		})
	}
	_ = group.Wait()
	return all, ctx.Err()
}

// repliesSoon reports whether an instance in a state answers queries soon.
func repliesSoon(state cluster.State) bool {
	return state != cluster.Stalled && state != cluster.Hung && state != cluster.WaitingForCode
}

func stateOf(s *cluster.Status) instanceState {
	return instanceState{s.Execution, s.LastEventID, s.State}
}

// knownOf returns the answer of an instance that has not changed since; nil if there is none.
func (d *descriptions[D]) knownOf(s *cluster.Status) *D {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.known[s.InstanceID]; ok && known.of == stateOf(s) && d.isValid(known.value, time.Now()) {
		return known.value
	}
	return nil
}

// keep keeps the answer of an instance that was in a state before it was asked.
func (d *descriptions[D]) keep(s *cluster.Status, value *D) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size := d.size(value)
	if old, ok := d.known[s.InstanceID]; ok {
		d.bytes -= d.size(old.value)
	}
	if d.known == nil || d.bytes+size > knownBytesMax {
		d.known, d.bytes = make(map[string]knownDescription[D]), 0
	}
	d.known[s.InstanceID] = knownDescription[D]{stateOf(s), value}
	d.bytes += size
}
