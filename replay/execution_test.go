package replay

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

func TestSanity(t *testing.T) {
	greet := Activity[string, string]("greet")
	hello := Orchestration[string, string]("hello")
	r, err := NewRegistry(hello.Bind(func(ctx *Context, in string) (string, error) {
		a, b := greet.Start(ctx, "a"), greet.Start(ctx, "b")
		vb, err := b.Await(ctx)
		if err != nil {
			return "", err
		}
		_, err = Event[int]("go").WaitFor(ctx, time.Second)
		if !errors.Is(err, ErrTimeout) {
			return "", err
		}
		n, err := Event[int]("go").Wait(ctx)
		if err != nil {
			return "", err
		}
		va, err := a.Await(ctx)
		return fmt.Sprint(va, vb, n), err
	}))
	if err != nil {
		t.Fatal(err)
	}
	in, _ := Encode("x")
	started := &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "hello", Input: in}}}
	var history []*journalpb.Event
	deliver := func(ms ...*journalpb.Event) {
		x := NewExecution("i", 1, r, nil)
		if err := x.Replay(func(yield func(*journalpb.Event, error) bool) {
			for _, e := range history {
				if !yield(e, nil) {
					return
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		var messages []Message
		for _, m := range ms {
			messages = append(messages, Message{Event: m})
		}
		turn, err := x.Turn(time.Now(), messages)
		if err != nil {
			t.Fatal(err)
		}
		history = append(history, turn.Events...)
		x.Drop()
	}
	done := func(id uint64, v string) *journalpb.Event {
		p, _ := Encode(v)
		return &journalpb.Event{SourceEventId: id, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Result: p, Attempts: 1}}}
	}
	deliver(started)
	deliver(done(2, "A"))
	deliver(done(3, "B"))
	n, _ := Encode(42)
	deliver(&journalpb.Event{SourceEventId: 7, Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{}}},
		&journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: &journalpb.ExternalEvent{Name: "go", Data: n}}})
	for _, e := range history {
		t.Log(e.EventId, Describe(e))
	}
}
