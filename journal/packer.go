package journal

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
)

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
func (j *Journal) pack() {
	defer close(j.inFlight)
	defer close(j.unresolved)
	for {
		select {
		case j.slots <- struct{}{}: // released by awaitEntries
		case <-j.queue.refusedReady: // even if a stalled disk holds all slots
			resolveAll(j.queue.takeRefused())
			continue
		}
		batch, refusal, open := j.queue.take(j.config.PackEntriesMax, j.config.PackBytesMax)
		if !open {
			return
		}
		if refusal != nil {
			resolveAll(batch, refusal)
			<-j.slots
			continue
		}
		f := &inFlightEntry{batch: batch, proposedAt: time.Now(), resolved: make(chan struct{})}
		j.stats.queueDelay.observe(uint64(f.proposedAt.Sub(batch[0].queuedAt)))
		// Raft takes it at once, or after its main loop has finished a disk write.
		f.future = j.raft.Apply(j.packBatch(batch), 2*j.disk.BusyLimit())
		j.inFlight <- f
		j.unresolved <- f
	}
}

func (j *Journal) packBatch(batch []proposal) []byte {
	records := make([][]byte, len(batch))
	for i := range batch {
		records[i] = batch[i].record
	}
	entry := entry.Pack(records...)
	j.stats.entryRecords.observe(uint64(len(batch)))
	j.stats.entryBytes.observe(uint64(len(entry)))
	return entry
}

// awaitEntries waits for the entries in order.
func (j *Journal) awaitEntries() {
	for f := range j.inFlight {
		f.err = f.future.Error()
		close(f.resolved)
		<-j.slots // the packer may continue while callers are answered
	}
}

// resolveProposals answers the callers in order: when their entry is resolved, or when the disk
// stalls, because the entry may then never be resolved.
func (j *Journal) resolveProposals() {
	for f := range j.unresolved {
		select {
		case <-f.resolved:
		case <-j.disk.StallStarted():
			select {
			case <-f.resolved:
			default:
				resolveAll(f.batch, fmt.Errorf("%w: disk write stalled", ErrUnknownOutcome))
				continue
			}
		}
		j.stats.commitDelay.observe(uint64(time.Since(f.proposedAt)))
		if f.err != nil {
			resolveAll(f.batch, j.wrapFailure(outcomeError(f.err)))
			continue
		}
		switch result := f.future.Response().(type) {
		case *applyResult:
			for i, p := range f.batch {
				if p.outcome != nil {
					*p.outcome = result.outcomes[i]
				}
				p.done(result.refusal(i))
			}
		case error: // the entry is committed, and this node cannot apply it
			resolveAll(f.batch, fmt.Errorf("%w: %w", ErrUnknownOutcome, result))
		}
	}
}

func resolveAll(batch []proposal, err error) {
	for _, p := range batch {
		p.done(err)
	}
}

// wrapFailure adds a node failure, which may be the cause, to an error.
func (j *Journal) wrapFailure(err error) error {
	if nodeFailed := j.failStop.Err(); nodeFailed != nil && err != nil {
		return fmt.Errorf("%w: %w", err, nodeFailed)
	}
	return err
}
