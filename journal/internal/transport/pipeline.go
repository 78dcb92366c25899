package transport

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// pipeline wraps a pipeline of the transport and closes that after an RPC in it has failed or was
// rejected. The Raft library then stops reading answers and does not close the pipeline. If the
// library's sender waited for room in the full pipeline, it would wait forever, and so would a
// shutdown of Raft. The pipeline also sends early notices of commits; see commitnotice.go.
type pipeline struct {
	raft.AppendPipeline
	responses chan raft.AppendFuture
	closed    chan struct{}
	once      sync.Once

	onEnd         func()                                    // see Acked.reportPipelineEnd
	recheckCommit func()                                    // see Acked.recheckCommit
	notices       chan entryID                              // has room for one
	sendSlot      chan struct{}                             // held by the sender
	lastSent      atomic.Pointer[raft.AppendEntriesRequest] // see requestAfter
}

// AppendEntriesPipeline implements raft.Transport.
func (a *Acked) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := a.Transport.AppendEntriesPipeline(id, target)
	if err != nil {
		a.reportPipelineEnd()
		return nil, err // unwrapped: Raft compares it
	}
	p := &pipeline{
		AppendPipeline: inner, responses: make(chan raft.AppendFuture), closed: make(chan struct{}),
		notices: make(chan entryID, 1), sendSlot: make(chan struct{}, 1), onEnd: a.reportPipelineEnd,
	}
	p.recheckCommit = func() { a.recheckCommit(p) }
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.openPipelines == nil {
		a.openPipelines = make(map[*pipeline]struct{})
	}
	a.openPipelines[p] = struct{}{}
	a.resumePipeline(id, p)
	a.pipelines.Go(p.sendNotices)
	a.pipelines.Go(func() {
		defer a.forget(p)
		p.forwardResponses()
	})
	return p, nil
}

func (a *Acked) forget(p *pipeline) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.openPipelines, p)
}

// Close implements raft.WithClose. Raft closes its transport when it no longer uses any pipeline.
func (a *Acked) Close() error {
	err := a.Transport.Close()
	a.pipelines.Wait()
	return err
}

// forwardResponses forwards answers until the pipeline is closed. It closes the inner pipeline
// itself at the first answer that is not a success.
func (p *pipeline) forwardResponses() {
	for {
		select {
		case answer := <-p.AppendPipeline.Consumer():
			if !p.forwardResponse(answer) {
				return
			}
		case <-p.closed:
			return
		}
	}
}

// forwardResponse forwards one answer to Raft, and reports whether more can come.
func (p *pipeline) forwardResponse(answer raft.AppendFuture) bool {
	succeeded := answer.Response().Success && answer.Response().Term <= answer.Request().Term
	if !succeeded {
		_ = p.closeInner() // before Raft has the answer: it may have stopped reading
	}
	select {
	case p.responses <- answer:
		return succeeded
	case <-p.closed:
		return false
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.responses }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.onEnd()
	})
	return p.closeInner()
}

// closeInner unblocks a sender that waits for room.
func (p *pipeline) closeInner() error { return p.AppendPipeline.Close() }
