package journal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/frame"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
)

// A node that cannot rebuild its state from its own files requests a snapshot from the others
// before it takes part in anything. It uses a connection like those of Raft, so exactly the nodes
// that may send Raft messages may request one:
//
//	ask    = "tenuto-ask-1" frame(JSON of snapshotRequest)
//	answer = frame(JSON of snapshotReply) stream     // the stream only if nothing is refused
//
// with frame and stream as in a snapshot from the leader. No message of the Raft library begins
// like that.
const (
	snapshotRequestMagic = "tenuto-ask-1"
	// requestTimeout bounds each read and write of either side. The other node may have to take the
	// snapshot first, or to serve another node.
	requestTimeout = 30 * time.Second
	// fetchRetryInterval is the pause before the next round of requests.
	fetchRetryInterval = 500 * time.Millisecond
)

// snapshotRequest asks for a snapshot.
type snapshotRequest struct {
	Cluster  string `json:"cluster,omitempty"`
	Node     string `json:"node"`
	MinIndex uint64 `json:"least"` // the least acceptable index of the snapshot
}

// snapshotReply precedes the stream, or says why there is none.
type snapshotReply struct {
	Refusal string `json:"refusal,omitempty"`
}

// snapshotFetcher fetches a snapshot from one of the other nodes.
type snapshotFetcher struct {
	config    *Config
	snapshots *snapshotStore
	minIndex  uint64
}

// run asks one node after the other until one has sent a snapshot, ctx ends, or RepairTimeout is
// over. The error wraps the failures of the last round.
func (a *snapshotFetcher) run(ctx context.Context, addresses []string) (*manifest, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no other node is known")
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.RepairTimeout)
	defer cancel()
	for {
		var failures []error
		for _, address := range addresses {
			m, err := a.fetchFrom(ctx, address)
			if err == nil {
				a.config.Logger.Info("snapshot fetched", "index", m.Index, "from", m.Node, "address", address)
				return m, nil
			}
			failures = append(failures, fmt.Errorf("ask %s: %w", address, err))
		}
		a.config.Logger.Warn("cannot fetch a snapshot yet, trying again", "least", a.minIndex, "error", errors.Join(failures...))
		select {
		case <-ctx.Done():
			return nil, errors.Join(failures...)
		case <-time.After(fetchRetryInterval):
		}
	}
}

// fetchFrom asks one node.
func (a *snapshotFetcher) fetchFrom(ctx context.Context, address string) (*manifest, error) {
	conn, err := a.config.Network.Dial(address, ioTimeout)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	m, err := a.exchange(&timeoutConn{conn})
	if stop() {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (a *snapshotFetcher) exchange(conn net.Conn) (*manifest, error) {
	q := snapshotRequest{Cluster: a.config.Cluster, Node: a.config.Node, MinIndex: a.minIndex}
	if err := frame.WriteJSON(conn, snapshotRequestMagic, q); err != nil {
		return nil, fmt.Errorf("send request: %w", err)
	}
	var r snapshotReply
	if err := frame.ReadJSON(conn, &r); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if r.Refusal != "" {
		return nil, errors.New(r.Refusal)
	}
	return a.snapshots.fetch(conn, a.minIndex)
}

// timeoutConn bounds each read and each write by requestTimeout.
type timeoutConn struct {
	net.Conn
}

// Read implements net.Conn.
func (c *timeoutConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *timeoutConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// peerAddresses returns possible addresses of other nodes of the partition, from everything that
// this one knows: its log, its snapshots including quarantined ones, and its Config.
func peerAddresses(c *Config, snapshots *snapshotStore, logs raft.LogStore) []string {
	var addresses []string
	addAddress := func(node, address string) {
		if node != c.Node && address != c.Address && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	for _, members := range append(raftlog.ConfigurationsInLog(logs), snapshots.configurations()...) {
		for _, server := range members.Servers {
			addAddress(string(server.ID), addressOf(&server))
		}
	}
	for _, p := range c.Peers {
		addAddress(p.Node, p.Address)
	}
	for _, address := range c.Seeds {
		addAddress("", address)
	}
	return addresses
}
