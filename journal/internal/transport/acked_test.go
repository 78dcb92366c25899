package transport

import (
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// unreachableTransport drops everything while it is deaf, and records what is sent.
type unreachableTransport struct {
	Transport
	mu       sync.Mutex
	down     bool
	response raft.AppendEntriesResponse
	sent     []raft.AppendEntriesRequest // without heartbeats
}

func (u *unreachableTransport) setDown(isDown bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = isDown
}

func (u *unreachableTransport) sentMessages() []raft.AppendEntriesRequest {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sent
}

func (u *unreachableTransport) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if args.PrevLogEntry > 0 {
		u.sent = append(u.sent, *args)
	}
	if u.down {
		return errNoReply
	}
	*resp = u.response
	return nil
}

func (u *unreachableTransport) InstallSnapshot(raft.ServerID, raft.ServerAddress, *raft.InstallSnapshotRequest, *raft.InstallSnapshotResponse, io.Reader) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.down {
		return errNoReply
	}
	return nil
}

// sendToUnreachable makes a leader send entries and a snapshot to b, which it cannot reach.
func sendToUnreachable(d *unreachableTransport, isReplicating func() bool) (t *Acked, sent, installed chan error, got *raft.AppendEntriesResponse) {
	t = &Acked{
		Transport: d, Acks: NewAcks(), Liveness: NewLiveness(),
		IsReplicatingTo: func(raft.Server, uint64) bool { return isReplicating() },
	}
	sent, installed, got = make(chan error, 1), make(chan error, 1), new(raft.AppendEntriesResponse)
	go func() {
		sent <- t.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{
			Term: 7, PrevLogEntry: 100, PrevLogTerm: 6, LeaderCommitIndex: 100, Entries: []*raft.Log{{Index: 101}, {Index: 102}},
		}, got)
	}()
	go func() {
		installed <- t.InstallSnapshot("b", "b:1", &raft.InstallSnapshotRequest{Term: 7}, new(raft.InstallSnapshotResponse), nil)
	}()
	return t, sent, installed, got
}

func returnTrue() bool { return true }

func TestLiveness_ResendsAfterHeartbeatResponse(t *testing.T) {
	for name, answer := range map[string]raft.AppendEntriesResponse{
		"yes":                 {Term: 7, Success: true, LastLog: 104},
		"no, of a later term": {Term: 8, LastLog: 104},
	} {
		t.Run(name, func(t *testing.T) {
			waittest.InSynctest(t, func(t *testing.T) {
				d := &unreachableTransport{down: true, response: answer}
				transport, sent, installed, got := sendToUnreachable(d, returnTrue)
				heartbeat := func() error {
					return transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse))
				}
				for range 600 { // ten minutes
					time.Sleep(time.Second)
					if err := heartbeat(); err != errNoReply {
						t.Fatalf("an unanswered heartbeat: %v", err)
					}
				}
				if n := len(d.sentMessages()); n != 1 || len(sent) > 0 || len(installed) > 0 {
					t.Fatalf("sent %d times; failed %d and %d times", n, len(sent), len(installed))
				}
				d.setDown(false)
				time.Sleep(time.Second)
				if n := len(d.sentMessages()); n != 1 {
					t.Fatalf("sent %d times before a heartbeat was answered", n)
				}
				if err := heartbeat(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(contactPollInterval)
				synctest.Wait()
				if len(sent) == 0 || len(installed) == 0 {
					t.Fatalf("after a heartbeat: %d and %d have returned", len(sent), len(installed))
				}
				if err := <-sent; err != nil || got.Term != answer.Term || got.Success != answer.Success || got.LastLog != answer.LastLog {
					t.Errorf("answered %+v, %v", got, err)
				}
				if err := <-installed; err != errNoReply {
					t.Errorf("the snapshot: %v", err)
				}
			})
		})
	}
}

// A probe asks how much of the log a follower has. It carries no entries, and its commit index is
// not beyond the entry that it names, because the follower may have other entries after that.
func TestLiveness_ResendCarriesNoCommit(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		d := &unreachableTransport{down: true, response: raft.AppendEntriesResponse{Term: 7, Success: true}}
		transport, sent, installed, _ := sendToUnreachable(d, returnTrue)
		synctest.Wait()
		d.setDown(false)
		if err := transport.AppendEntries("b", "b:1", &raft.AppendEntriesRequest{Term: 7}, new(raft.AppendEntriesResponse)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-sent, ignoreNoReply(<-installed)); err != nil {
			t.Fatal(err)
		}
		all := d.sentMessages()
		again := all[len(all)-1]
		if len(all) != 2 || len(again.Entries) != 0 || again.PrevLogEntry != 100 || again.PrevLogTerm != 6 || again.Term != 7 {
			t.Errorf("sent %d times, at last %+v", len(all), again)
		}
		if again.LeaderCommitIndex != 0 {
			t.Errorf("the first message says that %d was committed", again.LeaderCommitIndex)
		}
	})
}

func ignoreNoReply(err error) error {
	if err == errNoReply {
		return nil
	}
	return err
}

func TestLiveness_OldLeaderDoesNotResend(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		var over sync.Map
		d := &unreachableTransport{down: true}
		_, sent, installed, _ := sendToUnreachable(d, func() bool { _, isOver := over.Load("over"); return !isOver })
		time.Sleep(time.Minute)
		over.Store("over", true)
		time.Sleep(contactPollInterval)
		synctest.Wait()
		if len(sent) == 0 || len(installed) == 0 {
			t.Fatal("the callers still wait")
		}
		if err := errors.Join(ignoreNoReply(<-sent), ignoreNoReply(<-installed)); err != nil {
			t.Error(err)
		}
		if n := len(d.sentMessages()); n != 1 {
			t.Errorf("sent %d times", n)
		}
	})
}

var errNoReply = errors.New("nobody answers")
