package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Peer is a node of the cluster.
type Peer struct {
	NodeID  string
	Address string // host:port
}

// Config is the configuration of a node. It is copied by [Start]. Zero values
// mean defaults.
type Config struct {
	// Where the journal lives; made if it is not there. One node at a time may
	// use it. Required, unless InMemory is set.
	Dir string
	// Keep everything in memory, for tests: it is gone when the node stops.
	InMemory bool

	// The name of the node, for ever: it is stamped into Dir, and a node that
	// has lost its Dir must come back under another name. Defaults to "node"
	// when there are no Peers; required otherwise.
	NodeID string
	// The address to listen at for other nodes, host:port. Without TLS, which
	// is not there yet, it must be a loopback address. Defaults to none, which
	// only a node without Peers can have.
	Listen string
	// The nodes that found the cluster, this one among them; the same list on
	// every node. It is used when Dir is empty and ignored later. Defaults to
	// none: a cluster of one.
	Peers []Peer

	// The code: bound handles.
	Definitions []replay.Definition

	// How many activities run at once on this node. Defaults to 256.
	ActivitiesMax int
	// The tags of activities that this node runs, besides those without a tag; see
	// [replay.Tag]. Defaults to none.
	Tags []string
	// How many idle instances stay in memory. Defaults to 10,000.
	ResidentMax int
	// How long Stop lets running activities finish. Defaults to 10 s.
	StopGrace time.Duration
	// How long a call without a deadline of its own is repeated while no leader
	// answers. Defaults to 30 s.
	CallTimeout time.Duration
	// How long instances are kept after their end. Defaults to for ever. To be
	// the same on every node: that of the leading one counts.
	Retention Retention
	// Defaults to slog.Default().
	Logger *slog.Logger

	journalLogger *slog.Logger // Logger; the journal names the node itself
}

const (
	nodeIDDefault      = "node"
	stopGraceDefault   = 10 * time.Second
	callTimeoutDefault = 30 * time.Second
)

// A ConfigError reports a field of [Config] that cannot be used.
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("tenuto: Config.%s %s", e.Field, e.Reason) }

func (c Config) withDefaults() Config {
	c.Peers = slices.Clone(c.Peers)
	c.Tags = slices.Clone(c.Tags)
	if c.NodeID == "" && len(c.Peers) == 0 {
		c.NodeID = nodeIDDefault
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.StopGrace <= 0 {
		c.StopGrace = stopGraceDefault
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = callTimeoutDefault
	}
	c.journalLogger = c.Logger
	c.Logger = c.Logger.With("node", c.NodeID)
	return c
}

func (c Config) validate() error {
	switch {
	case c.Dir == "" && !c.InMemory:
		return &ConfigError{"Dir", "is empty: name a directory, or set InMemory for a test"}
	case c.Dir != "" && c.InMemory:
		return &ConfigError{"InMemory", "is set, and so is Dir: choose one"}
	case c.NodeID == "":
		return &ConfigError{"NodeID", "is empty: every node of a cluster needs a name of its own"}
	case len(c.Peers) > 0 && c.Listen == "":
		return &ConfigError{"Listen", "is empty: other nodes have to reach this one"}
	case c.Retention.negative():
		return &ConfigError{"Retention", "has a negative duration: 0 means for ever"}
	}
	if err := c.validatePeers(); err != nil {
		return err
	}
	return c.validateListen()
}

func (c Config) validatePeers() error {
	if len(c.Peers) == 0 {
		return nil
	}
	seen := make(map[string]bool)
	for _, peer := range c.Peers {
		switch {
		case peer.NodeID == "" || peer.Address == "":
			return &ConfigError{"Peers", fmt.Sprintf("has an entry without NodeID or Address: %+v", peer)}
		case seen[peer.NodeID]:
			return &ConfigError{"Peers", fmt.Sprintf("names node %q twice", peer.NodeID)}
		}
		seen[peer.NodeID] = true
	}
	if !seen[c.NodeID] {
		return &ConfigError{"Peers", fmt.Sprintf("does not name this node, %q", c.NodeID)}
	}
	return nil
}

// validateListen refuses plaintext on anything but loopback: one forged packet
// to an open Raft port takes the cluster over.
func (c Config) validateListen() error {
	if c.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return &ConfigError{"Listen", "is not host:port: " + err.Error()}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return &ConfigError{"Listen", fmt.Sprintf("is %q: without TLS a node listens on loopback only", c.Listen)}
	}
	return nil
}

// address returns where others reach this node.
func (c Config) address() string {
	for _, peer := range c.Peers {
		if peer.NodeID == c.NodeID {
			return peer.Address
		}
	}
	return c.Listen
}

// aloneTimeout is after how long a node without peers elects itself: there is
// nobody whose heartbeat could be late.
const aloneTimeout = 10 * time.Millisecond

// heartbeatTimeout returns the journal's, 0 for its default.
func (c Config) heartbeatTimeout() time.Duration {
	if len(c.Peers) > 1 {
		return 0
	}
	return aloneTimeout
}

func (c Config) journalPeers() []journal.Peer {
	var peers []journal.Peer
	for _, peer := range c.Peers {
		peers = append(peers, journal.Peer{Node: peer.NodeID, Address: peer.Address})
	}
	return peers
}
