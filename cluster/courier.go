package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of what is brought from one group to another.
const (
	crossingsMax = 256 // in one request
	// After so many bytes a request takes no further one; a payload is at most 4 MiB.
	crossingBytesMax = 2 << 20
	// How many requests to one group are on their way at once.
	couriersMax = 4
	// How long a receiver lets a request wait for its answers; what is not answered
	// by then is asked for again.
	crossWait = 250 * time.Millisecond
	// How long the whole may take.
	crossTimeout = 5 * time.Second
)

var errNotAnswered = errors.New("not answered yet")

// A parcel is a message on its way to another group.
type parcel struct {
	crossing *actors.Crossing
	done     func(actors.Answer)
}

// A courier brings messages from a group that this node leads to another one, in
// batches: each once, whoever sends them repeats them. How many can wait is bounded
// by what the group has open.
type courier struct {
	to     *group
	outbox *outbox[parcel]
}

func newCourier(to *group) *courier {
	return &courier{to, newOutbox(crossingsMax, crossingBytesMax, func(p parcel) int { return proto.Size(p.crossing.Event) })}
}

// put hands a message over. After the end it is answered at once.
func (c *courier) put(p parcel) {
	if !c.outbox.put(p) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// carry brings what is put, until ctx ends. What is left is answered.
func (c *courier) carry(ctx context.Context) {
	for _, p := range c.outbox.carry(ctx, couriersMax, c.bring) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// bring has a batch taken by the leader of the other group, once.
func (c *courier) bring(ctx context.Context, batch []parcel) {
	ctx, cancel := context.WithTimeout(ctx, crossTimeout)
	defer cancel()
	cross := new(clusterpb.CrossRequest)
	for _, p := range batch {
		cross.Crossings = append(cross.Crossings, &clusterpb.Crossing{
			Instance: p.crossing.Instance, Execution: p.crossing.Execution, Event: p.crossing.Event,
			Attach: p.crossing.Attach, ChildOf: p.crossing.ChildOf, Incarnation: p.crossing.Incarnation,
		})
	}
	response := c.to.ask(ctx, c.to.request(&clusterpb.Request{Call: &clusterpb.Request_Cross{Cross: cross}}))
	crossed := response.GetCross().GetCrossed()
	for i, p := range batch {
		switch {
		case response.GetFailure() != nil:
			p.done(actors.Answer{Err: errors.New(response.Failure.Message)})
		case i >= len(crossed):
			p.done(actors.Answer{Err: errNotAnswered})
		case crossed[i].Failure != "":
			p.done(actors.Answer{Err: errors.New(crossed[i].Failure)})
		default:
			p.done(actors.Answer{Dropped: crossed[i].Dropped, Instance: crossed[i].Instance, End: crossed[i].End})
		}
	}
}

// cross takes what another group sends, on the node that leads this one. It
// answers when everything is answered, or after a while, as far as it is.
func (g *group) cross(ctx context.Context, p *actors.Partition, r *clusterpb.CrossRequest) (*clusterpb.Response, error) {
	if len(r.Crossings) > crossingsMax {
		return nil, &InputError{"crossings", "are too many"}
	}
	type answered struct {
		at     int
		answer actors.Answer
	}
	answers := make(chan answered, len(r.Crossings))
	result := &clusterpb.CrossResult{Crossed: make([]*clusterpb.Crossed, len(r.Crossings))}
	for i, c := range r.Crossings {
		result.Crossed[i] = &clusterpb.Crossed{Failure: errNotAnswered.Error()}
		if err := g.checkCrossing(c); err != nil {
			return nil, err
		}
	}
	for i, c := range r.Crossings {
		p.Receive(&actors.Crossing{
			Instance: c.Instance, Execution: c.Execution, Event: c.Event, Attach: c.Attach, ChildOf: c.ChildOf,
			Incarnation: c.Incarnation,
		}, func(a actors.Answer) { answers <- answered{i, a} })
	}
	ctx, cancel := context.WithTimeout(ctx, crossWait)
	defer cancel()
	for range r.Crossings {
		select {
		case a := <-answers:
			result.Crossed[a.at] = wireAnswer(a.answer)
		case <-ctx.Done():
			return &clusterpb.Response{Result: &clusterpb.Response_Cross{Cross: result}}, nil
		}
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Cross{Cross: result}}, nil
}

// checkCrossing refuses what no node sends.
func (g *group) checkCrossing(c *clusterpb.Crossing) error {
	switch {
	case c.GetEvent() == nil:
		return &InputError{"crossing", "has no event"}
	case g.of(c.Instance) != g:
		return &InputError{"crossing", "is for another group"}
	}
	return nil
}

func wireAnswer(a actors.Answer) *clusterpb.Crossed {
	if a.Err != nil {
		return &clusterpb.Crossed{Failure: a.Err.Error()}
	}
	return &clusterpb.Crossed{Dropped: a.Dropped, Instance: a.Instance, End: a.End}
}
