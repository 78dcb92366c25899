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
	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// Config is copied by Open. Zero values mean the defaults.
type Config struct {
	// Node names this node permanently. A node that has lost its directory returns under another
	// name, or with a directory that was adopted (AdoptMember). Required.
	Node string
	// Cluster names the cluster permanently; a directory of another one is rejected. Defaults to no
	// name.
	Cluster string
	// Partitions is how many partitions hold the histories of the cluster. Partition is the number
	// of this one, from 0. Both are recorded in the directory. They default to 1 and 0.
	Partitions int
	Partition  int
	// Identity is the identity that a new directory gets and that an existing one must have.
	// Defaults to a random one; see [Journal.Identity].
	Identity string
	// Address is where the other nodes reach this one. Required with Network.
	Address string
	// Peers are all nodes of the partition, including this one; the list must be the same on each.
	// It is read only when the directory is new: the nodes found the partition after each has
	// reported that its directory is new as well. Defaults to this node alone.
	Peers []Peer
	// Founders returns Peers with their present addresses, "" where unknown, or why this node must
	// not agree to found the partition now. It is called about 20 times a second and for questions
	// of other nodes, until this node has a log. It must not block. Defaults to the addresses in
	// Peers.
	Founders func() ([]Peer, error)
	// AddressBook holds where members can be reached if their recorded addresses are outdated.
	// Defaults to none.
	AddressBook AddressBook
	// Join means that a new directory founds no partition: the node waits until a leader adds it
	// (AddMember). Read only when the directory is new. Excludes Peers.
	Join bool
	// Protocol is the newest cluster protocol that this node speaks; it also speaks the one before.
	// If the journal records that the cluster has moved to a newer one, the node fails with a
	// *VersionError. Defaults to NewestProtocol.
	Protocol uint32
	// Seeds are addresses of other nodes that are asked for a snapshot when this node's state and
	// snapshots are damaged. Peers, and the nodes that the log and the snapshots name, are asked
	// too.
	Seeds []string
	// WallClock is the clock that the cluster time slowly approaches while this node leads. It also
	// measures how long all nodes were down; see Now. It must not block. Defaults to time.Now.
	WallClock func() time.Time
	// Dir holds the log and the snapshots; it is created if missing. If empty, everything is in
	// memory and is lost on Close; for tests.
	Dir string
	// Network connects the nodes. The journal owns it from Open on and closes it. Required unless
	// this node is the only one.
	Network Network
	// MemberHint reports whether a node with a directory of that identity is a member although this
	// node's log says otherwise; the log may lag. An empty identity matches any. It is called for
	// messages of a [Sender], and for those of a node that has sent its identity. Defaults to false
	// for all.
	MemberHint func(node, identity string) bool
	// Voters returns which of the members are to have a vote; known is false if that is not known
	// yet, and then no votes are given or taken. It is called on the leader, and after
	// [Journal.ReconcileVotes]. The leader gives and takes one vote at a time, and never so that no
	// majority of the voters answers and has caught up; see internal/voters. It must not block, and
	// may return nodes that are no members. Defaults to all members.
	Voters func(members []string) (voters []string, known bool)
	// Lead is called in its own goroutine after this node has become the leader and its epoch is
	// committed. Appends of this leadership must carry the epoch. ctx ends when leadership is lost
	// or the journal is closed. The next leadership, and Close, wait until Lead has returned.
	// Defaults to nothing.
	Lead func(ctx context.Context, epoch uint64)
	// LeaderChanged is called by a goroutine of the journal after this node has learned of another
	// leader, or that there is none; Leader returns which. There may be fewer calls than changes.
	// It must not block. Defaults to nothing.
	LeaderChanged func()
	// Logger receives changes of state and warnings of the Raft library. The journal does not wait
	// for a handler that blocks. Defaults to slog.Default().
	Logger *slog.Logger

	// HeartbeatTimeout is how long a follower waits for the leader before it starts an election.
	// Defaults to 200 ms.
	HeartbeatTimeout time.Duration
	// ElectionTimeout is how long a candidate waits for votes; at least HeartbeatTimeout. Defaults
	// to 200 ms, or HeartbeatTimeout if longer.
	ElectionTimeout time.Duration
	// LeaderLease is how long a leader continues without hearing from a majority; at most
	// HeartbeatTimeout. Defaults to half of HeartbeatTimeout.
	LeaderLease time.Duration
	// StallLimit is how long one write of this node's log may take. After that a leader steps down,
	// answers its proposals with ErrUnknownOutcome, and sends nothing until the write returns, so
	// that the others elect another. If the write returns after StallLimit but within 1 s, the disk
	// counts as busy, not stalled: for the next minute the limit is 1 s. Defaults to twice
	// HeartbeatTimeout, or to 10 s for a single node.
	StallLimit time.Duration
	// CommitTimeout is how long an idle leader sends its followers only heartbeats: it sends
	// another message after one to two times this long. A follower without a pipeline learns of the
	// last commit that late, the others within about a millisecond. Defaults to 500 ms.
	CommitTimeout time.Duration
	// SnapshotThreshold is the number of Raft entries after which a snapshot is taken. Defaults to
	// 8192.
	SnapshotThreshold uint64
	// SnapshotBytes is the size of the log since the last snapshot that triggers the next one,
	// independently of SnapshotThreshold. A restart replays about this much. At most half of it is
	// retained after a snapshot. Defaults to 64 MiB.
	SnapshotBytes uint64
	// SnapshotInterval is how often the threshold is checked; the Raft library waits between once
	// and twice this long. Defaults to 30 s.
	SnapshotInterval time.Duration
	// TrailingLogs is the number of entries retained after a snapshot for followers that lag a
	// little, unless they take more than half of SnapshotBytes. Defaults to 2048.
	TrailingLogs uint64
	// RetainBytes bounds the part of the log that [Journal.RetainLog] keeps. A restart reads and
	// verifies it. The file of the log does not shrink afterwards; new entries reuse its room.
	// Defaults to 2 GiB, divided by the number of partitions.
	RetainBytes uint64

	// RepairTimeout is how long Open asks other nodes for a snapshot when this node's state and
	// snapshots are damaged. Defaults to 1 min.
	RepairTimeout time.Duration

	// StateMemoryBytes bounds the memory for instances whose state is also on disk, kept so that
	// they can continue without a read. StateCacheBytes bounds the cache of what was read from
	// disk. Unwritten state comes on top: up to about 200 MB. They default to 128 MiB and 64 MiB.
	// Without Dir everything is in memory.
	StateMemoryBytes int
	StateCacheBytes  int

	// PackRecordsMax is the maximum number of records (appends, attempts, purges and others) in one
	// Raft entry. Defaults to 512.
	PackRecordsMax int
	// PackBytesMax is the size at which a Raft entry accepts no further record. Defaults to 1 MiB.
	PackBytesMax int
	// InFlightMax is the maximum number of Raft entries proposed and not yet applied. Defaults to
	// 2.
	InFlightMax int
	// QueueRecordsMax is the maximum number of queued records. Defaults to 16384.
	QueueRecordsMax int
	// QueueBytesMax is the maximum size of queued records. Defaults to 64 MiB.
	QueueBytesMax int
	// AppendBytesMax is the maximum size of an encoded record. Defaults to 4 MiB.
	AppendBytesMax int

	// AskLineages returns the LineageIDs of the node at an address, if it belongs to this cluster
	// and answers; otherwise none. A node asks the other members before it takes part in elections,
	// and while it leads those that do not answer it over Network, which may reject it. Defaults to
	// not asking.
	AskLineages func(ctx context.Context, address string) []string

	tests testHooks
}

// testHooks are options of this package's tests.
type testHooks struct {
	noSync           bool          // no fsync of the bolt file, to prove that the power-cut test detects it
	wrapStores       func(*stores) // inserts stores that fail
	adjustRaftConfig func(*raft.Config)
}

// Peer is a node of the partition.
type Peer struct {
	Node    string
	Address string
	// Identity is that of the node's directory; Starts and Session identify the process that has
	// opened it. The node itself reports them; see [Journal.Identity] and [Journal.Starts]. Unused
	// in Config.Peers. Empty for a node of a build before protocol 3.
	Identity string
	Starts   uint64
	Session  string
}

// An AddressBook holds where members can be reached now. An entry may be wrong: every connection
// for Raft verifies which directory is at the other end. Its methods must not block. They are
// called concurrently.
type AddressBook interface {
	// Resolve returns the address at which to dial the member with that identity of its directory.
	// recorded is its address in the configuration.
	Resolve(identity, recorded string) string
	// ReportFailure reports that the member did not answer at an address that Resolve has returned.
	ReportFailure(identity, address string)
}

// recordedAddresses is the AddressBook of a Config without one.
type recordedAddresses struct{}

func (recordedAddresses) Resolve(_, recorded string) string { return recorded }
func (recordedAddresses) ReportFailure(string, string)      {}

// Network is a listener, and dials the listeners of others. It is responsible for authentication:
// the journal trusts every connection, and the name that its [Sender] returns.
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// Sender is a connection of a Network that authenticates the node at its other end. Raft messages
// on it are accepted in the name of that node only, and only while it is a member. For a connection
// that does not implement Sender, or returns "", the name in the message is trusted.
type Sender interface {
	Sender() string
}

// NewestProtocol is the newest protocol that this version of the software speaks, between nodes
// (clusterpb) and in records (journalpb). It also speaks the one before. DESIGN.md of package
// cluster has the rules of change.
const NewestProtocol = state.NewestProtocol

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
	if c.AddressBook == nil {
		c.AddressBook = recordedAddresses{}
	}
	if len(c.Peers) == 0 && !c.Join {
		c.Peers = []Peer{{Node: c.Node, Address: c.Address}}
	}
	if c.Founders == nil {
		peers := c.Peers
		c.Founders = func() ([]Peer, error) { return peers, nil }
	}
	orDefault(&c.Protocol, NewestProtocol)
	orDefault(&c.Partitions, 1)
	orDefault(&c.HeartbeatTimeout, 200*time.Millisecond)
	orDefault(&c.ElectionTimeout, max(c.HeartbeatTimeout, 200*time.Millisecond))
	orDefault(&c.LeaderLease, c.HeartbeatTimeout/2)
	if len(c.Peers) == 1 {
		orDefault(&c.StallLimit, 10*time.Second) // single node: no other could take over
	}
	orDefault(&c.StallLimit, 2*c.HeartbeatTimeout)
	orDefault(&c.SnapshotBytes, 64<<20)
	orDefault(&c.CommitTimeout, 500*time.Millisecond)
	orDefault(&c.SnapshotThreshold, 8192)
	orDefault(&c.SnapshotInterval, 30*time.Second)
	orDefault(&c.TrailingLogs, 2048)
	orDefault(&c.RetainBytes, 2<<30/uint64(c.Partitions))
	orDefault(&c.RepairTimeout, time.Minute)
	orDefault(&c.StateMemoryBytes, 128<<20)
	orDefault(&c.StateCacheBytes, 64<<20)
	orDefault(&c.PackRecordsMax, 512)
	orDefault(&c.PackBytesMax, 1<<20)
	orDefault(&c.InFlightMax, 2)
	orDefault(&c.QueueRecordsMax, 16384)
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

// validate checks the result of withDefaults.
func (c *Config) validate() error {
	switch {
	case c.Node == "":
		return errors.New("config: Node is empty")
	case c.Partition < 0 || c.Partition >= c.Partitions:
		return fmt.Errorf("config: Partition is %d, but Partitions is %d", c.Partition, c.Partitions)
	case c.Address == "":
		return errors.New("config: Address is empty")
	case strings.Contains(c.Address, peer.IdentitySeparator):
		return fmt.Errorf("config: Address %q contains %q", c.Address, peer.IdentitySeparator)
	case c.Identity != "" && !peer.IsValidIdentity(c.Identity):
		return fmt.Errorf("config: Identity %q is not %d hexadecimal digits", c.Identity, 2*peer.IdentityBytes)
	case c.Join && len(c.Peers) > 0:
		return errors.New("config: both Join and Peers are set")
	case (c.Join || len(c.Peers) > 1) && c.Network == nil:
		return errors.New("config: several nodes require a Network")
	case c.LeaderLease > c.HeartbeatTimeout:
		return errors.New("config: LeaderLease is longer than HeartbeatTimeout")
	case c.ElectionTimeout < c.HeartbeatTimeout:
		return errors.New("config: ElectionTimeout is shorter than HeartbeatTimeout")
	case c.StallLimit < 0:
		return errors.New("config: StallLimit is negative")
	case c.RepairTimeout < 0:
		return errors.New("config: RepairTimeout is negative")
	case min(c.PackRecordsMax, c.PackBytesMax, c.InFlightMax, c.QueueRecordsMax, c.QueueBytesMax, c.AppendBytesMax, c.StateMemoryBytes, c.StateCacheBytes) < 0:
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
	return fmt.Errorf("config: Peers do not include this node, %q", c.Node)
}

// resolve returns the address at which to dial a member.
func (c *Config) resolve(server *raft.Server) string {
	recorded, identity := peer.SplitAddress(server.Address)
	if identity == "" {
		return recorded
	}
	return c.AddressBook.Resolve(identity, recorded)
}
