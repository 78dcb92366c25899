package transport

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// recordingPipeline keeps what is sent over it.
type recordingPipeline struct {
	fullPipeline
	requests chan *raft.AppendEntriesRequest
}

func (p *recordingPipeline) AppendEntries(args *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.requests <- args
	return nil, nil
}

type recordingTransport struct {
	pipelineTransport
	recorder *recordingPipeline
}

func (t recordingTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.recorder, nil
}

// newAppendRequest is a request with the entries of a term from first to last, with a commit index.
func newAppendRequest(term, first, last, committed uint64) *raft.AppendEntriesRequest {
	request := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: first - 1, PrevLogTerm: term, LeaderCommitIndex: committed}
	for index := first; index <= last; index++ {
		request.Entries = append(request.Entries, &raft.Log{Index: index, Term: term})
	}
	return request
}

func TestCommitNotice_OnlyForLastSentEntry(t *testing.T) {
	for name, test := range map[string]struct {
		committed []entryID // when everything is sent, in quick succession
		sentAfter *raft.AppendEntriesRequest
		noticed   bool
	}{
		"the last one":                   {committed: []entryID{{5, 2}}, noticed: true},
		"the last one, behind others":    {committed: []entryID{{3, 2}, {4, 2}, {5, 2}}, noticed: true},
		"one before it":                  {committed: []entryID{{4, 2}}},
		"of another leader":              {committed: []entryID{{5, 3}}},
		"one that was not sent":          {committed: []entryID{{6, 2}}},
		"the next entry brings the news": {committed: []entryID{{5, 2}}, sentAfter: newAppendRequest(2, 6, 6, 5)},
		"it was told without an entry":   {committed: []entryID{{5, 2}}, sentAfter: newAppendRequest(2, 6, 5, 5)},
		"an older one was told":          {committed: []entryID{{5, 2}}, sentAfter: newAppendRequest(2, 6, 5, 4), noticed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				recording := &recordingPipeline{
					fullPipeline: fullPipeline{closed: make(chan struct{})}, requests: make(chan *raft.AppendEntriesRequest, 10),
				}
				transport := &Acked{Transport: recordingTransport{recorder: recording}, Acks: NewAcks()}
				p, err := transport.AppendEntriesPipeline("n", "n:1")
				if err != nil {
					t.Fatal(err)
				}
				send := func(request *raft.AppendEntriesRequest) {
					if _, err := p.AppendEntries(request, nil); err != nil {
						t.Fatal(err)
					}
					<-recording.requests
				}
				send(newAppendRequest(2, 3, 5, 2))
				for _, entry := range test.committed {
					commitEntry(transport, entry)
				}
				if test.sentAfter != nil {
					send(test.sentAfter)
				}
				time.Sleep(2 * NoticeDelay)
				synctest.Wait()
				if noticed := len(recording.requests) > 0; noticed != test.noticed {
					t.Fatalf("noticed: %v; want %v", noticed, test.noticed)
				}
				if test.noticed {
					got := <-recording.requests
					if got.Term != 2 || got.PrevLogEntry != 5 || got.PrevLogTerm != 2 || got.LeaderCommitIndex != 5 || len(got.Entries) > 0 {
						t.Errorf("sent %+v", got)
					}
					commitEntry(transport, test.committed[len(test.committed)-1]) // known from now on
					time.Sleep(2 * NoticeDelay)
					if len(recording.requests) > 0 {
						t.Error("noticed twice")
					}
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				if err := transport.Close(); err != nil { // waits for both goroutines
					t.Error(err)
				}
				if len(transport.openPipelines) > 0 {
					t.Error("a closed pipeline still gets notices")
				}
			})
		})
	}
}

// entriesTransport receives what is sent to it outside of a pipeline.
type entriesTransport struct{ recordingTransport }

func (entriesTransport) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, _ *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	resp.Success = true
	return nil
}

func TestCommitNotice_NewPipelineCoversEarlierSends(t *testing.T) {
	for name, test := range map[string]struct {
		sent      []*raft.AppendEntriesRequest
		committed entryID
		noticed   bool
	}{
		"the last entry":            {[]*raft.AppendEntriesRequest{newAppendRequest(2, 3, 5, 2)}, entryID{5, 2}, true},
		"of another leader":         {[]*raft.AppendEntriesRequest{newAppendRequest(2, 3, 5, 2)}, entryID{5, 1}, false},
		"an earlier one":            {[]*raft.AppendEntriesRequest{newAppendRequest(2, 3, 5, 2)}, entryID{4, 2}, false},
		"it was told already":       {[]*raft.AppendEntriesRequest{newAppendRequest(2, 6, 5, 5)}, entryID{5, 2}, false},
		"a heartbeat came after it": {[]*raft.AppendEntriesRequest{newAppendRequest(2, 3, 5, 2), {Term: 2}}, entryID{5, 2}, true},
		"sent in an earlier term, and late": {
			[]*raft.AppendEntriesRequest{newAppendRequest(3, 3, 5, 2), newAppendRequest(2, 3, 4, 2)}, entryID{5, 3}, true,
		},
	} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, committed before it is opened: %v", name, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					recording := &recordingPipeline{
						fullPipeline: fullPipeline{closed: make(chan struct{})}, requests: make(chan *raft.AppendEntriesRequest, 10),
					}
					ended := 0
					transport := &Acked{
						Transport: entriesTransport{recordingTransport{recorder: recording}},
						Acks:      NewAcks(), Liveness: NewLiveness(), OnPipelineEnd: func() { ended++ },
					}
					for _, request := range test.sent {
						if err := transport.AppendEntries("n", "n:1", request, new(raft.AppendEntriesResponse)); err != nil {
							t.Fatal(err)
						}
					}
					if before {
						commitEntry(transport, test.committed)
					}
					p, err := transport.AppendEntriesPipeline("n", "n:1")
					if err != nil {
						t.Fatal(err)
					}
					if !before {
						commitEntry(transport, test.committed)
					}
					time.Sleep(2 * NoticeDelay)
					synctest.Wait()
					if noticed := len(recording.requests) > 0; noticed != test.noticed {
						t.Errorf("noticed: %v; want %v", noticed, test.noticed)
					}
					if test.noticed {
						if got := <-recording.requests; got.PrevLogEntry != 5 || got.LeaderCommitIndex != 5 || len(got.Entries) > 0 {
							t.Errorf("sent %+v", got)
						}
					}
					if err := errors.Join(p.Close(), p.Close(), transport.Close()); err != nil {
						t.Error(err)
					}
					if ended != 1 || len(transport.confirmed) > 0 {
						t.Errorf("notified %d times of one end; %d servers are remembered", ended, len(transport.confirmed))
					}
				})
			})
		}
	}
}

// Another follower may have an entry, and the entry may be committed, while this follower's message
// with it is made.
func TestCommitNotice_CommitDuringSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recording := &recordingPipeline{
			fullPipeline: fullPipeline{closed: make(chan struct{})}, requests: make(chan *raft.AppendEntriesRequest, 10),
		}
		transport := &Acked{Transport: recordingTransport{recorder: recording}, Acks: NewAcks()}
		p, err := transport.AppendEntriesPipeline("n", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		message := newAppendRequest(2, 3, 5, 2)
		commitEntry(transport, entryID{5, 2})
		if _, err := p.AppendEntries(message, nil); err != nil {
			t.Fatal(err)
		}
		<-recording.requests
		time.Sleep(2 * NoticeDelay)
		synctest.Wait()
		if len(recording.requests) != 1 {
			t.Errorf("noticed %d times", len(recording.requests))
		}
		if err := errors.Join(p.Close(), transport.Close()); err != nil {
			t.Error(err)
		}
	})
}

func commitEntry(t *Acked, entry entryID) { t.OnCommitted(entry.index, entry.term) }
