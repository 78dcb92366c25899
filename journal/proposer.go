package journal

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// proposer brings records into the log and answers their callers.
type proposer struct {
	config   *Config
	stats    *stats
	machine  *state.Machine
	raft     *raftnode.Node
	disk     *raftlog.Disk
	failStop *failStop

	queue      *queue
	records    [][]byte            // memory for packBatch, which only pack calls
	slots      chan struct{}       // one token for each entry in flight
	inFlight   chan *inFlightEntry // from pack to awaitEntries, in order
	unresolved chan *inFlightEntry // from pack to resolveProposals, in order
}

func newProposer(c *Config, counters *stats) *proposer {
	return &proposer{
		config: c, stats: counters, queue: newQueue(c.QueueRecordsMax, c.QueueBytesMax), slots: make(chan struct{}, c.InFlightMax),
		inFlight: make(chan *inFlightEntry, c.InFlightMax), unresolved: make(chan *inFlightEntry, c.InFlightMax),
	}
}

// Append queues an append and returns at once. done is called exactly once with the outcome: nil
// when the events are committed and applied here. If the append is rejected immediately, done is
// called before Append returns. Otherwise a goroutine of the journal calls it; done must not block,
// since all later outcomes wait for it. a may be changed after Append has returned.
//
// Nothing happened if the error is ErrNotLeader, ErrBusy, ErrClosed, a *TooLargeError, a
// *NodeFailedError without ErrUnknownOutcome, or a rejection of the state machine:
// *state.StaleEpochError, *state.ConflictError, *state.InvalidAppendError. After ErrUnknownOutcome
// the append may have happened. Appends, attempts and purges of one goroutine are applied in the
// order of its calls.
func (p *proposer) Append(a *journalpb.Append, done func(error)) {
	p.propose(proposal{record: entry.EncodeAppend(a), done: done})
}

// Attempt records the attempts of an open activity. It replaces what was recorded before, and is
// dropped when the activity is closed. done and the errors are as in Append, except for the
// rejections of the state machine. These are *state.StaleEpochError, *state.ClosedError if the
// operation is not open, and *state.InvalidAppendError if it is not an activity or fewer attempts
// have failed than before. Text in a that is not UTF-8 is an error, too. Repeating an attempt
// changes nothing.
func (p *proposer) Attempt(a *journalpb.Attempt, done func(error)) {
	record, err := entry.EncodeAttempt(a)
	if err != nil {
		done(err)
		return
	}
	p.propose(proposal{record: record, done: done})
}

// Purge removes instances with everything stored of them, and reports how many were removed.
// Running, unknown and repeated instances are skipped. The ID of a removed instance is as if never
// used. If a removed instance has requested a chained start, or that of an abandoned child, the
// request is retained until the start is made. done and the errors are as in Append; the only
// rejection of the state machine is *state.StaleEpochError.
func (p *proposer) Purge(purge *journalpb.Purge, done func(purged int, err error)) {
	purged := new(uint64)
	p.propose(proposal{record: entry.EncodePurge(purge), outcome: purged, done: func(err error) {
		if err != nil {
			done(0, err)
			return
		}
		done(int(*purged), nil)
	}})
}

// SetCondition records with an instance why it does not make progress. done and the errors are as
// in Append. Before the cluster uses protocol 3 the error is a *VersionError: older builds
// reject the record.
func (p *proposer) SetCondition(c *journalpb.SetCondition, done func(error)) {
	if protocol := p.machine.Protocol(); protocol < conditionsProtocol {
		done(&VersionError{Node: p.config.Node, Oldest: conditionsProtocol, Newest: p.config.Protocol, Required: protocol})
		return
	}
	record, err := entry.EncodeSetCondition(c)
	if err != nil {
		done(fmt.Errorf("set condition: %w", err))
		return
	}
	p.propose(proposal{record: record, done: done})
}

// CopyHistory begins a run whose history is a copy. done and the errors are as in Append; the state
// machine also rejects it with a *state.CopyError. Before the cluster uses protocol 4 the error is
// a *VersionError.
func (p *proposer) CopyHistory(c *journalpb.CopyHistory, done func(error)) {
	if protocol := p.machine.Protocol(); protocol < state.CopyProtocol {
		done(&VersionError{Node: p.config.Node, Oldest: state.CopyProtocol, Newest: p.config.Protocol, Required: protocol})
		return
	}
	record, err := entry.EncodeCopyHistory(c)
	if err != nil {
		done(err)
		return
	}
	p.propose(proposal{record: record, done: done})
}

// conditionsProtocol is the protocol that introduced conditions.
const conditionsProtocol = 3

// propose queues a record, or calls done with an error at once.
func (p *proposer) propose(what proposal) {
	if len(what.record) > p.config.AppendBytesMax {
		what.done(&TooLargeError{Bytes: len(what.record), Max: p.config.AppendBytesMax})
		return
	}
	if err := p.queue.put(what); err != nil {
		what.done(err)
	}
}

// inFlightEntry is an entry that Raft has and has not answered yet.
type inFlightEntry struct {
	batch      []proposal
	proposedAt time.Time
	future     raft.ApplyFuture
	resolved   chan struct{} // closed when the future has answered
	err        error         // the future's error
}

// pack turns queued proposals into Raft entries. It takes nothing while InFlightMax entries are in
// flight, so entries grow with the load: a single append is sent at once, and many share an entry
// under load.
func (p *proposer) pack() {
	defer close(p.inFlight)
	defer close(p.unresolved)
	for {
		select {
		case p.slots <- struct{}{}: // released by awaitEntries
		case <-p.queue.rejectedReady: // even if a stalled disk holds all slots
			resolveAll(p.queue.takeRejected())
			continue
		}
		batch, rejection, open := p.queue.take(p.config.PackRecordsMax, p.config.PackBytesMax)
		if !open {
			return
		}
		if rejection != nil {
			resolveAll(batch, rejection)
			<-p.slots
			continue
		}
		f := &inFlightEntry{batch: batch, proposedAt: time.Now(), resolved: make(chan struct{})}
		p.stats.queueDelay.observe(uint64(f.proposedAt.Sub(batch[0].queuedAt)))
		// Raft takes it at once, or after its main loop has finished a disk write.
		f.future = p.raft.Apply(p.packBatch(batch), 2*p.disk.BusyLimit())
		p.inFlight <- f
		p.unresolved <- f
	}
}

func (p *proposer) packBatch(batch []proposal) []byte {
	for i := range batch {
		p.records = append(p.records, batch[i].record)
	}
	entry := entry.Pack(p.records...)
	clear(p.records)
	p.records = p.records[:0]
	p.stats.entryRecords.observe(uint64(len(batch)))
	p.stats.entryBytes.observe(uint64(len(entry)))
	return entry
}

// awaitEntries waits for the entries in order.
func (p *proposer) awaitEntries() {
	for f := range p.inFlight {
		f.err = f.future.Error()
		close(f.resolved)
		<-p.slots // pack may continue while callers are answered
	}
}

// resolveProposals answers the callers in order: when their entry is resolved, or when the disk
// stalls, because the entry may then never be resolved.
func (p *proposer) resolveProposals() {
	for f := range p.unresolved {
		select {
		case <-f.resolved:
		case <-p.disk.StallStarted():
			select {
			case <-f.resolved:
			default:
				resolveAll(f.batch, fmt.Errorf("%w: disk write stalled", ErrUnknownOutcome))
				continue
			}
		}
		p.stats.commitDelay.observe(uint64(time.Since(f.proposedAt)))
		p.resolve(f)
		p.queue.recycle(f.batch)
	}
}

// resolve answers the callers of an entry whose future has answered.
func (p *proposer) resolve(f *inFlightEntry) {
	if f.err != nil {
		resolveAll(f.batch, p.wrapFailure(outcomeError(f.err)))
		return
	}
	switch result := f.future.Response().(type) {
	case *applyResult:
		for i, record := range f.batch {
			if record.outcome != nil {
				*record.outcome = result.outcomes[i]
			}
			record.done(result.rejection(i))
		}
	case error: // the entry is committed, and this node cannot apply it
		resolveAll(f.batch, fmt.Errorf("%w: %w", ErrUnknownOutcome, result))
	}
}

func resolveAll(batch []proposal, err error) {
	for _, p := range batch {
		p.done(err)
	}
}

// wrapFailure adds a node failure, which may be the cause, to an error.
func (p *proposer) wrapFailure(err error) error {
	if nodeFailed := p.failStop.Err(); nodeFailed != nil && err != nil {
		return fmt.Errorf("%w: %w", err, nodeFailed)
	}
	return err
}
