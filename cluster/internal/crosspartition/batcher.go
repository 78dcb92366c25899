package crosspartition

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of cross-partition messages.
const (
	// MessagesMax bounds the messages of a request.
	MessagesMax = 256
	// A request takes no further message after this many bytes; a payload has at most 4 MiB.
	messageBytesMax = 2 << 20
	// Requests in flight to one partition.
	requestsInFlightMax = 4
	// How long a receiver waits for the answers to a request. The sender repeats messages not
	// answered by then.
	answerWait     = 250 * time.Millisecond
	requestTimeout = 5 * time.Second
)

var errNotAnswered = errors.New("the leader of the other partition has not answered yet")

// A pendingMessage is a message in flight to another partition.
type pendingMessage struct {
	message *actors.CrossMessage
	done    func(actors.Answer)
}

// A batcher sends messages in batches from a partition that this node leads to another one. It
// sends each once; package actors repeats it. The open operations of the partition bound how many
// wait.
type batcher struct {
	ask    func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	own    Cuts // of the sending partition
	outbox *admission.BatchQueue[pendingMessage]
}

func newBatcher(ask func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response, own Cuts) *batcher {
	return &batcher{ask, own, admission.NewBatchQueue(MessagesMax, messageBytesMax, func(p pendingMessage) int { return proto.Size(p.message.Event) })}
}

// put adds a message. After run has returned, put answers it at once with an error.
func (b *batcher) put(p pendingMessage) {
	if !b.outbox.Put(p) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// run sends messages until ctx ends. Then it answers the rest with an error.
func (b *batcher) run(ctx context.Context) {
	for _, p := range b.outbox.Run(ctx, requestsInFlightMax, b.sendBatch) {
		p.done(actors.Answer{Err: actors.ErrStopped})
	}
}

// sendBatch sends a batch to the leader of the other partition, once.
func (b *batcher) sendBatch(ctx context.Context, batch []pendingMessage) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	crossRequest := &clusterpb.CrossMessagesRequest{Cut: b.own.Cut()}
	for _, p := range batch {
		crossRequest.Messages = append(crossRequest.Messages, &clusterpb.CrossMessage{
			Instance: p.message.Instance, Execution: p.message.Execution, Event: p.message.Event,
			Attach: p.message.Attach, ChildOf: p.message.ChildOf, Incarnation: p.message.Incarnation,
		})
	}
	response := b.ask(ctx, &clusterpb.Request{Call: &clusterpb.Request_CrossMessages{CrossMessages: crossRequest}})
	results := response.GetCrossMessages().GetResults()
	cutErr := FollowCut(ctx, b.own, response.GetCrossMessages().GetCut())
	for i, p := range batch {
		switch {
		case cutErr != nil:
			p.done(actors.Answer{Err: cutErr})
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

// Receive delivers the messages of a request to the partition that they are for, on its leader. own
// records the cuts of that partition. Receive returns after all messages are answered, or after
// answerWait with the answers so far. The error is that of recording the sender's cut: no message
// was delivered then.
func Receive(ctx context.Context, p *actors.Partition, own Cuts, r *clusterpb.CrossMessagesRequest) (*clusterpb.Response, error) {
	if err := FollowCut(ctx, own, r.Cut); err != nil {
		return nil, err
	}
	result := receive(ctx, p, r)
	result.Cut = own.Cut() // read after the answers
	return &clusterpb.Response{Result: &clusterpb.Response_CrossMessages{CrossMessages: result}}, nil
}

func receive(ctx context.Context, p *actors.Partition, r *clusterpb.CrossMessagesRequest) *clusterpb.CrossMessagesResult {
	type answered struct {
		at     int
		answer actors.Answer
	}
	answers := make(chan answered, len(r.Messages))
	result := &clusterpb.CrossMessagesResult{Results: make([]*clusterpb.CrossMessageResult, len(r.Messages))}
	for i := range r.Messages {
		result.Results[i] = &clusterpb.CrossMessageResult{Failure: errNotAnswered.Error()}
	}
	for i, c := range r.Messages {
		p.Receive(&actors.CrossMessage{
			Instance: c.Instance, Execution: c.Execution, Event: c.Event, Attach: c.Attach, ChildOf: c.ChildOf,
			Incarnation: c.Incarnation,
		}, func(a actors.Answer) { answers <- answered{i, a} })
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	for range r.Messages {
		select {
		case a := <-answers:
			result.Results[a.at] = encodeResult(a.answer)
		case <-ctx.Done():
			return result
		}
	}
	return result
}

func encodeResult(a actors.Answer) *clusterpb.CrossMessageResult {
	if a.Err != nil {
		return &clusterpb.CrossMessageResult{Failure: a.Err.Error()}
	}
	return &clusterpb.CrossMessageResult{Dropped: a.Dropped, Instance: a.Instance, End: a.LastEvent}
}
