package journal

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// flight is an entry that Raft has and has not answered yet.
type flight struct {
	batch    []proposal
	proposed time.Time
	future   raft.ApplyFuture
	settled  chan struct{} // closed when the future has answered
	err      error         // what it said
}

// pack turns what waits into Raft entries. While InFlightMax entries are on
// their way it takes nothing, so the next entry grows with the load: alone, an
// append goes out at once; under load, many go out together.
func (j *Journal) pack() {
	defer close(j.flights)
	defer close(j.answers)
	for {
		select {
		case j.slots <- struct{}{}: // given back by settle
		case <-j.queue.refusing: // even if a disk that hangs holds all the slots
			answer(j.queue.takeRefused())
			continue
		}
		batch, refusal, open := j.queue.take(j.config.PackEntriesMax, j.config.PackBytesMax)
		if !open {
			return
		}
		if refusal != nil {
			answer(batch, refusal)
			<-j.slots
			continue
		}
		f := &flight{batch: batch, proposed: time.Now(), settled: make(chan struct{})}
		j.stats.queueDelay.observe(uint64(f.proposed.Sub(batch[0].since)))
		// Raft takes it at once, or when its main loop is back from the disk.
		f.future = j.raft.Apply(j.packBatch(batch), 2*j.disk.patience)
		j.flights <- f
		j.answers <- f
	}
}

func (j *Journal) packBatch(batch []proposal) []byte {
	records := make([][]byte, len(batch))
	for i := range batch {
		records[i] = batch[i].record
	}
	entry := packEntry(records...)
	j.stats.entryRecords.observe(uint64(len(batch)))
	j.stats.entryBytes.observe(uint64(len(entry)))
	return entry
}

// settle waits for the entries in order.
func (j *Journal) settle() {
	for f := range j.flights {
		f.err = f.future.Error()
		close(f.settled)
		<-j.slots // the packer may go on while the callers are told
	}
}

// complete answers those who appended, in order: when the entry has settled, or
// when the disk hangs, because that may be for ever.
func (j *Journal) complete() {
	for f := range j.answers {
		select {
		case <-f.settled:
		case <-j.disk.stalls():
			select {
			case <-f.settled:
			default:
				answer(f.batch, fmt.Errorf("%w: the disk hangs", ErrUnknownOutcome))
				continue
			}
		}
		j.stats.commitDelay.observe(uint64(time.Since(f.proposed)))
		if f.err != nil {
			answer(f.batch, j.explain(outcome(f.err)))
			continue
		}
		switch result := f.future.Response().(type) {
		case *applied:
			for i, p := range f.batch {
				if p.outcome != nil {
					*p.outcome = result.outcomes[i]
				}
				p.done(result.refusal(i))
			}
		case error: // the entry is committed, and this node cannot apply it
			answer(f.batch, fmt.Errorf("%w: %w", ErrUnknownOutcome, result))
		}
	}
}

func answer(batch []proposal, err error) {
	for _, p := range batch {
		p.done(err)
	}
}

// explain adds that the node is fenced to an error that it may have caused.
func (j *Journal) explain(err error) error {
	if fenced := j.fence.err(); fenced != nil && err != nil {
		return fmt.Errorf("%w: %w", err, fenced)
	}
	return err
}
