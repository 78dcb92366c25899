package cluster

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/stats"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var unreadEvent = replay.Event[string]("aside") // no code waits for it

// startLongHistory starts an instance with a history of several MiB.
func startLongHistory(ctx context.Context, t *testing.T, client *Client, id string) {
	t.Helper()
	if _, err := StartRun(ctx, client, waiter, id, ""); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := Send(ctx, client, id, unreadEvent, strings.Repeat("x", 400<<10)); err != nil {
			t.Fatal(err)
		}
	}
}

// No answer is much larger than a page, and the pages together are the history.
func TestHistory_ReadInPages(t *testing.T) {
	t.Parallel()
	nodes := startPeers(t, 3)
	ctx, leader := testContext(t), leaderOf(t, nodes)
	startLongHistory(ctx, t, leader.Client(), "long")
	client := dialNodes(t, DialConfig{membersRefreshInterval: -1}, nodes...)
	r := client.transport.(*remoteTransport)
	reach, pages := r.callNode, 0
	r.callNode = func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
		response := reach(ctx, address, request)
		if history := response.GetHistory(); history != nil {
			pages++
			size := 0
			for _, event := range history.Events {
				size += len(event)
			}
			if size > 2*admission.HistoryPageBytes {
				t.Errorf("a page has %d bytes", size)
			}
		}
		return response
	}
	got, err := client.History(ctx, "long")
	if err != nil {
		t.Fatal(err)
	}
	want, err := leader.Client().History(ctx, "long")
	if err != nil || got.String() != want.String() || got.Execution != 1 || pages < 4 {
		t.Errorf("%d events in %d pages, %v; want %d", len(got.Events), pages, err, len(want.Events))
	}
	for i, event := range got.Events {
		if event.EventID != uint64(i+1) {
			t.Errorf("event %d is at %d", event.EventID, i)
		}
	}
}

// Calls release their reservations when they end.
func TestAnswerLimiter_ManyHistoryReadersAreServed(t *testing.T) {
	t.Parallel()
	nodes := startPeers(t, 3)
	ctx, leader := testContext(t), leaderOf(t, nodes)
	startLongHistory(ctx, t, leader.Client(), "long")
	leader.answerLimiter = admission.NewAnswerLimiter(2 * admission.PageReserveBytes)
	client := dialNodes(t, DialConfig{}, nodes...)
	var wg sync.WaitGroup
	var read atomic.Int32
	for range 20 {
		wg.Go(func() {
			if history, err := client.History(ctx, "long"); err != nil {
				t.Error(err)
			} else if len(history.Events) == 12 {
				read.Add(1)
			}
		})
	}
	wg.Wait()
	if read.Load() != 20 {
		t.Errorf("%d of 20 have read all", read.Load())
	}
	eventually(t, "ended calls hold no reservation", func() bool { return canReservePages(t, leader.answerLimiter, 2) })
}

// canReservePages reports whether a limiter has room for that many pages.
func canReservePages(t *testing.T, limiter admission.AnswerLimiter, pages int) bool {
	var handler admission.StatsHandler
	for range pages {
		call := handler.TagRPC(testContext(t), nil)
		defer handler.HandleRPC(call, new(stats.End))
		if limiter.Reserve(call, true) != nil {
			return false
		}
	}
	return true
}
