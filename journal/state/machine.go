package state

// Machine is the replicated state: the histories of all instances and the index derived from them.
// Use New or Open; the zero value is not usable. One goroutine may apply, and any number may read
// at the same time.
type Machine struct {
	// Used only by the goroutine that applies, and reused from record to record.
	scratch command
	absent  map[string]struct{} // of the IDs in scratch, those that the store does not have

	reads
	watchers watchers
}

// contents is everything that a snapshot holds or restores.
type contents struct {
	epoch    uint64
	metadata metadata
	// All instances, or with a store those in memory. An instance here overrides the store's
	// version.
	instances map[string]*instance
	sets      // of those in memory
	facets    facetTable
	// The chained starts whose instances do not exist yet, by the ID of that instance.
	chainedStarts map[string]chainedStart
}

// New returns an empty machine at epoch 0 that keeps everything in memory.
func New() *Machine {
	m := &Machine{absent: map[string]struct{}{}}
	m.options = Options{}.withDefaults()
	m.contents = newContents()
	return m
}

func newContents() contents {
	return contents{instances: map[string]*instance{}, sets: newSets(), facets: newFacetTable(), chainedStarts: map[string]chainedStart{}}
}

// Apply applies an encoded Record, whole or not at all. Its outcome is the number of removed
// instances for a Purge. For every other record it is the current epoch, which an Epoch record
// increments.
//
// A rejected record returns the same error on every replica, and the machine remains usable: a
// *StaleEpochError, *ConflictError, *InvalidAppendError, *ClosedError, *CopyError, ErrTokenUnknown,
// ErrTokenExpired, ErrTokenUsed, ErrTooManyTokens, ErrTooManyQuarantines, ErrSettingsVersion or
// ErrRolesVersion. An error that wraps ErrCorrupt, or a *StoreError, means that this replica must
// stop.
//
// The machine keeps parts of record, so the caller must not change it afterwards. Only one
// goroutine may call Apply at a time. Advance must follow the last record of each entry of the log.
func (m *Machine) Apply(record []byte) (outcome uint64, err error) {
	c := &m.scratch
	if err := c.parse(record); err != nil {
		return m.Epoch(), err
	}
	if err := m.loadAndLock(c); err != nil {
		return m.Epoch(), err
	}
	defer m.mu.Unlock()
	m.partial = true
	m.dirtyBytes += len(record)
	switch c.kind {
	case commandEpoch:
		m.epoch++
		m.metadata, err = m.metadata.apply(&c.metadata)
	case commandAppend:
		err = m.append(&c.append)
	case commandAttempt:
		err = m.recordAttempt(&c.attempt)
	case commandPurge:
		return m.purge(&c.purge)
	case commandMetadata:
		err = m.changeMetadata(&c.metadata)
	case commandCondition:
		err = m.setCondition(&c.condition)
	case commandCopy:
		err = m.copyHistory(&c.copy)
		c.copy = copyCommand{} // so that the memory of the copy can be freed
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
	if err := in.validateAppend(a.segments, m.lastEventOf); err != nil {
		return err
	}
	if m.metadata.isStopped(in.id) {
		return stopped(in, in.execution)
	}
	m.markDirty(in)
	before := in.memberships()
	in.hasChainedStart = false
	if err := in.appendSegments(a.segments, max(m.metadata.protocol, 1), func() (*instance, error) { return m.readStored(in) }); err != nil {
		return err
	}
	m.addAppended(in, before, known)
	if in.hasChainedStart {
		m.addChainedStarts(in, a.segments)
	}
	m.watchers.notify(in.id, in.isRunning())
	return nil
}

// addAppended updates what depends on an instance after segments were added to it. known says that
// it existed before.
func (m *Machine) addAppended(in *instance, before memberships, known bool) {
	if !known {
		m.instances[in.id] = in
		m.removeChainedStart(in.id) // it exists now, whatever started it
	}
	m.updateSets(in, before, in.memberships())
	m.facets.count(in)
}

// checkCopy returns the target of a copy, and why the copy is rejected.
func (m *Machine) checkCopy(c *copyCommand) (in *instance, known bool, err error) {
	s := c.message
	in, known = m.instances[s.Target]
	if !known {
		in = newInstance(s.Target)
	}
	switch {
	case s.Epoch != m.epoch:
		return nil, false, &StaleEpochError{Instance: s.Target, Epoch: s.Epoch, Current: m.epoch}
	case m.metadata.protocol < CopyProtocol:
		return nil, false, &InvalidAppendError{Instance: s.Target, Execution: s.Execution + 1, EventID: 1, Err: ErrProtocol, Reason: "a copied history needs a newer protocol"}
	case in.execution != s.Execution || in.last != s.LastEventId:
		return nil, false, &ConflictError{Instance: s.Target, Execution: s.Execution, First: s.LastEventId + 1, Last: in.last}
	case m.metadata.isStopped(s.Target):
		return nil, false, stopped(in, s.Execution)
	}
	return in, known, c.check(in, known)
}

// copyHistory begins a run with a copied history. Detached starts in the copy are not requested
// again.
func (m *Machine) copyHistory(c *copyCommand) error {
	in, known, err := m.checkCopy(c)
	if err != nil {
		return err
	}
	m.markDirty(in)
	before := in.memberships()
	segments := c.segments(in)
	if err := in.appendSegments(segments, m.metadata.protocol, func() (*instance, error) { return m.readStored(in) }); err != nil {
		return err
	}
	m.dirtyBytes += c.bytes
	m.addAppended(in, before, known)
	in.hasChainedStart = false
	m.watchers.notify(in.id, len(segments) == 1) // with two, a run has ended
	return nil
}

// purge removes those of the instances that have ended.
func (m *Machine) purge(p *purgeCommand) (purged uint64, err error) {
	if p.epoch != m.epoch {
		return 0, &StaleEpochError{Epoch: p.epoch, Current: m.epoch}
	}
	for _, id := range p.instances {
		in, known := m.instances[string(id)]
		if !known || in.isRunning() {
			continue
		}
		m.recordRemoval(in)
		m.facets.remove(in)
		delete(m.instances, in.id) // no set holds an ended instance
		m.watchers.notify(in.id, false)
		purged++
	}
	return purged, nil
}

// lastEventOf returns the last event_id of an execution, 0 if it does not exist. For earlier
// executions it may read the store.
func (m *Machine) lastEventOf(in *instance, number uint64) (uint64, error) {
	if number == in.execution {
		return in.last, nil
	}
	if x := in.executionInMemory(number); x != nil {
		return x.lastEventID(), nil
	}
	if m.store == nil || in.instanceNumber == 0 || number > in.execution {
		return 0, nil
	}
	return m.store.lastStoredEvent(0, in.instanceNumber, number)
}
