package session

import "sync"

// A Sender takes messages of type M for the other side of a session. Its methods do not wait for
// the other side.
type Sender[M any] interface {
	Put(*M)
	// Replace is Put for a heartbeat. It may overwrite an unsent message with the same key.
	Replace(AttemptKey, *M)
}

// An Outbox holds the unsent messages of one side of a session. The worker's slots bound their
// number.
type Outbox[M any] struct {
	nonEmpty chan struct{} // has capacity 1

	mu       sync.Mutex
	messages []*outboxEntry[M]
	latest   map[AttemptKey]*outboxEntry[M] // entries that Replace may overwrite
}

type outboxEntry[M any] struct {
	message *M
	key     AttemptKey
}

// NewOutbox returns an empty outbox.
func NewOutbox[M any]() *Outbox[M] {
	return &Outbox[M]{nonEmpty: make(chan struct{}, 1), latest: make(map[AttemptKey]*outboxEntry[M])}
}

// Put adds a message.
func (o *Outbox[M]) Put(m *M) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.append(&outboxEntry[M]{message: m})
}

// Replace adds a message, or overwrites an unsent one with the same key.
func (o *Outbox[M]) Replace(key AttemptKey, m *M) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if waiting := o.latest[key]; waiting != nil {
		waiting.message = m
		return
	}
	o.latest[key] = &outboxEntry[M]{m, key}
	o.append(o.latest[key])
}

func (o *Outbox[M]) append(m *outboxEntry[M]) {
	o.messages = append(o.messages, m)
	select {
	case o.nonEmpty <- struct{}{}:
	default:
	}
}

// putBack returns a message that was taken and not sent to the front.
func (o *Outbox[M]) putBack(m *M) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages = append([]*outboxEntry[M]{{message: m}}, o.messages...)
}

// take removes and returns the next message, nil if there is none.
func (o *Outbox[M]) take() *M {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.messages) == 0 {
		return nil
	}
	next := o.messages[0]
	o.messages[0] = nil
	o.messages = o.messages[1:]
	if o.latest[next.key] == next {
		delete(o.latest, next.key)
	}
	return next.message
}
