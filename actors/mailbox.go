package actors

import (
	"runtime"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// throughput is how many messages an actor takes before it lets others run.
const throughput = 300

// mailboxesInARow is how many mailboxes a goroutine runs before it lets others run.
// Whoever does not is stopped by the runtime's scheduler after 10 ms: that is how long each
// of those that run mailboxes would keep a heartbeat from its processor. More often, and
// the journal's entries get smaller than they need be.
const mailboxesInARow = 16

// A mailbox is what an actor has been told and has not taken yet. It keeps the rules
// of protoactor's own, with one allocation for an actor instead of five and none
// for waking it. Nobody posts but this package: there are no batches in it.
type mailbox struct {
	dispatcher *dispatcher
	invoker    actor.MessageInvoker

	mu        sync.Mutex
	system    []any // come before those of users
	user      []any
	first     [2]any // room for as many as there mostly are
	next      int    // of user, the first that was not taken
	running   bool   // a goroutine has the mailbox, or will
	suspended bool   // only system messages are taken
	left      bool   // the dispatcher does not count the goroutine that runs it any more; that one's

	behind *mailbox // waits after this one for a goroutine; the dispatcher's
}

func (d *dispatcher) newMailbox() *mailbox {
	m := &mailbox{dispatcher: d}
	m.user = m.first[:0]
	return m
}

// PostUserMessage implements actor.Mailbox.
func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	if len(m.user) == cap(m.user) && m.next > len(m.user)/2 {
		// Where those were that are taken there is room enough.
		kept := copy(m.user, m.user[m.next:])
		clear(m.user[kept:])
		m.user, m.next = m.user[:kept], 0
	}
	m.user = append(m.user, message)
	wake := !m.running && !m.suspended
	m.running = m.running || wake
	m.mu.Unlock()
	if wake {
		m.dispatcher.act(m)
	}
}

// PostSystemMessage implements actor.Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	wake := !m.running
	m.running = true
	m.mu.Unlock()
	if wake {
		m.dispatcher.act(m)
	}
}

// RegisterHandlers implements actor.Mailbox.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start implements actor.Mailbox.
func (m *mailbox) Start() {}

// UserMessageCount implements actor.Mailbox.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.user) - m.next
}

// run has the actor take its messages until there are none, and then those of the
// mailboxes that wait for a goroutine. After a panic the supervisor decides how an actor
// goes on, by a system message.
func (m *mailbox) run() (left bool) {
	for dispatcher, ran := m.dispatcher, 1; m != nil; m, ran = dispatcher.next(), ran+1 {
		for !m.deliver() {
		}
		if m.left {
			return true
		}
		if ran%mailboxesInARow == 0 {
			runtime.Gosched()
		}
	}
	return false
}

// deliver is run up to a panic.
func (m *mailbox) deliver() (done bool) {
	var message any
	defer func() {
		if value := recover(); value != nil {
			m.invoker.EscalateFailure(value, message)
		}
	}()
	for taken := 1; ; taken++ {
		if taken%throughput == 0 {
			runtime.Gosched()
		}
		var system bool
		if message, system = m.take(); message == nil {
			return true
		}
		if system {
			m.invoker.InvokeSystemMessage(message)
		} else {
			m.invoker.InvokeUserMessage(message)
		}
	}
}

// take returns the next message, nil if there is none: then the mailbox rests.
func (m *mailbox) take() (message any, system bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.system) > 0 {
		message := m.system[0]
		if m.system = m.system[1:]; len(m.system) == 0 {
			m.system = nil
		}
		switch message.(type) {
		case *actor.SuspendMailbox:
			m.suspended = true
		case *actor.ResumeMailbox:
			m.suspended = false
		default:
			return message, true
		}
	}
	if m.suspended || m.next == len(m.user) {
		m.running = false
		return nil, false
	}
	message = m.user[m.next]
	m.user[m.next] = nil
	if m.next++; m.next == len(m.user) {
		m.user, m.next = m.first[:0], 0
	}
	return message, false
}
