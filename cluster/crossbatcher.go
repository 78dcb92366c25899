package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of cross-partition messages.
const (
	crossMessagesMax = 256 // per request
	// A request takes no further message after this many bytes; a payload has at most 4 MiB.
	crossMessageBytesMax = 2 << 20
	// Requests in flight to one partition.
	crossRequestsInFlightMax = 4
	// How long a receiver waits for the answers to a request. The sender repeats messages not
	// answered by then.
	crossAnswerWait     = 250 * time.Millisecond
	crossRequestTimeout = 5 * time.Second
)

var errNotAnswered = errors.New("not answered yet")

// A pendingCrossMessage is a message in flight to another partition.
type pendingCrossMessage struct {
	message *actors.CrossMessage
	done    func(actors.Answer)
}

// A crossBatcher sends messages in batches from a partition that this node leads to another one. It
// sends each once; package actors repeats it. The open operations of the partition bound how many
// wait.
type crossBatcher struct {
	destination *partition
	outbox      *batchQueue[pendingCrossMessage]
}

func newCrossBatcher(to *partition) *crossBatcher {
	return &crossBatcher{to, newBatchQueue(crossMessagesMax, crossMessageBytesMax, func(p pendingCrossMessage) int { return proto.Size(p.message.Event) })}
}

// put adds a message. After run has returned, put answers it at once with an error.
func (c *crossBatcher) put(p pendingCrossMessage) {
	if !c.outbox.put(p) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// run sends messages until ctx ends. Then it answers the rest with an error.
func (c *crossBatcher) run(ctx context.Context) {
	for _, p := range c.outbox.run(ctx, crossRequestsInFlightMax, c.sendBatch) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// sendBatch sends a batch to the leader of the other partition, once.
func (c *crossBatcher) sendBatch(ctx context.Context, batch []pendingCrossMessage) {
	ctx, cancel := context.WithTimeout(ctx, crossRequestTimeout)
	defer cancel()
	crossRequest := new(clusterpb.CrossMessagesRequest)
	for _, p := range batch {
		crossRequest.Messages = append(crossRequest.Messages, &clusterpb.CrossMessage{
			Instance: p.message.Instance, Execution: p.message.Execution, Event: p.message.Event,
			Attach: p.message.Attach, ChildOf: p.message.ChildOf, Incarnation: p.message.Incarnation,
		})
	}
	response := c.destination.ask(ctx, c.destination.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_CrossMessages{CrossMessages: crossRequest}}))
	results := response.GetCrossMessages().GetResults()
	for i, p := range batch {
		switch {
		case response.GetFailure() != nil:
			p.done(actors.Answer{Err: errors.New(response.Failure.Message)})
		case i >= len(results):
			p.done(actors.Answer{Err: errNotAnswered})
		case results[i].Failure != "":
			p.done(actors.Answer{Err: errors.New(results[i].Failure)})
		default:
			p.done(actors.Answer{Dropped: results[i].Dropped, Instance: results[i].Instance, LastEvent: results[i].End})
		}
	}
}

// receiveCrossMessages receives messages of another partition, on the leader of this one. It
// returns after all are answered, or after crossAnswerWait with the answers so far.
func (g *partition) receiveCrossMessages(ctx context.Context, p *actors.Partition, r *clusterpb.CrossMessagesRequest) (*clusterpb.Response, error) {
	if len(r.Messages) > crossMessagesMax {
		return nil, &InputError{"cross-partition messages", fmt.Sprintf("are %d: at most %d are allowed", len(r.Messages), crossMessagesMax)}
	}
	type answered struct {
		at     int
		answer actors.Answer
	}
	answers := make(chan answered, len(r.Messages))
	result := &clusterpb.CrossMessagesResult{Results: make([]*clusterpb.CrossMessageResult, len(r.Messages))}
	for i, c := range r.Messages {
		result.Results[i] = &clusterpb.CrossMessageResult{Failure: errNotAnswered.Error()}
		if err := g.checkCrossMessage(c); err != nil {
			return nil, err
		}
	}
	for i, c := range r.Messages {
		p.Receive(&actors.CrossMessage{
			Instance: c.Instance, Execution: c.Execution, Event: c.Event, Attach: c.Attach, ChildOf: c.ChildOf,
			Incarnation: c.Incarnation,
		}, func(a actors.Answer) { answers <- answered{i, a} })
	}
	ctx, cancel := context.WithTimeout(ctx, crossAnswerWait)
	defer cancel()
	for range r.Messages {
		select {
		case a := <-answers:
			result.Results[a.at] = wireCrossResult(a.answer)
		case <-ctx.Done():
			return &clusterpb.Response{Result: &clusterpb.Response_CrossMessages{CrossMessages: result}}, nil
		}
	}
	return &clusterpb.Response{Result: &clusterpb.Response_CrossMessages{CrossMessages: result}}, nil
}

// checkCrossMessage returns an error for a message that no correct node sends.
func (g *partition) checkCrossMessage(c *clusterpb.CrossMessage) error {
	switch {
	case c.GetEvent() == nil:
		return &InputError{"cross-partition message", "has no event"}
	case g.partitionOf(c.Instance) != g:
		return &InputError{"cross-partition message", "is for another partition"}
	}
	return nil
}

func wireCrossResult(a actors.Answer) *clusterpb.CrossMessageResult {
	if a.Err != nil {
		return &clusterpb.CrossMessageResult{Failure: a.Err.Error()}
	}
	return &clusterpb.CrossMessageResult{Dropped: a.Dropped, Instance: a.Instance, End: a.LastEvent}
}
