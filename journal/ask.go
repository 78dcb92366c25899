package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// A node that can rebuild its state from none of its own files asks the others for
// a snapshot, before it takes part in anything. It does so over a connection like
// those of Raft, so that whoever may speak Raft may ask, and nobody else:
//
//	ask    = "tenuto-ask-1" frame(JSON of question)
//	answer = frame(JSON of reply) stream     // the stream only if nothing is refused
//
// with frame and stream as in a snapshot that the leader sends. No message of the
// Raft library begins like that.
const (
	askMagic = "tenuto-ask-1"
	// askBytesMax bounds the first frame of either side.
	askBytesMax = 64 << 10
	// askTimeout bounds each read and write of either side. Whoever is asked may
	// have to take the snapshot first, or to help another.
	askTimeout = 30 * time.Second
	// askAgain is the pause before those who could not help are asked once more.
	askAgain = 500 * time.Millisecond
)

// question is what a node asks for.
type question struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node"`
	Least   uint64 `json:"least"` // the index that the snapshot has to have
}

// reply says what comes, or why nothing does.
type reply struct {
	Refusal string `json:"refusal,omitempty"`
}

// asking is a search for a snapshot among the other nodes.
type asking struct {
	config    *Config
	snapshots *checkpoints
	least     uint64
}

// run asks one node after the other until one has sent a snapshot, or ctx ends,
// or RepairTimeout is over. The error wraps what the last round came to.
func (a *asking) run(ctx context.Context, addresses []string) (*manifest, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no other node is known")
	}
	ctx, cancel := context.WithTimeout(ctx, a.config.RepairTimeout)
	defer cancel()
	for {
		var failures []error
		for _, address := range addresses {
			m, err := a.ask(ctx, address)
			if err == nil {
				a.config.Logger.Info("a snapshot was fetched", "index", m.Index, "from", m.Node, "address", address)
				return m, nil
			}
			failures = append(failures, fmt.Errorf("ask %s: %w", address, err))
		}
		a.config.Logger.Warn("no snapshot was fetched yet", "least", a.least, "error", errors.Join(failures...))
		select {
		case <-ctx.Done():
			return nil, errors.Join(failures...)
		case <-time.After(askAgain):
		}
	}
}

// ask asks one node.
func (a *asking) ask(ctx context.Context, address string) (*manifest, error) {
	conn, err := a.config.Network.Dial(address, ioTimeout)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	m, err := a.converse(&patientConn{conn})
	if stop() {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (a *asking) converse(conn net.Conn) (*manifest, error) {
	q := question{Cluster: a.config.Cluster, Node: a.config.Node, Least: a.least}
	if err := writeAsk(conn, askMagic, q); err != nil {
		return nil, fmt.Errorf("ask: %w", err)
	}
	var r reply
	if err := readAsk(conn, &r); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if r.Refusal != "" {
		return nil, errors.New(r.Refusal)
	}
	return a.snapshots.fetch(conn, a.least)
}

// patientConn is a connection on which each read and each write takes askTimeout at
// most.
type patientConn struct {
	net.Conn
}

// Read implements net.Conn.
func (c *patientConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(askTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *patientConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(askTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// writeAsk writes a first frame, behind a magic that may be empty.
func writeAsk(to io.Writer, magic string, message any) error {
	encoded, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(encoded) > askBytesMax {
		return fmt.Errorf("a message of %d bytes is over the limit of %d", len(encoded), askBytesMax)
	}
	w := &frameWriter{to: to, sum: crc32.New(castagnoli)}
	w.write([]byte(magic))
	w.frame(encoded)
	return w.err
}

// readAsk reads a first frame and no byte more.
func readAsk(from io.Reader, into any) error {
	r := &frameReader{from: from, sum: crc32.New(castagnoli)}
	encoded, err := r.frame(askBytesMax)
	if err != nil {
		return err
	}
	return json.Unmarshal(encoded, into)
}

// othersOf returns where there may be other nodes of the group, by all that this
// one still knows: its log, its snapshots, those that were put aside among them,
// and its Config.
func othersOf(c *Config, snapshots *checkpoints, logs raft.LogStore) []string {
	var addresses []string
	note := func(node, address string) {
		if node != c.Node && address != c.Address && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	for _, members := range append(membersInLog(logs), snapshots.members()...) {
		for _, server := range members.Servers {
			note(string(server.ID), addressOf(&server))
		}
	}
	for _, p := range c.Peers {
		note(p.Node, p.Address)
	}
	for _, address := range c.Seeds {
		note("", address)
	}
	return addresses
}

// membersInLog returns the configurations in a log, the latest first. An entry
// that cannot be read is none: who reads on meets it again.
func membersInLog(logs raft.LogStore) (all []raft.Configuration) {
	first, _ := logs.FirstIndex()
	last, _ := logs.LastIndex()
	for index := last; index >= first && index > 0; index-- {
		var log raft.Log
		if err := logs.GetLog(index, &log); err != nil {
			break
		}
		if log.Type == raft.LogConfiguration {
			all = append(all, raft.DecodeConfiguration(log.Data))
		}
	}
	return all
}
