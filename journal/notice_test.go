package journal

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// Without notices the followers would learn of the last commit up to two minutes later.
func TestFollowersLearnOfTheLastCommitWithinAMillisecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newTweakedGroup(t, nil, func(_ int, c *Config) { c.CommitTimeout = time.Minute })
		leader := g.nodes[g.leader(t)]
		for i := range 2 {
			mustAppend(t, leader, begin(leader.Epoch(), fmt.Sprint("first-", i)))
			g.agree(t) // and so entries go to both in a row
		}
		for i := range 10 {
			mustAppend(t, leader, begin(leader.Epoch(), fmt.Sprint("i-", i)))
			acknowledged := time.Now()
			for _, node := range g.nodes {
				if err := node.fsm.await(t.Context(), leader.AppliedIndex()); err != nil {
					t.Fatal(err)
				}
				if late := time.Since(acknowledged); late > noticeAfter {
					t.Errorf("%s has applied what the leader had %v before", node.config.Node, late)
				}
			}
		}
	})
}

// recordingPipeline keeps what is sent over it.
type recordingPipeline struct {
	fullPipeline
	requests chan *raft.AppendEntriesRequest
}

func (p *recordingPipeline) AppendEntries(args *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.requests <- args
	return nil, nil
}

type recorded struct {
	pipelined
	recording *recordingPipeline
}

func (t recorded) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.recording, nil
}

// sends is a request with entries of a term, from first to last, that names what is committed.
func sends(term, first, last, committed uint64) *raft.AppendEntriesRequest {
	request := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: first - 1, PrevLogTerm: term, LeaderCommitIndex: committed}
	for index := first; index <= last; index++ {
		request.Entries = append(request.Entries, &raft.Log{Index: index, Term: term})
	}
	return request
}

func TestOnlyTheLastEntryThatWasSentIsNoticed(t *testing.T) {
	for name, test := range map[string]struct {
		committed []entryID // when all is sent, one at once after the other
		sentAfter *raft.AppendEntriesRequest
		noticed   bool
	}{
		"the last one":                   {committed: []entryID{{5, 2}}, noticed: true},
		"the last one, behind others":    {committed: []entryID{{3, 2}, {4, 2}, {5, 2}}, noticed: true},
		"one before it":                  {committed: []entryID{{4, 2}}},
		"of another leader":              {committed: []entryID{{5, 3}}},
		"one that was not sent":          {committed: []entryID{{6, 2}}},
		"the next entry brings the news": {committed: []entryID{{5, 2}}, sentAfter: sends(2, 6, 6, 5)},
		"it was told without an entry":   {committed: []entryID{{5, 2}}, sentAfter: sends(2, 6, 5, 5)},
		"an older one was told":          {committed: []entryID{{5, 2}}, sentAfter: sends(2, 6, 5, 4), noticed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				recording := &recordingPipeline{
					fullPipeline: fullPipeline{closed: make(chan struct{})}, requests: make(chan *raft.AppendEntriesRequest, 10),
				}
				transport := &ackedTransport{closingTransport: recorded{recording: recording}, acks: newAcks()}
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
				send(sends(2, 3, 5, 2))
				for _, entry := range test.committed {
					transport.committed(entry)
				}
				if test.sentAfter != nil {
					send(test.sentAfter)
				}
				time.Sleep(2 * noticeAfter)
				synctest.Wait()
				if noticed := len(recording.requests) > 0; noticed != test.noticed {
					t.Fatalf("noticed: %v; want %v", noticed, test.noticed)
				}
				if test.noticed {
					got := <-recording.requests
					if got.Term != 2 || got.PrevLogEntry != 5 || got.PrevLogTerm != 2 || got.LeaderCommitIndex != 5 || len(got.Entries) > 0 {
						t.Errorf("sent %+v", got)
					}
					transport.committed(test.committed[len(test.committed)-1]) // is known now
					time.Sleep(2 * noticeAfter)
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
				if len(transport.open) > 0 {
					t.Error("a closed pipeline is still told")
				}
			})
		})
	}
}
