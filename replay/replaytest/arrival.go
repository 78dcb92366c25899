package replaytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An arrival waits to be admitted: an append, the result of an attempt, or a message to an
// instance.
type arrival struct {
	// The sort key of arrivals.
	instance  string
	execution uint64
	eventID   uint64
	number    int

	proposal *proposal
	commit   *commit // the proposal, decoded
	held     *heldItem

	// concurrent: several of these may arrive at the same moment, and node.order chooses which is
	// first.
	concurrent bool
	name       func() string
}

// nextArrival returns the arrival to admit next, or nil. Appends come first, because they are
// already proposed. An append that ends a child is chosen among the concurrent arrivals, because
// its order decides when the parent gets the end.
func (n *node) nextArrival() (*arrival, error) {
	var concurrent []*arrival
	var first *arrival
	for _, p := range n.journal.pendingProposals() {
		a, err := n.arrivalOf(p)
		switch {
		case err != nil:
			return nil, err
		case a.concurrent:
			concurrent = append(concurrent, a)
		case first == nil || compareArrivals(a, first) < 0:
			first = a
		}
	}
	if first != nil {
		return first, nil
	}
	for _, h := range n.barrier.waitingNow() {
		concurrent = append(concurrent, h.toArrival())
	}
	if len(concurrent) == 0 {
		return nil, nil
	}
	index := n.order.choose(len(concurrent))
	if index == 0 { // the common case needs no sorting
		first = slices.MinFunc(concurrent, compareArrivals)
	} else {
		slices.SortFunc(concurrent, compareArrivals)
		first = concurrent[index]
	}
	n.order.recordChoice(first.name)
	return first, nil
}

// toArrival returns h as an arrival.
func (h *heldItem) toArrival() *arrival {
	if h.arrival == nil {
		h.arrival = &arrival{
			instance:   h.instance,
			execution:  h.execution,
			eventID:    h.eventID,
			number:     h.number,
			held:       h,
			concurrent: true,
			name:       func() string { return fmt.Sprintf("%s of %s (event %d)", h.what, h.instance, h.eventID) },
		}
	}
	return h.arrival
}

func compareArrivals(a, b *arrival) int {
	return cmp.Or(
		cmp.Compare(a.instance, b.instance),
		cmp.Compare(a.execution, b.execution),
		cmp.Compare(a.eventID, b.eventID),
		cmp.Compare(a.number, b.number),
	)
}

func (n *node) arrivalOf(p *proposal) (*arrival, error) {
	if p.arrival != nil {
		return p.arrival, nil
	}
	c, err := newCommit(p.append)
	if err != nil {
		return nil, err
	}
	events := c.events()
	last := events[len(events)-1]
	p.arrival = &arrival{
		instance:   c.instance,
		proposal:   p,
		commit:     c,
		concurrent: journalpb.IsTerminal(last.TypeNumber()) && n.hasParent(c),
		name:       func() string { return "the end of child " + c.instance },
	}
	return p.arrival, nil
}

// hasParent reports whether an append belongs to a child.
func (n *node) hasParent(c *commit) bool {
	if started := c.segments[0].events[0].GetOrchestrationStarted(); started != nil {
		return started.Parent != nil
	}
	known, ok := n.journal.Instance(c.instance)
	return ok && known.Parent != nil
}
