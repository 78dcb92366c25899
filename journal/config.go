package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Config is copied by Open. Zero values mean the defaults.
type Config struct {
	// Node names this node for ever: a node that has lost its directory comes
	// back under another name. Required.
	Node string
	// Address is where the other nodes reach this one. Required with Network.
	Address string
	// Peers are all the nodes of the group, this one among them, the same list
	// on each. Read only when the directory is new. Defaults to this node alone.
	Peers []Peer
	// Dir holds the log and the snapshots; it is created if need be. Empty
	// means that everything is in memory and gone with Close, for tests.
	Dir string
	// Network connects the nodes. The journal owns it from Open on and closes
	// it. Defaults to none, which only a group of one can have.
	Network Network
	// Lead is called in a goroutine of its own when this node has become the
	// leader and its epoch is committed. Appends of this reign must carry the
	// epoch. ctx ends when leadership is lost or the journal is closed; the
	// next reign, and Close, wait until Lead has returned. Defaults to nothing.
	Lead func(ctx context.Context, epoch uint64)
	// Logger gets changes of state and what the Raft library warns of. Defaults
	// to slog.Default().
	Logger *slog.Logger

	// HeartbeatTimeout is how long a follower waits for the leader before it
	// asks for an election. Defaults to 200 ms.
	HeartbeatTimeout time.Duration
	// ElectionTimeout is how long a candidate waits for votes; at least
	// HeartbeatTimeout. Defaults to 200 ms, or HeartbeatTimeout if longer.
	ElectionTimeout time.Duration
	// LeaderLease is how long a leader goes on without hearing from a majority;
	// at most HeartbeatTimeout. Defaults to half of HeartbeatTimeout.
	LeaderLease time.Duration
	// CommitTimeout is about how late an idle follower learns of a commit.
	// Defaults to 10 ms.
	CommitTimeout time.Duration
	// SnapshotThreshold is the number of Raft entries after which a snapshot is
	// taken. Defaults to 8192.
	SnapshotThreshold uint64
	// SnapshotInterval is how often the threshold is looked at; the Raft
	// library waits between once and twice as long. Defaults to 30 s.
	SnapshotInterval time.Duration
	// TrailingLogs is the number of entries that are kept behind a snapshot, for
	// followers that are a little behind. Defaults to 2048.
	TrailingLogs uint64

	// PackEntriesMax is the most records (appends, attempts, purges) in one Raft
	// entry. Defaults to 256.
	PackEntriesMax int
	// PackBytesMax is the size at which a Raft entry takes no further record.
	// Defaults to 1 MiB.
	PackBytesMax int
	// InFlightMax is the most Raft entries proposed and not yet applied.
	// Defaults to 2.
	InFlightMax int
	// QueueEntriesMax is the most records that wait to be packed. Defaults to
	// 16384.
	QueueEntriesMax int
	// QueueBytesMax is the most bytes that wait to be packed. Defaults to
	// 64 MiB.
	QueueBytesMax int
	// AppendBytesMax is the largest record, encoded. Defaults to 4 MiB.
	AppendBytesMax int
}

// Peer is a node of the group.
type Peer struct {
	Node    string
	Address string
}

// Network is a listener and the way to others' listeners. The journal trusts
// every connection: authentication is the Network's.
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// withDefaults returns a copy with every zero value replaced.
func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("node", c.Node)
	if c.Address == "" && c.Network == nil {
		c.Address = c.Node
	}
	if len(c.Peers) == 0 {
		c.Peers = []Peer{{Node: c.Node, Address: c.Address}}
	}
	orDefault(&c.HeartbeatTimeout, 200*time.Millisecond)
	orDefault(&c.ElectionTimeout, max(c.HeartbeatTimeout, 200*time.Millisecond))
	orDefault(&c.LeaderLease, c.HeartbeatTimeout/2)
	orDefault(&c.CommitTimeout, 10*time.Millisecond)
	orDefault(&c.SnapshotThreshold, 8192)
	orDefault(&c.SnapshotInterval, 30*time.Second)
	orDefault(&c.TrailingLogs, 2048)
	orDefault(&c.PackEntriesMax, 256)
	orDefault(&c.PackBytesMax, 1<<20)
	orDefault(&c.InFlightMax, 2)
	orDefault(&c.QueueEntriesMax, 16384)
	orDefault(&c.QueueBytesMax, 64<<20)
	orDefault(&c.AppendBytesMax, 4<<20)
	return c
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate checks what withDefaults has returned.
func (c *Config) validate() error {
	switch {
	case c.Node == "":
		return errors.New("config: Node is empty")
	case c.Address == "":
		return errors.New("config: Address is empty")
	case len(c.Peers) > 1 && c.Network == nil:
		return errors.New("config: a group of several nodes needs a Network")
	case c.LeaderLease > c.HeartbeatTimeout:
		return errors.New("config: LeaderLease is longer than HeartbeatTimeout")
	case c.ElectionTimeout < c.HeartbeatTimeout:
		return errors.New("config: ElectionTimeout is shorter than HeartbeatTimeout")
	case min(c.PackEntriesMax, c.PackBytesMax, c.InFlightMax, c.QueueEntriesMax, c.QueueBytesMax, c.AppendBytesMax) < 0:
		return errors.New("config: a limit is negative")
	case c.AppendBytesMax > c.QueueBytesMax:
		return errors.New("config: AppendBytesMax is larger than QueueBytesMax")
	}
	for _, p := range c.Peers {
		if p.Node == c.Node {
			return nil
		}
	}
	return fmt.Errorf("config: Peers do not name this node, %q", c.Node)
}
