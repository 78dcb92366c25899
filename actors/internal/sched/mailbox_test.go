package sched

import (
	"runtime"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

// A recordingActor records its messages; some of them make it panic.
type recordingActor struct {
	mailbox  *Mailbox
	messages []any
}

func (r *recordingActor) InvokeSystemMessage(message any) { r.messages = append(r.messages, message) }

func (r *recordingActor) InvokeUserMessage(message any) {
	if message == "panic" {
		panic("of an actor")
	}
	r.messages = append(r.messages, message)
}

// EscalateFailure does what the supervisor of every actor does.
func (r *recordingActor) EscalateFailure(reason, message any) {
	r.messages = append(r.messages, reason, message)
	r.mailbox.PostSystemMessage(&actor.SuspendMailbox{})
	r.mailbox.PostSystemMessage("stop")
}

func TestMailbox_ActorSemantics(t *testing.T) {
	d := NewDispatcher()
	defer func() {
		d.Close()
		d.Wait()
	}()
	m := d.NewMailbox()
	observed := &recordingActor{mailbox: m}
	m.RegisterHandlers(observed, d)
	for _, step := range []struct {
		what         string
		system, user []any
		want         []any
		left         int
	}{
		{what: "nothing"},
		{what: "in order", user: []any{1, 2, 3, 4, 5}, want: []any{1, 2, 3, 4, 5}},
		{what: "once more", user: []any{6}, want: []any{6}},
		{what: "what the system says first", system: []any{"a", "b"}, user: []any{1, 2}, want: []any{"a", "b", 1, 2}},
		{what: "a panic", user: []any{1, "panic", 2}, want: []any{1, "of an actor", "panic", "stop"}, left: 1},
		{what: "suspended", system: []any{"c"}, user: []any{3}, want: []any{"c"}, left: 2},
	} {
		m.running = true // so that no goroutine takes what is posted
		for _, message := range step.user {
			m.PostUserMessage(message)
		}
		for _, message := range step.system {
			m.PostSystemMessage(message)
		}
		observed.messages = nil
		m.Run()
		if !slices.Equal(observed.messages, step.want) || m.UserMessageCount() != step.left || m.running {
			t.Errorf("%s: %v and %d left; want %v and %d", step.what, observed.messages, m.UserMessageCount(), step.want, step.left)
		}
	}
}

// The mailbox of an actor that is always busy does not grow.
func TestMailbox_DoesNotGrow(t *testing.T) {
	m := NewDispatcher().NewMailbox()
	m.running = true
	posted, consumed := 0, 0
	for consumed < 10_000 {
		for posted < consumed+5 {
			m.PostUserMessage(posted)
			posted++
		}
		if message, _ := m.take(); message != consumed {
			t.Fatalf("took %v, want %v", message, consumed)
		}
		consumed++
	}
	if capacity := cap(m.user); capacity > 32 {
		t.Errorf("room for %d", capacity)
	}
}

// exitingActor calls Goexit at every second message.
type exitingActor struct {
	received chan any
	count    int
}

func (e *exitingActor) InvokeSystemMessage(any)  {}
func (e *exitingActor) EscalateFailure(_, _ any) {}

func (e *exitingActor) InvokeUserMessage(message any) {
	e.received <- message
	if e.count++; e.count%2 == 0 {
		runtime.Goexit()
	}
}

func TestUnboundedMailbox_SurvivesGoexit(t *testing.T) {
	d := NewDispatcher()
	m := d.NewUnboundedMailbox()
	exiting := &exitingActor{received: make(chan any)}
	m.RegisterHandlers(exiting, d)
	for i := range 10 {
		m.PostUserMessage(i)
	}
	for want := range 10 {
		if got := <-exiting.received; got != want {
			t.Errorf("received %v, want %d", got, want)
		}
	}
	d.Close()
	d.Wait()
}
