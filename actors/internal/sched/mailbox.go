package sched

import (
	"runtime"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// throughput is how many messages an actor takes before its goroutine yields.
const throughput = 300

// mailboxesPerYield is how many mailboxes a goroutine runs before it yields. The runtime preempts
// a goroutine only after 10 ms, and every goroutine that runs mailboxes could delay a heartbeat
// that long. Yielding more often would make the journal's entries smaller.
const mailboxesPerYield = 16

// A Mailbox holds the messages that an actor has not taken. It follows the rules of protoactor's
// mailbox, with one allocation for each actor instead of five and none to wake it. Only package
// actors posts to it, so it does not support protoactor's message batches.
type Mailbox struct {
	dispatcher *Dispatcher
	invoker    actor.MessageInvoker
	unbounded  bool // see NewUnboundedMailbox

	mu        sync.Mutex
	system    []any // taken before user messages
	user      []any
	userArray [2]any // avoids an allocation for two messages
	nextUser  int    // index in user of the first message not taken
	running   bool   // a goroutine runs the mailbox, or will
	suspended bool   // only system messages are taken
	abandoned bool   // its goroutine is no longer counted; only that goroutine uses the field

	nextWaiting *Mailbox // that waits for a goroutine; the dispatcher's lock guards it
}

// NewMailbox returns an empty mailbox that the dispatcher runs.
func (d *Dispatcher) NewMailbox() *Mailbox {
	m := &Mailbox{dispatcher: d}
	m.user = m.userArray[:0]
	return m
}

// NewUnboundedMailbox returns an empty mailbox for an actor that runs code which may block or end
// its goroutine. The mailbox does not count among the activeMax, and if its goroutine ends, another
// delivers the remaining messages.
func (d *Dispatcher) NewUnboundedMailbox() *Mailbox {
	m := d.NewMailbox()
	m.unbounded = true
	return m
}

// wake runs the mailbox on a goroutine.
func (m *Mailbox) wake() {
	if m.unbounded {
		m.dispatcher.Start(m)
	} else {
		m.dispatcher.runMailbox(m)
	}
}

// PostUserMessage implements actor.Mailbox.
func (m *Mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	if len(m.user) == cap(m.user) && m.nextUser > len(m.user)/2 {
		// Reuse the space of the messages already taken.
		retained := copy(m.user, m.user[m.nextUser:])
		clear(m.user[retained:])
		m.user, m.nextUser = m.user[:retained], 0
	}
	m.user = append(m.user, message)
	wake := !m.running && !m.suspended
	m.running = m.running || wake
	m.mu.Unlock()
	if wake {
		m.wake()
	}
}

// PostSystemMessage implements actor.Mailbox.
func (m *Mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	wake := !m.running
	m.running = true
	m.mu.Unlock()
	if wake {
		m.wake()
	}
}

// RegisterHandlers implements actor.Mailbox.
func (m *Mailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = invoker
}

// Start implements actor.Mailbox.
func (m *Mailbox) Start() {}

// Abandon says that the goroutine is no longer counted; see Dispatcher.Abandon. Only the actor
// calls it.
func (m *Mailbox) Abandon() { m.abandoned = true }

// UserMessageCount implements actor.Mailbox.
func (m *Mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.user) - m.nextUser
}

// Run delivers the actor's messages until there are none, and then those of mailboxes that wait
// for a goroutine. It reports whether the goroutine was abandoned. After a panic the supervisor
// sends a system message that decides how the actor continues.
func (m *Mailbox) Run() (abandoned bool) {
	if m.unbounded {
		m.runUnbounded()
		return false
	}
	for dispatcher, ran := m.dispatcher, 1; m != nil; m, ran = dispatcher.next(), ran+1 {
		for !m.deliver() {
		}
		if m.abandoned {
			return true
		}
		if ran%mailboxesPerYield == 0 {
			runtime.Gosched()
		}
	}
	return false
}

// runUnbounded is Run for an unbounded mailbox.
func (m *Mailbox) runUnbounded() {
	returned := false
	defer func() {
		if !returned { // an actor called runtime.Goexit
			m.dispatcher.Start(m)
		}
	}()
	for !m.deliver() {
	}
	returned = true
}

// deliver delivers messages until there are none or the actor panics.
func (m *Mailbox) deliver() (done bool) {
	var message any
	defer func() {
		if value := recover(); value != nil {
			m.invoker.EscalateFailure(value, message)
		}
	}()
	for consumed := 1; ; consumed++ {
		if consumed%throughput == 0 {
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

// take returns the next message, or nil if there is none; then the mailbox stops running.
func (m *Mailbox) take() (message any, system bool) {
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
	if m.suspended || m.nextUser == len(m.user) {
		m.running = false
		return nil, false
	}
	message = m.user[m.nextUser]
	m.user[m.nextUser] = nil
	if m.nextUser++; m.nextUser == len(m.user) {
		m.user, m.nextUser = m.userArray[:0], 0
	}
	return message, false
}
