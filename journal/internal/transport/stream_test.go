package transport

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// Several connections to a node are pooled, and none returns anything. One message finds that out
// for all.
func TestLiveness_OneMessageFindsAllStuckConnections(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		network := networktest.NewFlaky()
		a, b := openTransport(network, "a", 1), openTransport(network, "b", pooledConnsMax)
		query := func() error {
			header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}
			return a.RequestVote("b", "b", &raft.RequestVoteRequest{RPCHeader: header, Term: 2}, new(raft.RequestVoteResponse))
		}
		queryAll := func() (failed int) {
			results := make(chan error, pooledConnsMax)
			for range pooledConnsMax {
				go func() { results <- query() }()
			}
			for range pooledConnsMax {
				if <-results != nil {
					failed++
				}
			}
			return failed
		}
		if failed := queryAll(); failed > 0 {
			t.Fatalf("%d were not answered", failed)
		}
		time.Sleep(IOTimeout)
		network.Stall("b")
		if err := query(); err == nil {
			t.Error("a stuck connection carried an answer")
		}
		started := time.Now()
		if failed := queryAll(); failed > 0 || time.Since(started) > 0 {
			t.Errorf("%d of the next were not answered, after %v", failed, time.Since(started))
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestStream_WriteDeadlineIsBounded(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		network := networktest.NewMemory()
		there := network.Listen("there")
		streams := NewStreams(network.Listen("here"), "here", func() bool { return false })
		for allowed, want := range map[time.Duration]time.Duration{24 * time.Hour: IOTimeout, time.Second: time.Second} {
			go there.Accept() // accept, and never read
			conn, err := streams.Dial("there", IOTimeout)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetDeadline(time.Now().Add(allowed)); err != nil {
				t.Fatal(err)
			}
			started := time.Now()
			if _, err := conn.Write([]byte("a snapshot")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(started) != want {
				t.Errorf("deadline %v, after %v: %v", allowed, time.Since(started), err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(streams.Close(), there.Close()); err != nil {
			t.Error(err)
		}
	})
}
