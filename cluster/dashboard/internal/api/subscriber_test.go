package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// A stream subscribes to its topics one after the other, while those that it follows already
// publish.
func TestStreams_FollowWhileAnotherTopicPublishes(t *testing.T) {
	const rounds = 1000
	s := newStreams(1, 2)
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
		leaveBusy, err := s.follow("busy", "busy", to, busy)
		if err != nil {
			t.Fatal(err)
		}
		<-published
		leaveQuiet, err := s.follow("quiet", "quiet", to, quiet)
		if err != nil {
			t.Fatal(err)
		}
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

// Streams together follow at most so many different topics. One that would follow more follows
// none.
func TestStreams_BoundTopics(t *testing.T) {
	s := newStreams(10, 2)
	running := make(chan struct{}, 10)
	followed := func(names ...string) map[string]followedTopic {
		topics := map[string]followedTopic{}
		for _, name := range names {
			topics[name] = followedTopic{name, func(ctx context.Context, _ publisher) {
				running <- struct{}{}
				<-ctx.Done()
				<-running
			}}
		}
		return topics
	}
	leave, err := s.followAll(followed("list:a"), newSubscriber())
	if err != nil {
		t.Fatal(err)
	}
	var refused *statusError
	if _, err := s.followAll(followed("list:b", "list:c"), newSubscriber()); !errors.As(err, &refused) || refused.field != "topics" ||
		!strings.Contains(refused.message, "2") || len(s.topics) != 1 {
		t.Errorf("three topics: %v, %d remain", err, len(s.topics))
	}
	leaveBoth, err := s.followAll(followed("list:a", "list:b"), newSubscriber())
	if err != nil {
		t.Fatal(err)
	}
	leave()
	leaveBoth()
	if len(s.topics) != 0 || len(running) != 0 {
		t.Errorf("%d topics and %d producers remain", len(s.topics), len(running))
	}
	leave, err = s.followAll(followed("list:a", "list:b", "overview", "cluster"), newSubscriber())
	if err != nil {
		t.Fatalf("pages that all users share, while others use up the topics: %v", err)
	}
	leave()
}

// Topics pause for longer the more of them there are, and the longer their reads take.
func TestStreams_Pause(t *testing.T) {
	s := newStreams(1, 10)
	s.topics["a"], s.topics["b"] = &topic{}, &topic{}
	for took, want := range map[time.Duration]time.Duration{
		0: readInterval, time.Millisecond: readInterval, 50 * time.Millisecond: 2 * readPart * 50 * time.Millisecond, time.Minute: readIntervalMax,
	} {
		if got := s.pause(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}
