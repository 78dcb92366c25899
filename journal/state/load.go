package state

import (
	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// lockWith locks the machine when everything that a command looks at is in
// memory, or known to be nowhere. What has to be read is read without the lock,
// so that no reader waits for the disk.
func (m *Machine) lockWith(c *command) error {
	if m.store == nil {
		m.mu.Lock()
		return nil
	}
	c.append.collectTargets()
	clear(m.absent)
	m.mu.Lock()
	for {
		missing := m.missing(c)
		if len(missing) == 0 {
			return nil
		}
		m.mu.Unlock()
		loaded, err := m.load(missing)
		if err != nil {
			return err
		}
		m.mu.Lock()
		for _, in := range loaded {
			m.place(in)
		}
		// Between the two locks a flush may have ended and evicted another.
	}
}

// missing returns the IDs in a command of which it is not known whether the
// store has them.
func (m *Machine) missing(c *command) (ids []string) {
	look := func(id []byte) {
		if _, hot := m.instances[string(id)]; hot {
			return
		}
		if _, known := m.absent[string(id)]; known {
			return
		}
		if _, gone := m.gone[string(id)]; !gone {
			ids = append(ids, string(id))
		}
	}
	switch c.kind {
	case commandAppend:
		look(c.append.instance)
		for _, target := range c.append.targets {
			look(target)
		}
	case commandAttempt:
		look([]byte(c.attempt.message.GetRef().GetInstance()))
	case commandCondition:
		look([]byte(c.condition.message.GetInstance()))
	case commandPurge:
		for _, id := range c.purge.instances {
			look(id)
		}
	}
	return ids
}

// load reads instances, and notes which are not there. Nobody but the applier
// brings anything into memory or makes it differ from the store, so it stays as
// it is read.
func (m *Machine) load(ids []string) (loaded []*instance, err error) {
	for _, id := range ids {
		in, err := m.store.probe(id)
		if err != nil {
			return nil, err
		}
		if in == nil {
			m.absent[id] = struct{}{}
			continue
		}
		loaded = append(loaded, in)
	}
	return loaded, nil
}

// place puts an instance that was read from the store into memory. It evicts
// nobody, who may have been loaded for the same command.
func (m *Machine) place(in *instance) {
	if m.instances[in.id] != nil {
		return // it is named twice
	}
	m.instances[in.id] = in
	m.move(in, memberships{}, in.memberships())
	m.rest.add(in)
}

// loadStored returns what the store knows of an instance that is in memory, nil
// if nothing.
func (m *Machine) loadStored(in *instance) (*instance, error) {
	if m.store == nil || in.number == 0 {
		return nil, nil
	}
	before, err := m.store.instance(in.id)
	if before == nil || before.number != in.number {
		return nil, err // what is there was purged
	}
	return before, nil
}

// instance reads an instance; nil if it is not there.
func (s *records) instance(id string) (in *instance, err error) {
	err = s.view("read an instance", 0, func(from store.Reader) error {
		record, err := get(from, idKey(nil, keyInstance, id))
		if err != nil || record == nil {
			return err
		}
		in, err = parse(from, id, record)
		return err
	})
	return in, err
}

// parse reads a header that comes from a store; see parseHeader.
func parse(from store.Reader, id string, record []byte) (*instance, error) {
	in, err := parseHeader(id, record)
	if err == nil {
		in.home = from.Database()
		in.weight = idleBytes + len(record)
	}
	return in, err
}

// probe reads an instance; nil if it is not there. Most of what the applier looks
// up is new.
func (s *records) probe(id string) (in *instance, err error) {
	err = s.view("read an instance", 0, func(from store.Reader) error {
		key := idKey(nil, keyInstance, id)
		value, err := from.Probe(key)
		if value == nil || err != nil {
			return err
		}
		record, err := checked(key, value)
		if err != nil {
			return err
		}
		in, err = parse(from, id, record)
		return err
	})
	return in, err
}

// lookup shows an instance as it is now, wherever it is. It reports whether it
// exists. f must not keep what it is shown, nor call anybody's code.
func (m *Machine) lookup(id string, f func(*instance)) (found bool, err error) {
	m.mu.RLock()
	in, hot := m.instances[id]
	if hot {
		defer m.mu.RUnlock()
		f(in)
		return true, nil
	}
	_, gone := m.gone[id]
	m.mu.RUnlock()
	if gone || m.store == nil {
		return false, nil
	}
	if in, err = m.store.instance(id); in == nil || err != nil {
		return false, err
	}
	f(in)
	return true, nil
}

// orphaned reports whether nobody waits for a child any more: the operation that
// started it is not open.
func (m *Machine) orphaned(parent *operationRef) (bool, error) {
	waits := false
	_, err := m.lookup(parent.instance, func(in *instance) {
		at, open := in.open.find(parent.event)
		waits = open && in.execution == parent.execution && in.incarnation == parent.incarnation &&
			in.open[at].arm == journalpb.ArmSubOrchestrationScheduled
	})
	return !waits, err
}
