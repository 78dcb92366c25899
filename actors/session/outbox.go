package session

import "sync"

// An Outbox holds the unsent messages of one side of a session. The worker's slots bound their
// number.
type Outbox[M any] struct {
	nonEmpty chan struct{} // has room for one

	mu       sync.Mutex
	messages []*outboxEntry[M]
	latest   map[AttemptKey]*outboxEntry[M] // entries that Replace may overwrite
}

type outboxEntry[M any] struct {
	message M
	key     AttemptKey
}

// NewOutbox returns an empty outbox.
func NewOutbox[M any]() *Outbox[M] {
	return &Outbox[M]{nonEmpty: make(chan struct{}, 1), latest: make(map[AttemptKey]*outboxEntry[M])}
}

// Put adds a message.
func (b *Outbox[M]) Put(m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(&outboxEntry[M]{message: m})
}

// Replace adds a message, or overwrites an unsent one with the same key.
func (b *Outbox[M]) Replace(key AttemptKey, m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waiting := b.latest[key]; waiting != nil {
		waiting.message = m
		return
	}
	b.latest[key] = &outboxEntry[M]{m, key}
	b.append(b.latest[key])
}

func (b *Outbox[M]) append(m *outboxEntry[M]) {
	b.messages = append(b.messages, m)
	select {
	case b.nonEmpty <- struct{}{}:
	default:
	}
}

// take removes and returns the next message, nil if there is none.
func (b *Outbox[M]) take() *M {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.messages) == 0 {
		return nil
	}
	next := b.messages[0]
	b.messages[0] = nil
	b.messages = b.messages[1:]
	if b.latest[next.key] == next {
		delete(b.latest, next.key)
	}
	return &next.message
}
