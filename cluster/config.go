package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/internal/rig"
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
	// Keep everything in memory, for tests: it is gone when the node stops, and to a cluster
	// the node has lost its Dir then.
	InMemory bool

	// The name of the node, for ever: it is stamped into Dir. For a node that has lost its Dir
	// see the section on members. 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit.
	// Defaults to "node" when there are no Peers; required otherwise.
	NodeID string
	// The name of the cluster, for ever: it is stamped into Dir too, and nodes
	// and clients with certificates of another cluster are refused. 1 to 64 of
	// A-Z a-z 0-9 . _ -, the first a letter or digit. Defaults to "tenuto".
	ClusterID string
	// The address to listen at for other nodes and remote clients, host:port.
	// Without TLS it must be a loopback address. Defaults to none, which only a
	// node without Peers can have: nobody reaches it, and nobody can join it.
	Listen string
	// What the node shows to others and whom it believes; see [KeyFiles] and the
	// section on security.
	// Defaults to none: plaintext, on loopback only.
	TLS KeySource
	// Asked about each call of a remote client, reads included; an error refuses
	// it with [ErrNotAuthorized], and its text goes to the log and not to the
	// caller. instanceID is "" for what concerns no single one. A call that does two
	// things needs the right to both: [SendOrStart] is asked about as [ActionStart] and
	// as [ActionSend]. It needs TLS, may
	// be called concurrently, and is not asked about calls of other nodes, which
	// have asked. Defaults to allowing everything to whoever has a certificate of
	// the cluster.
	Authorize func(ctx context.Context, caller Principal, action Action, instanceID string) error
	// The nodes that found the cluster, this one among them; the same list on
	// every node. It founds the cluster when Dir is empty; later it only gives this node's
	// address and helps to find the others. The cluster is founded when
	// all of them have run at the same time, each with an empty Dir. Defaults to
	// this node alone: a cluster of one, which others can join while it has a Listen.
	Peers []Peer
	// Addresses of a cluster that a node with an empty Dir is to be added to, of
	// any of its nodes. It gets a vote when it has caught up. Ignored later, but
	// for finding the others. Excludes Peers.
	Join []string
	// A token that a member has issued ([Client.IssueJoinToken]) for this node to be
	// added, where the cluster asks for one: see RequireJoinToken. It is used up when
	// the node is added, and ignored later. Defaults to none.
	JoinToken string
	// While this node leads, others are added only with a token. To be the same on
	// every node. Defaults to adding every node that asks; with TLS, every one that
	// has a certificate of its name.
	RequireJoinToken bool
	// How many Raft groups keep the instances between them, 1 to 64; each node takes
	// part in all of them, and leads some. More than one is for clusters whose leader
	// is the limit: on one disk they are slower. Chosen when the cluster is founded,
	// for ever: it is stamped into Dir, and must be the same on every node. Defaults
	// to 1.
	Groups int
	// Where others reach this node, host:port; on each start the cluster learns of
	// it. Defaults to the address in Peers, or else to Listen.
	Advertise string

	// The code: bound handles. Nodes may differ: when instances wait for code that the leader
	// of their partition lacks, leadership moves to a node that has it and all that the leader
	// has.
	Definitions []replay.Definition
	// How values become payloads: what encrypts or compresses them, and how large
	// they may be. To be the same on every node and in every [DialConfig], for as
	// long as there are instances. Defaults to JSON with the default bounds; large
	// values are logged, unless Warn is set.
	Payloads replay.Payloads

	// How many activities run at once on this node. Defaults to 256.
	ActivitiesMax int
	// How many of them at once, by name. Defaults to no limits but ActivitiesMax.
	ActivityLimits map[string]int
	// How often attempts of an activity begin in the whole cluster, by name. To be
	// the same on every node: that of the leading one counts. Of several groups each
	// gets its share. After a change of the
	// leader one attempt may begin too early. Defaults to no bounds.
	ActivityRates map[string]Rate
	// The tags of activities that this node runs, besides those without a tag; see
	// [replay.Tag]. Defaults to none.
	Tags []string
	// How many idle instances stay in memory; several groups share it. Defaults to
	// 10,000.
	ResidentMax int
	// What one instance may come to: open operations, buffered events, the length of
	// a history. To be the same on every node: those of the leading one count.
	Limits Limits
	// How long Stop and Close wait for the bodies of running activities to return, after their
	// contexts have ended. Defaults to 10 s.
	StopGrace time.Duration
	// How long a call without a deadline of its own is repeated while no leader
	// answers. Defaults to 30 s.
	CallTimeout time.Duration
	// How long instances are kept after their end. Defaults to for ever. To be
	// the same on every node: that of the leading one counts.
	Retention Retention
	// Its handler may be slow, or block: then the node does not wait for it, and drops
	// records when more than 1,024 wait. Defaults to slog.Default().
	Logger *slog.Logger
	// Where the node's figures go; METRICS.md lists them. Defaults to the global
	// one of OpenTelemetry, which keeps none until the application has set another.
	MeterProvider metric.MeterProvider
	// Where spans go; see the section on traces. Whether it records any is looked at
	// when the node starts. Defaults to the global one of OpenTelemetry, which
	// records none until the application has set another.
	TracerProvider trace.TracerProvider

	rig           rig.Rig       // of harnesses
	protocol      uint32        // the newest that the node speaks; 0: protocolVersion
	tendEvery     time.Duration // how often leaders look after what their groups have in common; 1 s
	journalLogger *slog.Logger  // Logger; the journal names the node itself
}

// A Rate bounds how often attempts of an activity begin.
type Rate struct {
	// How many attempts begin in a second, on average: 1e-6 to 1e6.
	PerSecond float64
	// How many may begin at once after a pause. Defaults to 1.
	Burst int
}

const (
	nodeIDDefault      = "node"
	clusterIDDefault   = "tenuto"
	stopGraceDefault   = 10 * time.Second
	callTimeoutDefault = 30 * time.Second
	tendEvery          = time.Second
	// groupsMax bounds Config.Groups. Each group has a log that is synced by itself,
	// nine goroutines and more, and its share of the memory.
	groupsMax = 64
)

// Limits bound what one instance may come to.
type Limits struct {
	// The most operations that are open at once: activities, timers, children and
	// awaited events. An instance that asks for more is terminated, with the
	// reason. Defaults to 10,000.
	Open int
	// The most external events that wait for code to take them, and the bytes of
	// their payloads. Further ones are refused with a [BusyError]. Default to
	// 10,000 and 16 MiB.
	Buffered      int
	BufferedBytes int
	// The longest history of an execution, in events and in bytes of payloads. An
	// instance that goes on beyond is terminated, with the reason: it should have
	// continued as new. Default to 200,000 and 64 MiB.
	HistoryEvents int
	HistoryBytes  int
}

// Bounds of Rate.PerSecond: one in about a week, one in a microsecond.
const (
	ratePerSecondMin = 1e-6
	ratePerSecondMax = 1e6
)

// A ConfigError reports a field of [Config] that cannot be used.
type ConfigError struct {
	Field  string
	Reason string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("tenuto: Config.%s %s", e.Field, e.Reason) }

func (c Config) withDefaults() Config {
	c.Peers = slices.Clone(c.Peers)
	c.Join = slices.Clone(c.Join)
	c.Tags = slices.Clone(c.Tags)
	c.ActivityLimits = maps.Clone(c.ActivityLimits)
	c.ActivityRates = maps.Clone(c.ActivityRates)
	if c.NodeID == "" && len(c.Peers) == 0 && c.Join == nil {
		c.NodeID = nodeIDDefault
	}
	if c.ClusterID == "" {
		c.ClusterID = clusterIDDefault
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Groups == 0 {
		c.Groups = 1
	}
	if c.tendEvery == 0 {
		c.tendEvery = tendEvery
	}
	if c.StopGrace == 0 {
		c.StopGrace = stopGraceDefault
	}
	if c.CallTimeout == 0 {
		c.CallTimeout = callTimeoutDefault
	}
	if c.protocol == 0 {
		c.protocol = protocolVersion
	}
	c.Logger = logqueue.New(c.Logger)
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
	case !namePattern.MatchString(c.ClusterID):
		return &ConfigError{"ClusterID", fmt.Sprintf("is %.100q: %s", c.ClusterID, nameRule)}
	case !namePattern.MatchString(c.NodeID):
		return &ConfigError{"NodeID", fmt.Sprintf("is %.100q: %s", c.NodeID, nameRule)}
	case c.Authorize != nil && c.TLS == nil:
		return &ConfigError{"Authorize", "is set without TLS: callers cannot be told apart"}
	case c.Groups < 1 || c.Groups > groupsMax:
		return &ConfigError{"Groups", fmt.Sprintf("is %d: 1 to %d are allowed", c.Groups, groupsMax)}
	case min(c.Limits.Open, c.Limits.Buffered, c.Limits.BufferedBytes, c.Limits.HistoryEvents, c.Limits.HistoryBytes) < 0:
		return &ConfigError{"Limits", "has a negative one: 0 means its default"}
	case c.ActivitiesMax < 0:
		return &ConfigError{"ActivitiesMax", negativeRule}
	case c.ResidentMax < 0:
		return &ConfigError{"ResidentMax", negativeRule}
	case c.StopGrace < 0:
		return &ConfigError{"StopGrace", negativeRule}
	case c.CallTimeout < 0:
		return &ConfigError{"CallTimeout", negativeRule}
	case slices.Contains(c.Tags, ""):
		return &ConfigError{"Tags", "has an empty tag: activities without a tag run on every node"}
	case c.Retention.negative():
		return &ConfigError{"Retention", "has a negative duration: 0 means for ever"}
	}
	if err := firstError(c.validatePeers(), c.validateJoin(), c.validateActivities()); err != nil {
		return err
	}
	return c.validateListen()
}

// warnedIn has large values logged, unless the user is told of them.
func warnedIn(payloads replay.Payloads, logger *slog.Logger) replay.Payloads {
	if payloads.Warn == nil {
		payloads.Warn = func(of replay.PayloadOf, bytes int) {
			logger.Warn("large payload", "of", of.String(), "bytes", bytes)
		}
	}
	return payloads
}

func (c Config) validateActivities() error {
	for name, most := range c.ActivityLimits {
		if most < 1 {
			return &ConfigError{"ActivityLimits", fmt.Sprintf("has %d for %q: at least 1 is needed", most, name)}
		}
	}
	for name, rate := range c.ActivityRates {
		if !(rate.PerSecond >= ratePerSecondMin && rate.PerSecond <= ratePerSecondMax) || rate.Burst < 0 {
			return &ConfigError{"ActivityRates", fmt.Sprintf("has %+v for %q: PerSecond is %g to %g, Burst not negative",
				rate, name, ratePerSecondMin, ratePerSecondMax)}
		}
	}
	return nil
}

func (c Config) validatePeers() error {
	if len(c.Peers) == 0 {
		return nil
	}
	seen, at := make(map[string]bool), make(map[string]string)
	for _, peer := range c.Peers {
		switch {
		case peer.NodeID == "" || peer.Address == "":
			return &ConfigError{"Peers", fmt.Sprintf("has an entry without NodeID or Address: %+v", peer)}
		case seen[peer.NodeID]:
			return &ConfigError{"Peers", fmt.Sprintf("names node %q twice", peer.NodeID)}
		case at[peer.Address] != "":
			return &ConfigError{"Peers", fmt.Sprintf("has the address %q for %q and for %q", peer.Address, at[peer.Address], peer.NodeID)}
		case c.TLS == nil && isElsewhere(peer.Address):
			return &ConfigError{"Peers", fmt.Sprintf("has %q: %s", peer.Address, loopbackRule)}
		}
		seen[peer.NodeID], at[peer.Address] = true, peer.NodeID
	}
	if !seen[c.NodeID] {
		return &ConfigError{"Peers", fmt.Sprintf("does not name this node, %q", c.NodeID)}
	}
	return nil
}

func (c Config) validateJoin() error {
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return &ConfigError{"Advertise", "is not host:port: " + err.Error()}
		}
	}
	switch {
	case c.JoinToken != "" && c.Join == nil:
		return &ConfigError{"JoinToken", "is set, and Join is not"}
	case c.Join == nil:
		return nil
	case len(c.Join) == 0:
		return &ConfigError{"Join", "is empty: name a node of the cluster"}
	case len(c.Peers) > 0:
		return &ConfigError{"Join", "is set, and so are Peers: choose one"}
	case c.Listen == "":
		return &ConfigError{"Listen", "is empty: other nodes have to reach this one"}
	}
	for _, address := range c.Join {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return &ConfigError{"Join", "has an address that is not host:port: " + err.Error()}
		}
		if c.TLS == nil && isElsewhere(address) {
			return &ConfigError{"Join", fmt.Sprintf("has %q: %s", address, loopbackRule)}
		}
	}
	if c.JoinToken != "" {
		return c.validateToken()
	}
	return nil
}

const loopbackRule = "without TLS connections are made to loopback only"

const negativeRule = "is negative: 0 means its default"

// isElsewhere reports whether an address is that of another machine. A name may turn out to be of
// this one, and is looked up when it is called.
func isElsewhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && !ip.IsLoopback() && !ip.IsUnspecified()
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
	if c.TLS != nil {
		return nil
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return &ConfigError{"Listen", fmt.Sprintf("is %q: without TLS a node listens on loopback only", c.Listen)}
	}
	return nil
}

// address returns where others reach this node.
func (c Config) address() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	for _, peer := range c.Peers {
		if peer.NodeID == c.NodeID {
			return peer.Address
		}
	}
	return c.Listen
}

func (c Config) journalPeers() []journal.Peer {
	var peers []journal.Peer
	for _, peer := range c.Peers {
		peers = append(peers, journal.Peer{Node: peer.NodeID, Address: peer.Address})
	}
	return peers
}
