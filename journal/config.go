package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/logqueue"
)

// Config is copied by Open. Zero values mean the defaults.
type Config struct {
	// Node names this node for ever: a node that has lost its directory comes
	// back under another name, or with a directory that was adopted (AdoptMember). Required.
	Node string
	// Cluster names the group for ever, besides Node: a directory of another one
	// is refused. Defaults to no name.
	Cluster string
	// Groups is how many groups keep the histories of the cluster between them, and
	// Group which of them this one is, from 0 on. Both are stamped into the
	// directory. Default to 1 and 0.
	Groups int
	Group  int
	// Identity is the identity that a new directory gets, and that an existing one has to have.
	// Defaults to a random one; see [Journal.Identity].
	Identity string
	// Address is where the other nodes reach this one. Required with Network.
	Address string
	// Peers are all the nodes of the group, this one among them, the same list
	// on each. Read only when the directory is new: they found the group when each of them has
	// said that its directory is new as well. Defaults to this node alone.
	Peers []Peer
	// Join says that a new directory founds no group: the node waits until the
	// leader of one adds it (AddMember). Read only when the directory is new.
	// Excludes Peers.
	Join bool
	// Protocol is the newest protocol of the cluster that this node speaks, besides
	// the one before. When the journal says that the cluster has come to a newer one
	// the node fences itself with a *VersionError. Defaults to NewestProtocol.
	Protocol uint32
	// Seeds are addresses of other nodes that are asked for a snapshot when this
	// node's state and snapshots are damaged, besides Peers and those that the log
	// and the snapshots name.
	Seeds []string
	// WallClock draws the cluster time slowly after itself while this node leads, and
	// tells how much has passed while all nodes were down; see Now. It must not block.
	// Defaults to time.Now.
	WallClock func() time.Time
	// Dir holds the log and the snapshots; it is created if need be. Empty
	// means that everything is in memory and gone with Close, for tests.
	Dir string
	// Network connects the nodes. The journal owns it from Open on and closes
	// it. Defaults to none, which only a group of one can have.
	Network Network
	// Vouched reports whether a node is a member, with a directory of that identity, although
	// this node's log says otherwise: the log may be behind. An empty identity stands for any.
	// Asked for messages of a [Sender], and for those of a node that has said its identity.
	// Defaults to no.
	Vouched func(node, identity string) bool
	// Lead is called in a goroutine of its own when this node has become the
	// leader and its epoch is committed. Appends of this reign must carry the
	// epoch. ctx ends when leadership is lost or the journal is closed; the
	// next reign, and Close, wait until Lead has returned. Defaults to nothing.
	Lead func(ctx context.Context, epoch uint64)
	// LeaderChanged is called by a goroutine of the journal's after this node has
	// learned that another node leads, or none; Leader tells which. Calls may be
	// fewer than changes. It must not block. Defaults to nothing.
	LeaderChanged func()
	// Logger gets changes of state and what the Raft library warns of. The journal does
	// not wait for a handler that blocks. Defaults to slog.Default().
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
	// StallLimit is how long one write of this node's log may take. After that a
	// leader ends its reign, what it has proposed is answered with
	// ErrUnknownOutcome, and it falls silent towards the others, who elect another,
	// until the write returns. When a write has returned after StallLimit
	// and within 1 s, the disk is busy and not broken: for the next minute the limit
	// is 1 s. Defaults to twice HeartbeatTimeout, or to 10 s if there are no other
	// Peers.
	StallLimit time.Duration
	// CommitTimeout is how often, between once and twice that, an idle leader sends its
	// followers something besides heartbeats. One that does not take entries in a row learns
	// so late of a commit, the others within a millisecond. Defaults to 500 ms.
	CommitTimeout time.Duration
	// SnapshotThreshold is the number of Raft entries after which a snapshot is
	// taken. Defaults to 8192.
	SnapshotThreshold uint64
	// SnapshotBytes is the size of the log since the last snapshot at which the
	// next one is taken, whatever SnapshotThreshold says: about what a restart
	// has to replay. At most half of it is kept behind a snapshot. Defaults to
	// 64 MiB.
	SnapshotBytes uint64
	// SnapshotInterval is how often the threshold is looked at; the Raft
	// library waits between once and twice as long. Defaults to 30 s.
	SnapshotInterval time.Duration
	// TrailingLogs is the number of entries that are kept behind a snapshot, for
	// followers that are a little behind, unless they take more than half of
	// SnapshotBytes. Defaults to 2048.
	TrailingLogs uint64

	// RepairTimeout is how long Open asks the other nodes for a snapshot when this
	// node's state and snapshots are damaged. Defaults to 1 min.
	RepairTimeout time.Duration

	// StateMemoryBytes bounds the memory that instances take whose state is on
	// disk, so that it need not be read when they go on; StateCacheBytes bounds
	// that for what was read from there. What is not written yet comes on top: up
	// to about 200 MB. Default to 128 MiB and 64 MiB. Without a Dir everything is
	// in memory.
	StateMemoryBytes int
	StateCacheBytes  int

	// PackEntriesMax is the most records (appends, attempts, purges) in one Raft
	// entry. Defaults to 512.
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

	tests testHooks
}

// testHooks is what only this package's tests can ask for.
type testHooks struct {
	noSync bool          // of the bolt file: proves that the power-cut test sees it
	wrap   func(*stores) // puts stores that fail in between
	raft   func(*raft.Config)
}

// Peer is a node of the group.
type Peer struct {
	Node    string
	Address string
	// Identity is that of its directory, and Starts and Session tell the process that has opened
	// it, as they come from the node; see [Journal.Identity] and [Journal.Starts]. Not of
	// Config.Peers. Empty when the node is of a build before protocol 3.
	Identity string
	Starts   uint64
	Session  string
}

// Network is a listener and the way to others' listeners. Authentication is the
// Network's: the journal trusts every connection, in the name of its [Sender].
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// withDefaults returns a copy with every zero value replaced.
func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = logqueue.New(c.Logger).With("node", c.Node)
	if c.Address == "" && c.Network == nil {
		c.Address = c.Node
	}
	if c.WallClock == nil {
		c.WallClock = time.Now
	}
	if len(c.Peers) == 0 && !c.Join {
		c.Peers = []Peer{{Node: c.Node, Address: c.Address}}
	}
	orDefault(&c.Protocol, NewestProtocol)
	orDefault(&c.Groups, 1)
	orDefault(&c.HeartbeatTimeout, 200*time.Millisecond)
	orDefault(&c.ElectionTimeout, max(c.HeartbeatTimeout, 200*time.Millisecond))
	orDefault(&c.LeaderLease, c.HeartbeatTimeout/2)
	if len(c.Peers) == 1 {
		orDefault(&c.StallLimit, 10*time.Second) // nobody else could take over
	}
	orDefault(&c.StallLimit, 2*c.HeartbeatTimeout)
	orDefault(&c.SnapshotBytes, 64<<20)
	orDefault(&c.CommitTimeout, 500*time.Millisecond)
	orDefault(&c.SnapshotThreshold, 8192)
	orDefault(&c.SnapshotInterval, 30*time.Second)
	orDefault(&c.TrailingLogs, 2048)
	orDefault(&c.RepairTimeout, time.Minute)
	orDefault(&c.StateMemoryBytes, 128<<20)
	orDefault(&c.StateCacheBytes, 64<<20)
	orDefault(&c.PackEntriesMax, 512)
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
	case c.Group < 0 || c.Group >= c.Groups:
		return fmt.Errorf("config: Group is %d of %d", c.Group, c.Groups)
	case c.Address == "":
		return errors.New("config: Address is empty")
	case strings.Contains(c.Address, identityMark):
		return fmt.Errorf("config: Address %q contains %q", c.Address, identityMark)
	case c.Identity != "" && !validIdentity(c.Identity):
		return fmt.Errorf("config: Identity %q is not %d hexadecimal digits", c.Identity, 2*identityBytes)
	case c.Join && len(c.Peers) > 0:
		return errors.New("config: Join is set, and so are Peers")
	case (c.Join || len(c.Peers) > 1) && c.Network == nil:
		return errors.New("config: a group of several nodes needs a Network")
	case c.LeaderLease > c.HeartbeatTimeout:
		return errors.New("config: LeaderLease is longer than HeartbeatTimeout")
	case c.ElectionTimeout < c.HeartbeatTimeout:
		return errors.New("config: ElectionTimeout is shorter than HeartbeatTimeout")
	case c.StallLimit < 0:
		return errors.New("config: StallLimit is negative")
	case c.RepairTimeout < 0:
		return errors.New("config: RepairTimeout is negative")
	case min(c.PackEntriesMax, c.PackBytesMax, c.InFlightMax, c.QueueEntriesMax, c.QueueBytesMax, c.AppendBytesMax, c.StateMemoryBytes, c.StateCacheBytes) < 0:
		return errors.New("config: a limit is negative")
	case c.AppendBytesMax > c.QueueBytesMax:
		return errors.New("config: AppendBytesMax is larger than QueueBytesMax")
	}
	for _, p := range c.Peers {
		if p.Node == c.Node {
			return nil
		}
	}
	if c.Join {
		return nil
	}
	return fmt.Errorf("config: Peers do not name this node, %q", c.Node)
}
