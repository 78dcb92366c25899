package state

import (
	"sync"
)

// Machine is the replicated state: the histories of all instances and the index
// derived from them. The zero value is not usable; see New and Open. One
// goroutine applies; any number may read at the same time.
type Machine struct {
	// Used by the applier alone: what it holds lives on from record to record.
	scratch command
	absent  map[string]struct{} // of the IDs in scratch, those that the store does not have

	// Below the contents; nil if everything is in memory.
	store   *records
	options Options

	mu sync.RWMutex
	contents
	flushes

	watchers watchers
}

// contents is all that a snapshot holds or gives back.
type contents struct {
	epoch uint64
	group group
	// All that there are, or with a store below those that are in memory: what
	// the store has of them counts for nothing.
	instances map[string]*instance
	sets      // of those in memory
	// The chained starts whose instances do not exist yet, by those instances.
	chained map[string]chainedStart
}

// New returns an empty machine, at epoch 0, which keeps everything in memory.
func New() *Machine {
	return &Machine{contents: newContents(), absent: map[string]struct{}{}}
}

func newContents() contents {
	return contents{instances: map[string]*instance{}, sets: newSets(), chained: map[string]chainedStart{}}
}

// Apply applies an encoded Record, whole or not at all, and returns what came
// of it: of a Purge, how many instances it has removed; of everything else, the
// epoch in force after it, which is the new one of an Epoch.
//
// A record that is refused gets an error that is the same on every replica, and
// the machine goes on: a *StaleEpochError, a *ConflictError, an
// *InvalidAppendError, a *ClosedError, or one of the refusals of tokens. An error that wraps ErrCorrupt or a
// *StoreError means that this replica must not go on.
//
// The machine keeps parts of record: the caller must not change it afterwards.
// It must not be called by two goroutines at once, and Advance has to follow the
// last record of each entry of the log.
func (m *Machine) Apply(record []byte) (outcome uint64, err error) {
	c := &m.scratch
	if err := c.parse(record); err != nil {
		return m.Epoch(), err
	}
	if err := m.lockWith(c); err != nil {
		return m.Epoch(), err
	}
	defer m.mu.Unlock()
	m.partial = true
	m.dirtyBytes += len(record)
	switch c.kind {
	case commandEpoch:
		m.epoch++
		m.group, err = m.group.with(&c.group)
	case commandAppend:
		err = m.append(&c.append)
	case commandAttempt:
		err = m.attempt(&c.attempt)
	case commandPurge:
		return m.purge(&c.purge)
	case commandGroup:
		err = m.changeGroup(&c.group)
	case commandCondition:
		err = m.setCondition(&c.condition)
	}
	return m.epoch, err
}

func (m *Machine) append(a *appendCommand) error {
	if a.epoch != m.epoch {
		return &StaleEpochError{Instance: string(a.instance), Epoch: a.epoch, Current: m.epoch}
	}
	in, known := m.instances[string(a.instance)]
	if !known {
		in = newInstance(string(a.instance))
	}
	if err := in.admit(a.segments, m.lastOf); err != nil {
		return err
	}
	m.touch(in)
	was := in.memberships()
	in.chains = false
	if err := in.take(a.segments, max(m.group.protocol, 1), func() (*instance, error) { return m.loadStored(in) }); err != nil {
		return err
	}
	if !known {
		m.instances[in.id] = in
		m.dropChained(in.id) // it is there now, whoever started it
	}
	m.move(in, was, in.memberships())
	if in.chains {
		m.keepChained(in, a.segments)
	}
	m.watchers.notify(in.id, in.running())
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
		m.forget(in)
		delete(m.instances, in.id) // of what has ended, no set holds anything
		m.watchers.notify(in.id, false)
		purged++
	}
	return purged, nil
}

// lastOf returns the last event_id of an execution, 0 if it does not exist. Of
// one before the latest the store may have to tell.
func (m *Machine) lastOf(in *instance, number uint64) (uint64, error) {
	if number == in.execution {
		return in.last, nil
	}
	if x := in.history(number); x != nil {
		return x.end(), nil
	}
	if m.store == nil || in.number == 0 || number > in.execution {
		return 0, nil
	}
	return m.store.lastOf(0, in.number, number)
}
