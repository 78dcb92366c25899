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

	mu        sync.RWMutex
	epoch     uint64
	instances map[string]*instance
	// Those with open operations.
	busy map[string]*instance

	watchers watchers
}

// New returns an empty machine, at epoch 0.
func New() *Machine {
	return &Machine{instances: map[string]*instance{}, busy: map[string]*instance{}}
}

// Apply applies an encoded Record, whole or not at all, and returns the epoch
// in force after it: that of an Epoch record is the new one.
//
// An append that is refused gets a *StaleEpochError, a *ConflictError or an
// *InvalidAppendError, the same on every replica, and the machine goes on. An
// error that wraps ErrCorrupt means that this replica must not.
//
// The machine keeps parts of record: the caller must not change it afterwards.
// It must not be called by two goroutines at once.
func (m *Machine) Apply(record []byte) (epoch uint64, err error) {
	if err := m.scratch.parse(record); err != nil {
		return m.Epoch(), err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scratch.epoch {
		m.epoch++
		return m.epoch, nil
	}
	return m.epoch, m.append(&m.scratch.append)
}

func (m *Machine) append(a *appendCommand) error {
	if a.epoch != m.epoch {
		return &StaleEpochError{Instance: string(a.instance), Epoch: a.epoch, Current: m.epoch}
	}
	in, known := m.instances[string(a.instance)]
	if !known {
		in = &instance{id: string(a.instance)}
	}
	wasBusy := len(in.open) > 0
	if err := in.append(a.segments); err != nil {
		return err
	}
	if !known {
		m.instances[in.id] = in
	}
	switch isBusy := len(in.open) > 0; {
	case isBusy && !wasBusy:
		m.busy[in.id] = in
	case !isBusy && wasBusy:
		delete(m.busy, in.id)
	}
	m.watchers.notify(in.id)
	return nil
}
