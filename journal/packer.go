package journal

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// flight is an entry that Raft has and has not answered yet.
type flight struct {
	batch  []proposal
	future raft.ApplyFuture
}

// pack turns what waits into Raft entries. While InFlightMax entries are on
// their way it takes nothing, so the next entry grows with the load: alone, an
// append goes out at once; under load, many go out together.
func (j *Journal) pack() {
	defer close(j.flights)
	for {
		j.slots <- struct{}{} // given back by complete
		batch, refusal, open := j.queue.take(j.config.PackEntriesMax, j.config.PackBytesMax)
		if !open {
			return
		}
		if refusal != nil {
			answer(batch, refusal)
			<-j.slots
			continue
		}
		records := make([][]byte, len(batch))
		for i := range batch {
			records[i] = batch[i].record
		}
		j.flights <- flight{batch, j.raft.Apply(packEntry(records...), 0)}
	}
}

// complete waits for the entries in order and answers those who appended.
func (j *Journal) complete() {
	for f := range j.flights {
		err := f.future.Error()
		<-j.slots // the packer may go on while the callers are told
		if err != nil {
			answer(f.batch, j.explain(outcome(err)))
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
