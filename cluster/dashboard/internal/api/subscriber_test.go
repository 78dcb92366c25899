package api

import (
	"context"
	"testing"
)

// A stream subscribes to its topics one after the other, while those that it follows already publish.
func TestStreams_FollowWhileAnotherTopicPublishes(t *testing.T) {
	const rounds = 1000
	s := newStreams(1)
	published := make(chan struct{})
	busy := func(ctx context.Context, publish publisher) {
		for ctx.Err() == nil {
			publish("changed", struct{}{})
			select {
			case published <- struct{}{}:
			default:
			}
		}
	}
	quiet := func(ctx context.Context, _ publisher) { <-ctx.Done() }
	for range rounds {
		to := newSubscriber()
		leaveBusy := s.follow("busy", "busy", to, busy)
		<-published
		leaveQuiet := s.follow("quiet", "quiet", to, quiet)
		<-published
		leaveQuiet()
		leaveBusy()
		if names, _ := to.take(); len(names) != 1 || names[0] != "busy-changed" {
			t.Fatalf("events %q; want busy-changed alone", names)
		}
	}
	if len(s.topics) != 0 {
		t.Errorf("%d topics remain", len(s.topics))
	}
}
