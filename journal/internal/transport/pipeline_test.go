package transport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// fullPipeline accepts no further RPC until it is closed.
type fullPipeline struct {
	futures chan raft.AppendFuture
	closed  chan struct{}
}

func (p *fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}

func (p *fullPipeline) Consumer() <-chan raft.AppendFuture { return p.futures }

func (p *fullPipeline) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

// pipelineTransport is a transport whose pipelines are that one.
type pipelineTransport struct {
	Transport
	pipeline *fullPipeline
}

func (t pipelineTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.pipeline, nil
}

func (pipelineTransport) Close() error { return nil }

type fakeAppendFuture struct{ term, responseTerm uint64 }

func (fakeAppendFuture) Error() error     { return nil }
func (fakeAppendFuture) Start() time.Time { return time.Time{} }
func (a fakeAppendFuture) Request() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: a.term}
}
func (a fakeAppendFuture) Response() *raft.AppendEntriesResponse {
	return &raft.AppendEntriesResponse{Term: a.responseTerm, Success: a.responseTerm <= a.term}
}

func TestPipeline_EndsAfterRejectedAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &fullPipeline{futures: make(chan raft.AppendFuture), closed: make(chan struct{})}
		transport := &Acked{Transport: pipelineTransport{pipeline: full}, Acks: NewAcks()}
		p, err := transport.AppendEntriesPipeline("n", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := p.AppendEntries(new(raft.AppendEntriesRequest), new(raft.AppendEntriesResponse))
			sent <- err
		}()
		full.futures <- fakeAppendFuture{term: 3, responseTerm: 3}
		if answer := <-p.Consumer(); answer.Response().Term != 3 {
			t.Errorf("another answer: %+v", answer.Response())
		}
		full.futures <- fakeAppendFuture{term: 3, responseTerm: 4} // and nobody reads it
		synctest.Wait()
		select {
		case err := <-sent:
			if err != raft.ErrPipelineShutdown {
				t.Errorf("sending ended with %v", err)
			}
		default:
			t.Error("sending does not return")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
}
