package journal

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// pipeline is a pipeline of the transport that ends when an RPC in it has failed
// or was refused. The Raft library stops reading answers then, without closing
// the pipeline; its sender, if it waits just then for a place in the full
// pipeline, would wait for ever, and whoever shuts Raft down with it. It also tells
// early of commits; see notice.go.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once

	ended   func()                                    // see ackedTransport.reportEnd
	recheck func()                                    // see ackedTransport.recheck
	news    chan entryID                              // has room for one
	sending chan struct{}                             // has room for who sends
	sent    atomic.Pointer[raft.AppendEntriesRequest] // what was sent last, up to its last entry; see behind
}

// AppendEntriesPipeline implements raft.Transport.
func (t *ackedTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := t.closingTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		t.reportEnd()
		return nil, err // as it is: Raft compares it
	}
	p := &pipeline{
		AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{}),
		news: make(chan entryID, 1), sending: make(chan struct{}, 1), ended: t.reportEnd,
	}
	p.recheck = func() { t.recheck(p) }
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[*pipeline]struct{})
	}
	t.open[p] = struct{}{}
	t.takeUp(id, p)
	t.pipelines.Go(p.notify)
	t.pipelines.Go(func() {
		defer t.forget(p)
		p.pass()
	})
	return p, nil
}

func (t *ackedTransport) forget(p *pipeline) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, p)
}

// Close implements raft.WithClose. Raft closes its transport when it uses no
// pipeline any more.
func (t *ackedTransport) Close() error {
	err := t.closingTransport.Close()
	t.pipelines.Wait()
	return err
}

// pass hands answers on until the pipeline is closed, which it does itself
// behind the first one that is no success.
func (p *pipeline) pass() {
	for {
		select {
		case answer := <-p.AppendPipeline.Consumer():
			if !p.hand(answer) {
				return
			}
		case <-p.closed:
			return
		}
	}
}

// hand gives one answer to Raft, and tells whether more can come.
func (p *pipeline) hand(answer raft.AppendFuture) bool {
	succeeded := answer.Response().Success && answer.Response().Term <= answer.Request().Term
	if !succeeded {
		_ = p.release() // before Raft has the answer: it may have stopped reading
	}
	select {
	case p.answers <- answer:
		return succeeded
	case <-p.closed:
		return false
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() {
		close(p.closed)
		p.ended()
	})
	return p.release()
}

// release frees whoever waits for a place.
func (p *pipeline) release() error { return p.AppendPipeline.Close() }
