package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tenuto-dev/tenuto/internal/frame"
)

// A node that cannot rebuild its state from its own files requests a snapshot from the others
// before it takes part in anything. It uses a connection like those of Raft, so exactly the nodes
// that may send Raft messages may request one:
//
//	ask    = "tenuto-ask-1" frame(JSON of Request)
//	answer = frame(JSON of Reply) stream     // the stream only if nothing is rejected
//
// with frame and stream as in a snapshot from the leader. No message of the Raft library begins
// like that.
const (
	// RequestMagic begins a request.
	RequestMagic = "tenuto-ask-1"
	// requestTimeout bounds each read and write of either side. The other node may have to take the
	// snapshot first, or to serve another node.
	requestTimeout = 30 * time.Second
	// dialTimeout bounds how long a connection may take.
	dialTimeout = 5 * time.Second
	// fetchRetryInterval is the pause before the next round of requests.
	fetchRetryInterval = 500 * time.Millisecond
)

// Request asks for a snapshot.
type Request struct {
	Cluster  string `json:"cluster,omitempty"`
	Node     string `json:"node"`
	MinIndex uint64 `json:"least"` // the least acceptable index of the snapshot
}

// Reply precedes the stream, or says why there is none.
type Reply struct {
	Rejection string `json:"refusal,omitempty"` // earlier builds read this key
}

// Fetcher fetches a snapshot from one of the other nodes.
type Fetcher struct {
	Cluster, Node string // of this node
	Dial          func(address string, timeout time.Duration) (net.Conn, error)
	// Timeout bounds all requests together.
	Timeout   time.Duration
	Snapshots *Store // for the received one
	MinIndex  uint64 // the least acceptable index
	Logger    *slog.Logger
}

// Run asks one node after the other until one has sent a snapshot, ctx ends, or Timeout is over.
// The error wraps the failures of the last round.
func (f *Fetcher) Run(ctx context.Context, addresses []string) (*Manifest, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no other node is known")
	}
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	for {
		var failures []error
		for _, address := range addresses {
			m, err := f.FetchFrom(ctx, address)
			if err == nil {
				f.Logger.Info("snapshot fetched", "index", m.Index, "from", m.Node, "address", address)
				return m, nil
			}
			failures = append(failures, fmt.Errorf("ask %s: %w", address, err))
		}
		f.Logger.Warn("cannot fetch a snapshot yet, trying again", "least", f.MinIndex, "error", errors.Join(failures...))
		select {
		case <-ctx.Done():
			return nil, errors.Join(failures...)
		case <-time.After(fetchRetryInterval):
		}
	}
}

// FetchFrom asks one node.
func (f *Fetcher) FetchFrom(ctx context.Context, address string) (*Manifest, error) {
	conn, err := f.Dial(address, dialTimeout)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	m, err := f.exchange(&TimeoutConn{conn})
	if stop() {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (f *Fetcher) exchange(conn net.Conn) (*Manifest, error) {
	q := Request{Cluster: f.Cluster, Node: f.Node, MinIndex: f.MinIndex}
	if err := frame.WriteJSON(conn, RequestMagic, q); err != nil {
		return nil, fmt.Errorf("send request: %w", err)
	}
	var r Reply
	if err := frame.ReadJSON(conn, &r); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if r.Rejection != "" {
		return nil, errors.New(r.Rejection)
	}
	return f.Snapshots.Fetch(conn, f.MinIndex)
}

// TimeoutConn bounds each read and each write by requestTimeout.
type TimeoutConn struct {
	net.Conn
}

// Read implements net.Conn.
func (c *TimeoutConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *TimeoutConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
