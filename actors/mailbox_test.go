package actors

import (
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

// An invoked is an actor that notes what it is given; some of that it does not
// survive.
type invoked struct {
	mailbox *mailbox
	seen    []any
}

func (i *invoked) InvokeSystemMessage(message any) { i.seen = append(i.seen, message) }

func (i *invoked) InvokeUserMessage(message any) {
	if message == "panic" {
		panic("of an actor")
	}
	i.seen = append(i.seen, message)
}

// EscalateFailure does what the supervisor of every actor here does.
func (i *invoked) EscalateFailure(reason, message any) {
	i.seen = append(i.seen, reason, message)
	i.mailbox.PostSystemMessage(&actor.SuspendMailbox{})
	i.mailbox.PostSystemMessage("stop")
}

func TestMailboxKeepsTheRulesOfAnActor(t *testing.T) {
	d := newDispatcher()
	defer func() {
		d.close()
		d.wait()
	}()
	m := d.newMailbox()
	told := &invoked{mailbox: m}
	m.RegisterHandlers(told, d)
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
		m.running = true // so that nobody else takes what is posted
		for _, message := range step.user {
			m.PostUserMessage(message)
		}
		for _, message := range step.system {
			m.PostSystemMessage(message)
		}
		told.seen = nil
		m.run()
		if !slices.Equal(told.seen, step.want) || m.UserMessageCount() != step.left || m.running {
			t.Errorf("%s: %v and %d left; want %v and %d", step.what, told.seen, m.UserMessageCount(), step.want, step.left)
		}
	}
}

// An actor that always has something to take does not make its mailbox grow.
func TestMailboxTakesNoMoreRoomThanWhatWaits(t *testing.T) {
	m := newDispatcher().newMailbox()
	m.running = true
	posted, taken := 0, 0
	for taken < 10_000 {
		for posted < taken+5 {
			m.PostUserMessage(posted)
			posted++
		}
		if message, _ := m.take(); message != taken {
			t.Fatalf("took %v, want %v", message, taken)
		}
		taken++
	}
	if room := cap(m.user); room > 32 {
		t.Errorf("room for %d", room)
	}
}
