package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenuto-dev/tenuto/cluster/internal/membership"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Peer is a founding node of the cluster.
type Peer struct {
	NodeID  string
	Address string // host:port
}

// Config is the configuration of a node. [Start] copies it. Zero values mean defaults.
type Config struct {
	// Dir holds the journal. It is created if it does not exist. Only one node at a time may use
	// it. Required unless InMemory is set.
	Dir string
	// InMemory keeps all data in memory, for tests. Such a node loses its data when it stops, as if
	// its Dir were lost.
	InMemory bool

	// NodeID is the permanent name of the node, stored in Dir. For a lost Dir, see
	// docs/security.md. 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit. Defaults to
	// "node" without Peers and Join; required otherwise.
	NodeID string
	// ClusterID is the permanent name of the cluster, stored in Dir. Nodes and clients with
	// certificates of another cluster are rejected. The syntax is that of NodeID. Defaults to
	// "tenuto".
	ClusterID string
	// Listen is the address for other nodes and remote clients, host:port; without TLS, a loopback
	// address. Defaults to none: the node is reachable only within its process, and cannot have
	// Peers or be joined.
	Listen string
	// TLS provides the keys of this node and the authorities that it trusts; see [KeyFiles] and
	// docs/security.md. Defaults to none: plaintext, on loopback only.
	TLS KeySource
	// Authorize is called for each call of a remote client, reads included. Its error is logged,
	// and the caller gets [ErrNotAuthorized]. instanceID is "" if the call does not concern a
	// single instance. [SendOrStart] needs the right to both [ActionStart] and [ActionSend],
	// [TerminateExisting] to [ActionTerminate] also. The start of a bulk job (package cluster/bulk)
	// also needs the right to its action, with instanceID "". The dashboard of a node asks about
	// each action of its users; see operate.PrincipalUser. With Listen, Authorize requires TLS. It
	// may be called concurrently. It is not called for calls that other nodes forward, because they
	// have called it, nor for what orchestration code starts, sends or cancels. By default, each
	// client with a certificate of the cluster may do everything.
	Authorize func(ctx context.Context, caller Principal, action Action, instanceID string) error
	// Peers are the founding nodes, including this one; the list must be the same on every node.
	// The cluster is founded once all of them have run at the same time, each with an empty Dir.
	// Later, Peers only gives the address of this node and helps to find the others. Defaults to
	// this node alone: a cluster of one, which others can join if Listen is set.
	// A Peer without an Address is found with Discover.
	Peers []Peer
	// Discover returns addresses at which nodes may be, this one included or not; package
	// cluster/discovery has functions for DNS and files. It is called while this node does not know
	// a leader, or is not a member with its present address: every 0.2 to 2 s, each time for up to
	// 10 s, never twice at once. Of more than 64 addresses, the first 64 in sorted order are used.
	// With Discover and without Found and Peers, a node with an empty Dir joins the cluster that it
	// finds, as with Join; [Start] then waits until its context ends. All nodes may change their
	// addresses at the same time: they find each other again. Requires Listen. Defaults to none.
	Discover func(ctx context.Context) ([]string, error)
	// Found is how many nodes found the cluster, 2 to 64, and how they are named: NodeID must end
	// in "-" and a number, as the names of the pods of a Kubernetes StatefulSet do, and the
	// founding nodes are those numbered 0 to Found-1. It must be the same on every node. The
	// cluster is founded once all of them have run at the same time, each with an empty Dir, and
	// agree where they are. A founding node that finds a cluster without it joins that cluster, and
	// so does a node with a higher number. Requires Discover; must not be set together with Peers
	// or Join. Defaults to 0: Peers, Join or Discover say what the node does.
	Found int
	// Join holds addresses of nodes of a cluster to which a node with an empty Dir is added. The
	// node gets a vote after it has caught up, unless there are enough voters; see
	// Settings.Voters. Later, Join only helps to find the others. Must not be set together with
	// Peers.
	Join []string
	// JoinToken is a token from [Client.IssueJoinToken] that admits this node; see
	// Settings.RequireJoinToken. It is used up when the node is added, and ignored later. Defaults
	// to none.
	JoinToken string
	// Partitions is the number of Raft groups that share the instances, 1 to 64. Each node is a
	// member of all and leads some. More than one helps clusters limited by their leader; on a
	// single disk it is slower. The number is stored in Dir when the cluster is founded, cannot
	// change, and must be the same on every node. Defaults to 1.
	Partitions int
	// Advertise is the address at which others reach this node, host:port. The node reports it on
	// each start. Defaults to the address in Peers, or else to Listen.
	Advertise string

	// Zone is the failure domain of the node, such as a data center: 0 to 64 bytes of the
	// characters of NodeID. The cluster spreads voters evenly over the zones of its members; those
	// without a zone count as one. It may change at a restart. Defaults to none.
	Zone string

	// Settings are the settings of the cluster when it is founded: those of the founding leader are
	// recorded. They have no effect later; at its start, a node logs which of the fields that it
	// sets differ from the cluster's. See [Client.ChangeSettings]. If the cluster was founded by a
	// build before protocol 4, the leader records its Settings once every member speaks protocol 4.
	Settings Settings

	// Definitions are the bound handles. Nodes may differ: if instances wait for code that the
	// leader of their partition lacks, leadership moves to a node that has that code and all of the
	// leader's. Names that begin with "tenuto." are reserved.
	Definitions []replay.Definition
	// Strict makes replays compare what code requests with the history byte for byte, with all
	// options and statuses, and stall an instance that differs. By default inputs and outputs are
	// compared by their meaning to today's code, and recorded options and statuses are kept: see
	// replay/docs/versioning.md. It should be the same on every node.
	Strict bool
	// PayloadConverter encodes values as payloads: it may encrypt or compress. Its codec must be
	// the same on every node and in every [DialConfig] as long as there are instances. Defaults to
	// JSON. Large values are logged unless Warn is set.
	PayloadConverter replay.PayloadConverter

	// OrchestrationInterceptors run around the bodies of orchestrations, the first outermost. They
	// should be the same on every node, like the code of running instances.
	OrchestrationInterceptors []replay.OrchestrationInterceptor
	// ActivityInterceptors run around the attempts of activities on this node, and
	// ClientInterceptors around the calls of the node's client, also of the one that [ClientFrom]
	// returns; the first is the outermost.
	ActivityInterceptors []replay.ActivityInterceptor
	ClientInterceptors   []replay.ClientInterceptor
	// BaggageHeaders are the names of headers (see [replay.Header]) that are also members of the
	// OpenTelemetry baggage. A start, an event or an update of the node's client takes such a
	// header from the baggage of its context, unless the context carries the header itself; the
	// bounds of headers apply. The contexts of attempts have these headers as members of their
	// baggage. At most 32 names. Defaults to none.
	BaggageHeaders []string

	// ActivitiesMax bounds the activities that run at once on this node, to 1,048,576 at most.
	// Defaults to 256.
	ActivitiesMax int
	// ActivityLimits bounds, by activity name, how many run at once on this node. Defaults to no
	// limits besides ActivitiesMax.
	ActivityLimits map[string]int
	// Tags are the tags of activities that this node runs, in addition to activities without a tag;
	// see [replay.Tag]. Defaults to none.
	Tags []string
	// LeaderExempt makes the node run no activities of the partitions that it leads, as long as a
	// node or worker that can run them is connected. By default it runs its share; see
	// [Settings].ActivityPlacement.
	LeaderExempt bool
	// ResidentMax bounds the idle instances in memory, over all partitions. Defaults to 10,000.
	ResidentMax int
	// HungAfter is how long an instance's code may run without reaching a durable call. The
	// instance becomes [Hung] and its stack is logged after 1 to 1.5 times this; a termination
	// waits until then. If the first step of a run takes that long, its start is recorded without
	// the code, which then begins again: the start is answered, and the instance is hung, after up
	// to three times this. 10 ms to 10 s. Defaults to 1 s.
	HungAfter time.Duration
	// StopGrace bounds how long Stop and Close wait for the functions of running activities, and
	// for Backups, after their contexts have ended. Defaults to 10 s.
	StopGrace time.Duration
	// CallTimeout bounds how long a call without a deadline is retried while no leader answers.
	// Defaults to 30 s.
	CallTimeout time.Duration
	// CompletionURL is the URL at which the application serves [Node.CompletionHandler]. The URLs
	// of [replay.Attempt.CompletionURL] begin with it. It is an absolute http or https URL of at
	// most 1,024 bytes, without user, query and fragment, such as "https://shop.example/hooks". It
	// should be the same on every node. By default it is empty, and attempts get no URLs.
	CompletionURL string
	// Backups makes backups at intervals: a backup.Plan of package cluster/backup. Every node of
	// the cluster should have the same plan; the leader of the first partition executes it. Check
	// returns an error for a plan that is not valid, Interval the time from one backup to the next,
	// and Run, which runs from the start of the node until ctx ends, makes them. Defaults to none.
	Backups interface {
		Check() error
		Interval() time.Duration
		Run(ctx context.Context, node *Node)
	}
	// Logger receives the log. A handler that is slow or blocks does not delay the node: it drops
	// records while more than 1,024 wait. Defaults to slog.Default().
	Logger *slog.Logger
	// MeterProvider receives the metrics, listed in METRICS.md. Defaults to the global provider of
	// OpenTelemetry, which records nothing until the application sets another.
	MeterProvider metric.MeterProvider
	// TracerProvider receives spans; see METRICS.md. Whether it records spans is checked when the
	// node starts. Defaults like MeterProvider.
	TracerProvider trace.TracerProvider

	joins               bool              // a node with an empty Dir is added to a cluster
	harness             harness.Overrides // for test harnesses
	protocol            uint32            // newest version that the node speaks; 0: protocolVersion
	maintenanceInterval time.Duration     // between rounds of the balancer, of syncMembership and of roles; 0: 1 s
	journalLogger       *slog.Logger      // Logger without the node key: the journal adds its own
}

const (
	nodeIDDefault       = "node"
	clusterIDDefault    = "tenuto"
	hungAfterMin        = 10 * time.Millisecond
	hungAfterMax        = 10 * time.Second
	stopGraceDefault    = 10 * time.Second
	callTimeoutDefault  = 30 * time.Second
	maintenanceInterval = time.Second
	// partitionsMax bounds Config.Partitions. Each partition has a log that is synced separately,
	// at least nine goroutines, and a share of the memory.
	partitionsMax = 64
)

func (c Config) withDefaults() Config {
	c.Discover = membership.Bounded(c.Discover)
	c.Peers = slices.Clone(c.Peers)
	c.Join = slices.Clone(c.Join)
	c.Tags = slices.Clone(c.Tags)
	c.ClientInterceptors, c.BaggageHeaders = slices.Clone(c.ClientInterceptors), slices.Clone(c.BaggageHeaders)
	c.ActivityLimits = maps.Clone(c.ActivityLimits)
	c.Settings.ActivityRates = maps.Clone(c.Settings.ActivityRates)
	if c.NodeID == "" && len(c.Peers) == 0 && c.Join == nil && c.Discover == nil {
		c.NodeID = nodeIDDefault
	}
	if c.Found > 0 && len(c.Peers) == 0 {
		c.Peers = c.foundingNodes()
	}
	c.joins = c.Join != nil || c.Discover != nil && len(c.Peers) == 0
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
	if c.Partitions == 0 {
		c.Partitions = 1
	}
	if c.maintenanceInterval == 0 {
		c.maintenanceInterval = maintenanceInterval
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
		return invalidConfig("Dir", "is empty: set a directory, or set InMemory in a test")
	case c.Dir != "" && c.InMemory:
		return invalidConfig("InMemory", "and Dir are both set: set only one of them")
	case c.NodeID == "":
		return invalidConfig("NodeID", "is empty: every node of a cluster needs a unique name")
	case len(c.Peers) > 0 && c.Listen == "":
		return invalidConfig("Listen", "is empty: other nodes must be able to reach this node")
	case !transport.IsName(c.ClusterID):
		return invalidConfig("ClusterID", fmt.Sprintf("is %.100q: %s", c.ClusterID, transport.NameRule))
	case !transport.IsName(c.NodeID):
		return invalidConfig("NodeID", fmt.Sprintf("is %.100q: %s", c.NodeID, transport.NameRule))
	case c.Zone != "" && !transport.IsName(c.Zone):
		return invalidConfig("Zone", fmt.Sprintf("is %.100q: %s", c.Zone, transport.NameRule))
	case c.Authorize != nil && c.TLS == nil && c.Listen != "":
		return invalidConfig("Authorize", "is set with Listen but without TLS: callers cannot be authenticated")
	case c.Partitions < 1 || c.Partitions > partitionsMax:
		return invalidConfig("Partitions", fmt.Sprintf("is %d: 1 to %d are allowed", c.Partitions, partitionsMax))
	case c.ActivitiesMax < 0:
		return invalidConfig("ActivitiesMax", negativeRule)
	case c.ActivitiesMax > activitiesMaxMax:
		return invalidConfig("ActivitiesMax", fmt.Sprintf("is %d: at most %d are allowed", c.ActivitiesMax, activitiesMaxMax))
	case c.ResidentMax < 0:
		return invalidConfig("ResidentMax", negativeRule)
	case c.HungAfter != 0 && (c.HungAfter < hungAfterMin || c.HungAfter > hungAfterMax):
		return invalidConfig("HungAfter", fmt.Sprintf("is %v: %v to %v are allowed", c.HungAfter, hungAfterMin, hungAfterMax))
	case c.StopGrace < 0:
		return invalidConfig("StopGrace", negativeRule)
	case c.CallTimeout < 0:
		return invalidConfig("CallTimeout", negativeRule)
	case slices.Contains(c.Tags, ""):
		return invalidConfig("Tags", "has an empty tag: activities without a tag run on every node")
	}
	if err := firstError(c.validateDiscover(), c.validateSettings(), c.validateDefinitions(), c.validateCompletionURL(), c.validatePeers(), c.validateJoin(), c.validateActivities(), c.validateInterceptors(), c.validateBackups()); err != nil {
		return err
	}
	return c.validateListen()
}

// completionURLMax bounds Config.CompletionURL, in bytes.
const completionURLMax = 1024

// validateCompletionURL returns an error unless CompletionURL and a path make a URL.
func (c Config) validateCompletionURL() error {
	if c.CompletionURL == "" {
		return nil
	}
	if len(c.CompletionURL) > completionURLMax {
		return invalidConfig("CompletionURL", fmt.Sprintf("has %d bytes: at most %d are allowed", len(c.CompletionURL), completionURLMax))
	}
	base, err := url.Parse(c.CompletionURL)
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.User != nil || strings.ContainsAny(c.CompletionURL, "?#") {
		// The error does not contain the URL, which may hold a password.
		return invalidConfig("CompletionURL", "must be an absolute http or https URL without user, query and fragment")
	}
	return nil
}

// withPayloadWarnings logs large values unless the user has set Warn.
func withPayloadWarnings(converter replay.PayloadConverter, logger *slog.Logger, payloadMax func() int) engine.PayloadConverter {
	if converter.Warn == nil {
		converter.Warn = func(of replay.PayloadInfo, bytes int) {
			logger.Warn("large payload", "payload", of.String(), "bytes", bytes)
		}
	}
	return engine.NewPayloadConverter(converter, payloadMax)
}

func (c Config) validateSettings() error {
	err := c.Settings.check()
	if invalid := new(replay.InvalidError); errors.As(err, &invalid) {
		return invalidConfig(invalid.Field, invalid.Reason)
	}
	return err
}

// validateDefinitions returns an error for a name that is reserved. The registry checks the rest.
func (c Config) validateDefinitions() error {
	for _, definition := range c.Definitions {
		name, _, _ := definition.Orchestration()
		if activity, ok := definition.Activity(); ok {
			name = activity
		}
		if strings.HasPrefix(name, schedules.ReservedPrefix) {
			return invalidConfig("Definitions", fmt.Sprintf("has the name %.140q: names that begin with %q are reserved", name, schedules.ReservedPrefix))
		}
	}
	return nil
}

// validateBackups returns the error of the plan for backups.
func (c Config) validateBackups() error {
	switch {
	case c.Backups == nil:
		return nil
	case c.InMemory:
		return invalidConfig("Backups", "is set with InMemory: there are no files to back up")
	}
	err := c.Backups.Check()
	if invalid := new(replay.InvalidError); errors.As(err, &invalid) {
		return invalidConfig("Backups."+invalid.Field, invalid.Reason)
	}
	return err
}

func (c Config) validateActivities() error {
	for name, most := range c.ActivityLimits {
		if most < 1 {
			return invalidConfig("ActivityLimits", fmt.Sprintf("has %d for %q: the minimum is 1", most, name))
		}
	}
	return nil
}

func (c Config) validateInterceptors() error {
	return firstError(
		checkInterceptors("Config.OrchestrationInterceptors", c.OrchestrationInterceptors),
		checkInterceptors("Config.ActivityInterceptors", c.ActivityInterceptors),
		checkInterceptors("Config.ClientInterceptors", c.ClientInterceptors),
		checkBaggageHeaders("Config", c.BaggageHeaders),
	)
}

// checkInterceptors returns an error if one of the functions is nil.
func checkInterceptors[F any](field string, interceptors []F) error {
	for i, interceptor := range interceptors {
		if reflect.ValueOf(interceptor).IsNil() {
			return invalidArgument(field, fmt.Sprintf("has nil at index %d", i))
		}
	}
	return nil
}

// baggageHeadersMax bounds the headers that a call takes from the baggage: it carries no more.
const baggageHeadersMax = 32

func checkBaggageHeaders(config string, names []string) error {
	if len(names) > baggageHeadersMax {
		return invalidArgument(config+".BaggageHeaders", fmt.Sprintf("has %d names: at most %d are allowed", len(names), baggageHeadersMax))
	}
	for _, name := range names {
		if !engine.IsHeaderName(name) {
			return invalidArgument(config+".BaggageHeaders", fmt.Sprintf("has %.140q: 1 to %d of a-z 0-9 . _ - are allowed", name, nameMax))
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
		case peer.NodeID == "":
			return invalidConfig("Peers", fmt.Sprintf("has an entry without NodeID: %+v", peer))
		case peer.Address == "" && c.Discover == nil:
			return invalidConfig("Peers", fmt.Sprintf("has an entry without Address: %+v: set its Address, or Discover", peer))
		case seen[peer.NodeID]:
			return invalidConfig("Peers", fmt.Sprintf("names node %q twice", peer.NodeID))
		case peer.Address != "" && at[peer.Address] != "":
			return invalidConfig("Peers", fmt.Sprintf("has address %q for both %q and %q", peer.Address, at[peer.Address], peer.NodeID))
		case c.TLS == nil && isRemoteAddress(peer.Address):
			return invalidConfig("Peers", fmt.Sprintf("has %q: %s", peer.Address, transport.LoopbackRule))
		}
		seen[peer.NodeID], at[peer.Address] = true, peer.NodeID
	}
	if !seen[c.NodeID] {
		return invalidConfig("Peers", fmt.Sprintf("does not name this node, %q", c.NodeID))
	}
	return nil
}

func (c Config) validateJoin() error {
	if c.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Advertise); err != nil {
			return invalidConfig("Advertise", "is not host:port: "+err.Error())
		}
	}
	switch {
	case c.JoinToken != "" && !c.joins:
		return invalidConfig("JoinToken", "is set without Join")
	case c.JoinToken != "" && c.Join == nil:
		return c.validateToken()
	case c.Join == nil:
		return nil
	case len(c.Join) == 0:
		return invalidConfig("Join", "is empty: add the address of a node of the cluster")
	case len(c.Peers) > 0:
		return invalidConfig("Join", "and Peers are both set: set only one of them")
	case c.Listen == "":
		return invalidConfig("Listen", "is empty: other nodes must be able to reach this node")
	}
	for _, address := range c.Join {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return invalidConfig("Join", "has an address that is not host:port: "+err.Error())
		}
		if c.TLS == nil && isRemoteAddress(address) {
			return invalidConfig("Join", fmt.Sprintf("has %q: %s", address, transport.LoopbackRule))
		}
	}
	if c.JoinToken != "" {
		return c.validateToken()
	}
	return nil
}

// foundMax bounds Config.Found.
const foundMax = 64

// ordinalPattern matches the ID of a node that is numbered.
var ordinalPattern = regexp.MustCompile(`^(.+)-(0|[1-9][0-9]{0,8})$`)

// foundingNodes returns the founding nodes of Config.Found, nil if this node is none.
func (c Config) foundingNodes() (nodes []Peer) {
	parts := ordinalPattern.FindStringSubmatch(c.NodeID)
	if parts == nil || c.Found < 2 || c.Found > foundMax {
		return nil // rejected by validate
	}
	if number, err := strconv.Atoi(parts[2]); err != nil || number >= c.Found {
		return nil
	}
	for i := range c.Found {
		nodes = append(nodes, Peer{NodeID: fmt.Sprintf("%s-%d", parts[1], i)})
	}
	return nodes
}

func (c Config) validateDiscover() error {
	switch {
	case c.Found != 0 && (c.Found < 2 || c.Found > foundMax):
		return invalidConfig("Found", fmt.Sprintf("is %d: 2 to %d are allowed, 0 without founding by number", c.Found, foundMax))
	case c.Found > 0 && c.Discover == nil:
		return invalidConfig("Found", "is set without Discover: the founding nodes could not find each other")
	case c.Found > 0 && c.Join != nil:
		return invalidConfig("Found", "and Join are both set: set only one of them")
	case c.Found > 0 && !ordinalPattern.MatchString(c.NodeID):
		return invalidConfig("Found", fmt.Sprintf("is set, but NodeID %q does not end in \"-\" and a number", c.NodeID))
	case c.Found > 0 && len(c.Peers) > 0 && !slices.Equal(c.Peers, c.foundingNodes()):
		return invalidConfig("Found", "and Peers are both set: set only one of them")
	case c.Discover == nil:
		return nil
	case c.Listen == "":
		return invalidConfig("Listen", "is empty: other nodes must be able to reach this node")
	}
	if host, _, err := net.SplitHostPort(c.address()); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		return invalidConfig("Advertise", fmt.Sprintf("is empty, and others cannot reach this node at Listen, %q: set the address of this node", c.Listen))
	}
	return nil
}

const negativeRule = "is negative: 0 means the default"

// isRemoteAddress reports whether an address is an IP address of another machine. Host names are
// resolved, and checked, when they are dialed.
func isRemoteAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && !ip.IsLoopback() && !ip.IsUnspecified()
}

// validateListen rejects plaintext except on loopback: one forged packet to an open Raft port would
// take over the cluster.
func (c Config) validateListen() error {
	if c.Listen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return invalidConfig("Listen", "is not host:port: "+err.Error())
	}
	if c.TLS != nil {
		return nil
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return invalidConfig("Listen", fmt.Sprintf("is %q: without TLS, a node may listen on loopback only", c.Listen))
	}
	return nil
}

// address returns where other nodes reach this node.
func (c Config) address() string {
	if c.Advertise != "" {
		return c.Advertise
	}
	for _, peer := range c.Peers {
		if peer.NodeID == c.NodeID && peer.Address != "" {
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
