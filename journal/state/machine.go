package state

import (
	"sync"
)

// Machine is the replicated state: the histories of all instances and the index
// derived from them. The zero value is not usable; see New. One goroutine
// applies; any number may read at the same time.
type Machine struct {
	// Used by the applier alone: its slices live on from record to record.
	scratch command

	mu sync.RWMutex
	contents

	watchers watchers
}

// contents is all that a snapshot holds or gives back.
type contents struct {
	epoch     uint64
	instances map[string]*instance
	sets
	// The chained starts whose instances do not exist yet, by those instances.
	chained map[string]chainedStart
}

// New returns an empty machine, at epoch 0.
func New() *Machine { return &Machine{contents: newContents()} }

func newContents() contents {
	return contents{instances: map[string]*instance{}, sets: newSets(), chained: map[string]chainedStart{}}
}

// Apply applies an encoded Record, whole or not at all, and returns what came
// of it: of a Purge, how many instances it has removed; of everything else, the
// epoch in force after it, which is the new one of an Epoch.
//
// A record that is refused gets an error that is the same on every replica, and
// the machine goes on: a *StaleEpochError, a *ConflictError, an
// *InvalidAppendError or a *ClosedError. An error that wraps ErrCorrupt means
// that this replica must not go on.
//
// The machine keeps parts of record: the caller must not change it afterwards.
// It must not be called by two goroutines at once.
func (m *Machine) Apply(record []byte) (outcome uint64, err error) {
	if err := m.scratch.parse(record); err != nil {
		return m.Epoch(), err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch c := &m.scratch; c.kind {
	case commandEpoch:
		m.epoch++
	case commandAppend:
		err = m.append(&c.append)
	case commandAttempt:
		err = m.attempt(&c.attempt)
	case commandPurge:
		return m.purge(&c.purge)
	}
	return m.epoch, err
}

func (m *Machine) append(a *appendCommand) error {
	if a.epoch != m.epoch {
		return &StaleEpochError{Instance: string(a.instance), Epoch: a.epoch, Current: m.epoch}
	}
	in, known := m.instances[string(a.instance)]
	if !known {
		in = &instance{id: string(a.instance)}
	}
	was := in.memberships()
	in.chains = false
	if err := in.append(a.segments); err != nil {
		return err
	}
	if !known {
		m.instances[in.id] = in
		delete(m.chained, in.id) // it is there now, whoever started it
	}
	m.move(in, was)
	if in.chains {
		m.keepChained(in.id, a.segments)
	}
	m.watchers.notify(in.id)
	return nil
}

// purge removes those instances that have ended.
func (m *Machine) purge(p *purgeCommand) (purged uint64, err error) {
	if p.epoch != m.epoch {
		return 0, &StaleEpochError{Epoch: p.epoch, Current: m.epoch}
	}
	for _, id := range p.instances {
		in, known := m.instances[string(id)]
		if !known || in.running() {
			continue
		}
		delete(m.instances, in.id) // of what has ended, no set holds anything
		m.watchers.notify(in.id)
		purged++
	}
	return purged, nil
}
