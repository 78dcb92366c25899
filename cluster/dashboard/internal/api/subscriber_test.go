package api

import (
	"context"
	"testing"
	"time"
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

// Topics pause for longer the more of them there are, and the longer their reads take.
func TestStreams_Pause(t *testing.T) {
	s := newStreams(1)
	s.topics["a"], s.topics["b"] = &topic{}, &topic{}
	for took, want := range map[time.Duration]time.Duration{
		0: readInterval, time.Millisecond: readInterval, 50 * time.Millisecond: 2 * readPart * 50 * time.Millisecond, time.Minute: readIntervalMax,
	} {
		if got := s.pause(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}
