package journal

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// fullPipeline takes no further RPC until it is closed.
type fullPipeline struct {
	answers chan raft.AppendFuture
	closed  chan struct{}
}

func (p *fullPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-p.closed
	return nil, raft.ErrPipelineShutdown
}

func (p *fullPipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

func (p *fullPipeline) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

// pipelined is a transport whose pipelines are that one.
type pipelined struct {
	closingTransport
	pipeline *fullPipeline
}

func (t pipelined) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.pipeline, nil
}

func (pipelined) Close() error { return nil }

type appendAnswer struct{ term, newer uint64 }

func (appendAnswer) Error() error     { return nil }
func (appendAnswer) Start() time.Time { return time.Time{} }
func (a appendAnswer) Request() *raft.AppendEntriesRequest {
	return &raft.AppendEntriesRequest{Term: a.term}
}
func (a appendAnswer) Response() *raft.AppendEntriesResponse {
	return &raft.AppendEntriesResponse{Term: a.newer, Success: a.newer <= a.term}
}

func TestAFullPipelineEndsBehindARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &fullPipeline{answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
		transport := &ackedTransport{closingTransport: pipelined{pipeline: full}, acks: newAcks()}
		p, err := transport.AppendEntriesPipeline("n", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		go func() {
			_, err := p.AppendEntries(new(raft.AppendEntriesRequest), new(raft.AppendEntriesResponse))
			sent <- err
		}()
		full.answers <- appendAnswer{term: 3, newer: 3}
		if answer := <-p.Consumer(); answer.Response().Term != 3 {
			t.Errorf("another answer: %+v", answer.Response())
		}
		full.answers <- appendAnswer{term: 3, newer: 4} // and nobody reads it
		synctest.Wait()
		select {
		case err := <-sent:
			if err != raft.ErrPipelineShutdown {
				t.Errorf("sending ended with %v", err)
			}
		default:
			t.Error("sending waits for ever")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
}
