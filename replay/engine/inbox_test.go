package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The k-th subscription of a name that is not withdrawn gets the k-th event.
func TestInbox_MatchesByNameAndOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var b inbox
		got := make(map[*operation]*journalpb.ExternalEvent)
		subscriptions := make(map[string][]*operation)
		arrivals := make(map[string][]*journalpb.ExternalEvent)
		for range 60 {
			name := fmt.Sprint(random.IntN(3))
			switch random.IntN(5) {
			case 0, 1:
				event := &journalpb.ExternalEvent{Name: name}
				arrivals[name] = append(arrivals[name], event)
				if op := b.deliver(inboxEvent{event: event}); op != nil {
					got[op] = event
				}
			case 2, 3:
				op := &operation{name: name}
				subscriptions[name] = append(subscriptions[name], op)
				if accepted, ok := b.subscribe(op); ok {
					got[op] = accepted.event
				}
			case 4:
				withdrawn := unsubscribeOne(&b, random, subscriptions[name], got)
				subscriptions[name] = slices.DeleteFunc(subscriptions[name], func(op *operation) bool { return op == withdrawn })
			}
		}
		for name, list := range subscriptions {
			for k, op := range list {
				var want *journalpb.ExternalEvent
				if k < len(arrivals[name]) {
					want = arrivals[name][k]
				}
				if got[op] != want {
					t.Fatalf("subscription %d of %q got the wrong event", k, name)
				}
			}
		}
	}
}

// unsubscribeOne withdraws a waiting subscription.
func unsubscribeOne(b *inbox, random *rand.Rand, list []*operation, got map[*operation]*journalpb.ExternalEvent) *operation {
	var waiting []*operation
	for _, op := range list {
		if got[op] == nil {
			waiting = append(waiting, op)
		}
	}
	if len(waiting) == 0 {
		b.unsubscribe(&operation{name: "unknown"})
		return nil
	}
	op := waiting[random.IntN(len(waiting))]
	b.unsubscribe(op)
	return op
}

func TestInbox_ReleasesConsumedEvents(t *testing.T) {
	var b inbox
	for range 100 {
		b.deliver(inboxEvent{event: &journalpb.ExternalEvent{Name: "x"}})
	}
	for range 100 {
		if _, ok := b.subscribe(&operation{name: "x"}); !ok {
			t.Fatal("an event was lost")
		}
	}
	b.subscribe(&operation{name: "x"})
	if b.deliver(inboxEvent{event: &journalpb.ExternalEvent{Name: "x"}}) == nil {
		t.Fatal("a subscription was lost")
	}
	withdrawn := &operation{name: "x"}
	b.subscribe(withdrawn)
	b.unsubscribe(withdrawn)
	if b.buffered.len() != 0 || b.waiting.len() != 0 {
		t.Errorf("%d buffered, %d waiting", b.buffered.len(), b.waiting.len())
	}
}

func TestBitmap_AddHas(t *testing.T) {
	var b bitmap
	if b.has(0) || b.has(1<<63) {
		t.Error("an empty bitmap has members")
	}
	members := []uint64{0, 1, 63, 64, 65, 127, 128, 1000, 4096}
	for _, n := range members {
		b.add(n)
		b.add(n)
	}
	for n := range uint64(5000) {
		if b.has(n) != slices.Contains(members, n) {
			t.Errorf("%d: %t", n, b.has(n))
		}
	}
	if b.has(1 << 63) {
		t.Error("the bitmap has a member beyond its end")
	}
}
