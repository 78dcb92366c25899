package transport

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// openTransport opens the listener of a node. Requests are answered once the wanted number has
// arrived.
func openTransport(n interface {
	Listen(string) networktest.Network
}, address string, atOnce int) *Verified {
	s := NewStreams(n.Listen(address), address, func() bool { return false })
	allowAll := func(string) bool { return true }
	t := NewVerified(s, allowAll, NewRejections(slog.New(slog.DiscardHandler)), hclog.NewNullLogger())
	t.SetHeartbeatHandler(func(raft.RPC) {})
	s.Serve()
	t.running.Go(func() {
		var waiting []raft.RPC
		for {
			select {
			case message := <-t.Consumer():
				if waiting = append(waiting, message); len(waiting) < atOnce {
					continue
				}
			case <-t.closing:
				return
			}
			for _, message := range waiting {
				switch message.Command.(type) {
				case *raft.RequestVoteRequest:
					message.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					message.Respond(&raft.RequestPreVoteResponse{Granted: true}, nil)
				case *raft.TimeoutNowRequest:
					message.Respond(&raft.TimeoutNowResponse{}, nil)
				case *raft.AppendEntriesRequest:
					message.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
				}
			}
			waiting = nil
		}
	})
	return t
}

// A restarted node gets the first message, whatever old connections to it are in the pool.
func TestTransport_ReachesRestartedNode(t *testing.T) {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
	for name, send := range map[string]func(*Verified) (bool, error){
		"vote": func(a *Verified) (bool, error) {
			var response raft.RequestVoteResponse
			err := a.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: 2}, &response)
			return response.Granted, err
		},
		"pre-vote": func(a *Verified) (bool, error) {
			var response raft.RequestPreVoteResponse
			err := a.RequestPreVote("b", "b", &raft.RequestPreVoteRequest{RPCHeader: header, Term: 2}, &response)
			return response.Granted, err
		},
		"leadership": func(a *Verified) (bool, error) {
			err := a.TimeoutNow("b", "b", &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
			return true, err
		},
		"append": func(a *Verified) (bool, error) {
			var response raft.AppendEntriesResponse
			entries := []*raft.Log{{Index: 1, Term: 1}}
			err := a.AppendEntries("b", "b", &raft.AppendEntriesRequest{RPCHeader: header, Term: 2, Entries: entries}, &response)
			return response.Success, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			waittest.InSynctest(t, func(t *testing.T) {
				network := networktest.NewMemory()
				a, b := openTransport(network, "a", 1), openTransport(network, "b", pooledConnsMax)
				var sending sync.WaitGroup
				for range pooledConnsMax { // as many connections as are kept
					sending.Go(func() {
						if _, err := send(a); err != nil {
							t.Error(err)
						}
					})
				}
				sending.Wait()
				synctest.Wait()
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				b = openTransport(network, "b", 1)
				if done, err := send(a); !done || err != nil {
					t.Errorf("after the restart: %t, %v", done, err)
				}
				if err := errors.Join(b.Close(), a.Close()); err != nil {
					t.Error(err)
				}
				if _, err := send(a); err == nil || isDeadConn(err) {
					t.Errorf("a closed node: %v", err)
				}
			})
		})
	}
}
