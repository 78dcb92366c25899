package state

import (
	"errors"

	"github.com/tenuto-dev/tenuto/journal/state/store"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// loadAndLock locks the machine once everything that a command needs is in memory or known not to
// exist. It reads without the lock, so that no reader waits for the disk. After an error it has not
// locked the machine.
func (m *Machine) loadAndLock(c *command) error {
	if m.store == nil {
		m.mu.Lock()
		return m.readCopy(c)
	}
	c.append.collectTargets()
	clear(m.absent)
	m.mu.Lock()
	for {
		missing := m.missingIDs(c)
		if len(missing) == 0 {
			if c.kind != commandCopy || c.copy.isRead {
				return nil
			}
			if err := m.readCopy(c); err != nil {
				return err
			}
			continue // a flush may have evicted the target meanwhile
		}
		commits, indexed := m.commits, m.indexState.complete
		m.mu.Unlock()
		loaded, err := m.load(missing)
		if err != nil {
			return err
		}
		m.mu.Lock()
		if !indexed && m.commits != commits {
			continue // a flush may have added them to the index meanwhile
		}
		for _, in := range loaded {
			m.addLoaded(in)
		}
		// A flush may have ended between the two locks and evicted another instance.
	}
}

// readCopy reads the source of a copy, unless the copy is rejected without that. m.mu is held,
// except while it reads and after an error.
func (m *Machine) readCopy(c *command) error {
	if c.kind != commandCopy {
		return nil
	}
	c.copy.isRead = true
	if _, _, err := m.checkCopy(&c.copy); err != nil {
		return nil
	}
	m.mu.Unlock()
	if err := c.copy.read(&m.reads); err != nil {
		return err
	}
	m.mu.Lock()
	return nil
}

// missingIDs returns the IDs in a command that are neither in memory nor known to be absent.
func (m *Machine) missingIDs(c *command) (ids []string) {
	check := func(id []byte) {
		if _, inMemory := m.instances[string(id)]; inMemory {
			return
		}
		if _, known := m.absent[string(id)]; known {
			return
		}
		if _, purged := m.purged[string(id)]; !purged {
			ids = append(ids, string(id))
		}
	}
	switch c.kind {
	case commandAppend:
		check(c.append.instance)
		for _, target := range c.append.targets {
			check(target)
		}
	case commandAttempt:
		check([]byte(c.attempt.message.GetRef().GetInstance()))
	case commandCondition:
		check([]byte(c.condition.message.GetInstance()))
	case commandCopy:
		check([]byte(c.copy.message.Target))
	case commandPurge:
		for _, id := range c.purge.instances {
			check(id)
		}
	}
	return ids
}

// load reads instances, and marks the absent ones in m.absent. What it reads stays valid: only the
// goroutine that applies commands loads and changes instances.
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

// addLoaded adds an instance read from the store to memory. It must not evict another: that may
// have been loaded for the same command.
func (m *Machine) addLoaded(in *instance) {
	if m.instances[in.id] != nil {
		return // the command names it twice
	}
	m.instances[in.id] = in
	if f := m.current; f != nil && f.hasBuilt(in.id) {
		in.indexedIn = f.indexState.generation
	}
	if in.indexedIn == m.indexState.generation {
		in.facet = m.facets.of(in)
	}
	m.updateSets(in, memberships{}, in.memberships())
	m.idle.add(in)
}

// readStored returns what the store holds of an instance that is in memory, nil if nothing.
func (m *Machine) readStored(in *instance) (*instance, error) {
	if m.store == nil || in.instanceNumber == 0 {
		return nil, nil
	}
	before, err := m.store.instance(in.id)
	if before == nil || before.instanceNumber != in.instanceNumber {
		return nil, err // a purged instance with the same ID
	}
	return before, nil
}

// instance reads an instance; nil if it does not exist.
func (s *recordStore) instance(id string) (in *instance, err error) {
	err = s.view("read an instance", 0, func(from store.Reader) error {
		record, err := getRecord(from, idKey(nil, keyInstance, id))
		if err != nil || record == nil {
			return err
		}
		in, err = parseStoredHeader(from, id, record)
		return err
	})
	return in, err
}

// parseStoredHeader decodes a header read from a store; see parseHeader. It returns nil if the
// header lacks what its history has, and the instance has been removed since the header was read.
func parseStoredHeader(from store.Reader, id string, record []byte) (*instance, error) {
	in, err := parseHeader(id, record)
	if err != nil {
		return nil, err
	}
	in.dbNumber = from.DatabaseNumber()
	in.memBytes = idleBytes + len(record)
	if in.indexedIn != 0 {
		return in, nil
	}
	if err = in.completeHeader(from); !errors.Is(err, errEventMissing) {
		return in, err
	}
	switch removed, readErr := in.isRemoved(from); {
	case readErr != nil:
		return nil, readErr
	case removed:
		return nil, nil
	}
	return nil, err
}

// isRemoved reports whether the store no longer has an instance that was read from it. Its ID may
// be in use again.
func (in *instance) isRemoved(from store.Reader) (bool, error) {
	record, err := getRecord(from, idKey(nil, keyInstance, in.id))
	if record == nil || err != nil {
		return err == nil, err
	}
	number, ok := intField(record, fieldHeaderNumber)
	return ok && uint64(number) != in.instanceNumber, nil
}

// probe reads an instance; nil if it does not exist. It is optimized for IDs that do not exist,
// which are most of those that the applying goroutine looks up.
func (s *recordStore) probe(id string) (in *instance, err error) {
	err = s.view("read an instance", 0, func(from store.Reader) error {
		key := idKey(nil, keyInstance, id)
		value, err := from.Probe(key)
		if value == nil || err != nil {
			return err
		}
		record, err := verifyValue(key, value)
		if err != nil {
			return err
		}
		in, err = parseStoredHeader(from, id, record)
		return err
	})
	return in, err
}

// lookup calls f with the current state of an instance, from memory or the store, and reports
// whether it exists. f must not keep the instance or call user code.
func (re *reads) lookup(id string, f func(*instance)) (found bool, err error) {
	re.mu.RLock()
	in, inMemory := re.instances[id]
	if inMemory {
		defer re.mu.RUnlock()
		f(in)
		return true, nil
	}
	_, purged := re.purged[id]
	re.mu.RUnlock()
	if purged || re.store == nil {
		return false, nil
	}
	if in, err = re.store.instance(id); in == nil || err != nil {
		return false, err
	}
	f(in)
	return true, nil
}

// isOrphaned reports whether the parent no longer waits for a child: the operation that started it
// is not open.
func (re *reads) isOrphaned(parent *operationRef) (bool, error) {
	waits := false
	_, err := re.lookup(parent.instance, func(in *instance) {
		at, open := in.open.find(parent.event)
		waits = open && in.execution == parent.execution && in.incarnation == parent.incarnation &&
			in.open[at].eventType == journalpb.TypeSubOrchestrationScheduled
	})
	return !waits, err
}
