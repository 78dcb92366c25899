package routing

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A start whose caller is gone before it was sent is not sent.
func TestForwarder_DropsAbandonedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		f := NewForwarder(Config{OtherLeader: func() string { return "" }})
		gone, abandon := context.WithCancel(t.Context())
		abandon()
		lone, left := &forwardedStart{ctx: t.Context(), answer: make(chan *clusterpb.Response, 1)}, &forwardedStart{ctx: gone, answer: make(chan *clusterpb.Response, 1)}
		f.sendBatch(t.Context(), []*forwardedStart{left, lone})
		if len(lone.answer) != 1 || len(left.answer) != 0 {
			t.Errorf("%d answers for a waiting caller, %d for one that is gone", len(lone.answer), len(left.answer))
		}
	})
}

// A start whose caller is gone, or whose node closes, is answered at once.
func TestForwarder_AnswersUnsentStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		f := NewForwarder(Config{OtherLeader: func() string { return "" }})
		gone, abandon := context.WithCancel(t.Context())
		abandon()
		if failure := f.Ask(gone, newStartRequest()).GetFailure(); failure.GetCode() != wire.CodeUnknown {
			t.Errorf("a caller that is gone: %v", failure)
		}
		answered := make(chan *clusterpb.Response)
		go func() { answered <- f.Ask(t.Context(), newStartRequest()) }()
		closing, end := context.WithCancel(t.Context())
		end()
		f.Run(closing)
		if failure := (<-answered).GetFailure(); failure.GetCode() != wire.CodeNotLeader || !failure.NotExecuted {
			t.Errorf("a node that closes: %v", failure)
		}
		if failure := f.Ask(t.Context(), newStartRequest()).GetFailure(); failure.GetCode() != wire.CodeNotLeader {
			t.Errorf("a node that is closed: %v", failure)
		}
	})
}

// The first few starts are sent at once; after that, starts that arrive within a pause are sent
// together.
func TestForwarder_BatchesWhileSomeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, begin := NewForwarder(Config{}), time.Now()
		type sent struct {
			after time.Duration
			size  int
		}
		var all []sent
		ctx, end := context.WithCancel(t.Context())
		var sending sync.WaitGroup
		sending.Go(func() {
			f.run(ctx, func(ctx context.Context, batch []*forwardedStart) {
				all = append(all, sent{time.Since(begin), len(batch)})
				<-ctx.Done()
			})
		})
		put := func() {
			f.outbox.Put(new(forwardedStart))
			synctest.Wait()
		}
		for range forwardsUnpacedMax {
			put()
		}
		time.Sleep(forwardPause / 8)
		for range 2 * 4 {
			put()
			time.Sleep(forwardPause / 4)
		}
		end()
		sending.Wait()
		want := slices.Repeat([]sent{{0, 1}}, forwardsUnpacedMax)
		want = append(want, sent{forwardPause, 4}, sent{2 * forwardPause, 4})
		if !slices.Equal(all, want) {
			t.Errorf("sent %v, want %v", all, want)
		}
	})
}

func newStartRequest() *clusterpb.Request {
	return &clusterpb.Request{Call: &clusterpb.Request_Start{Start: new(clusterpb.StartRequest)}}
}
