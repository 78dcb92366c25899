package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/discovery"
	"github.com/tenuto-dev/tenuto/cluster/prometheus"
	"github.com/tenuto-dev/tenuto/internal/harness"
)

// Config is the configuration of a host process, as JSON in the environment variable [Env].
type Config struct {
	NodeID     string
	Generation int // the number of this process of the node, counted from 1
	Dir        string
	Listen     string
	// The addresses of the nodes, which are those of package link. A node that is added later has
	// Join and Advertise instead of Peers.
	Peers     []cluster.Peer
	Join      []string
	Advertise string
	// The name of a file with the addresses of the nodes. A node that was moved has it instead of
	// Peers and Join, and a remote client, which runs no node, besides Dial.
	Discover string
	Dial     []string
	// Whether a remote client also runs activities.
	Worker bool
	// Unix sockets: Socket serves the harness, Ledger takes the reports of activities.
	Socket, Ledger string
	// Files: the certificate, its key, the authorities.
	Keys [3]string
	// Whether to take snapshots every few seconds, so that a node that was away is sent one.
	Snapshots bool
	// The number of partitions; 0 means 1.
	Partitions int
	// By how much the wall clock is wrong when the node starts.
	WallClockOffset time.Duration
}

// With Config.Snapshots the nodes take a snapshot within SnapshotEvery. A node that then lags by
// more than SnapshotEntries entries is sent one.
const (
	SnapshotEntries = snapshotThreshold + trailingLogs
	SnapshotEvery   = 2 * snapshotInterval

	snapshotThreshold = 256
	trailingLogs      = 64
	snapshotInterval  = time.Second
)

// Env is the environment variable that makes a binary run as a host.
const Env = "TENUTO_CHAOS_HOST"

// A NodeStatus is what a host reports about its node.
type NodeStatus struct {
	ID         string
	Partitions []PartitionStatus
	Err        string // why the node failed
	// NotReady is why the node is not ready; "" if it is.
	NotReady string
	// Rejected reports whether the other nodes reject this node in every partition, because its
	// directory is not the one that the cluster has recorded for it.
	Rejected bool
}

// A PartitionStatus is the node's status in one partition.
type PartitionStatus struct {
	Leader   string
	IsLeader bool
	Applied  uint64 // the last applied index of the partition's journal
}

// Partition returns the node's status in a partition, or the zero value if there is none.
func (n NodeStatus) Partition(partition int) PartitionStatus {
	if partition >= len(n.Partitions) {
		return PartitionStatus{}
	}
	return n.Partitions[partition]
}

// IsLeader reports whether the node leads a partition.
func (n NodeStatus) IsLeader() bool {
	return slices.ContainsFunc(n.Partitions, func(g PartitionStatus) bool { return g.IsLeader })
}

// The HTTP paths of a host's socket. All but MetricsPath take a POST:
//   - CallPath: an evidence.Request; returns an evidence.Answer.
//   - ReportPath: a ReportRequest; returns an evidence.Replica and then each evidence.Instance.
//   - NodePath: returns a NodeStatus.
//   - MembersPath: returns the members.
//   - RemovePath: the name of a node; returns the members after its removal.
//   - ClockPath: a time.Duration by which the wall clock is wrong from now on; returns a
//     NodeStatus.
//   - BackupPath: a BackupRequest; returns why the backup failed, as Err.
//   - SettingsPath: cluster.Settings whose roles and placement become those of the cluster.
//   - RolePath: a RoleRequest. The answer of these two is {}.
//   - WorkersPath: returns the names of the workers that are connected.
//   - LoadPath: a Load; returns a LoadResult.
//   - FillPath: a StartOpenRequest; returns nothing.
//   - StormPath: a Storm; returns a StormResult.
//   - MetricsPath: a GET; returns metrics in the Prometheus format.
//
// A remote client serves only CallPath and StormPath.
const (
	CallPath    = "/call"
	ReportPath  = "/report"
	NodePath    = "/node"
	MembersPath = "/members"
	RemovePath  = "/remove"
	ClockPath   = "/clock"
	BackupPath  = "/backup"
	LoadPath    = "/press"
	FillPath    = "/fill"
	StormPath   = "/storm"
	MetricsPath = "/metrics"

	SettingsPath = "/settings"
	RolePath     = "/role"
	WorkersPath  = "/workers"
)

// Ready is the line that a host writes when it serves calls.
const Ready = "ready"

// gcPercent is the value of GOGC if the environment sets none, as package cluster advises for nodes
// under high load.
const gcPercent = 400

// stopLimit bounds the graceful stop, which transfers leadership.
const stopLimit = 5 * time.Second

// Run runs a node until the process gets SIGTERM or its standard input ends. It writes one line,
// [Ready], to the standard output when its socket serves calls. Its log goes to the standard error.
func Run(encoded string) error {
	var config Config
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	blockingEnabled.Store(true)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	worker := &Worker{Node: config.NodeID, Generation: config.Generation, Partitions: config.Partitions, Report: ledgerClient(config.Ledger)}
	if len(config.Dial) > 0 {
		return runRemote(config, worker, terminated)
	}
	clock := new(wallClock)
	clock.offset.Store(int64(config.WallClockOffset))
	node, err := cluster.Start(harness.NewContext(context.Background(), config.harness(clock)), cluster.Config{
		NodeID: config.NodeID, Dir: config.Dir, Listen: config.Listen,
		Peers: config.Peers, Join: config.Join, Discover: config.discover(), Advertise: config.Advertise, Partitions: config.Partitions,
		TLS:         cluster.KeyFiles(config.Keys[0], config.Keys[1], config.Keys[2]),
		Definitions: worker.Definitions(),
		Settings:    Settings(),
		StopGrace:   time.Second,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	worker.Self.Store(node)
	return serve(config.Socket, newHandler(node, clock), terminated, node.Close, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		return node.Stop(ctx)
	})
}

// serve serves calls at a socket until the process must end. On SIGTERM it calls stop. If the
// harness has ended, it calls abandon.
func serve(socket string, handler http.Handler, terminated <-chan os.Signal, abandon, stop func() error) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return errors.Join(err, abandon())
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Println(Ready)

	harnessEnded := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(harnessEnded)
	}()
	select {
	case <-terminated:
		err = stop()
	case <-harnessEnded:
		err = abandon()
	}
	err = errors.Join(err, server.Close())
	<-served
	return err
}

// discover returns the function that reads the file with the addresses, or nil.
func (c Config) discover() func(context.Context) ([]string, error) {
	if c.Discover == "" {
		return nil
	}
	return discovery.File(c.Discover)
}

// A wallClock is the system's clock with an offset.
type wallClock struct{ offset atomic.Int64 }

func (c *wallClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c Config) harness(clock *wallClock) harness.Overrides {
	r := harness.Overrides{WallClock: clock.now}
	if c.Snapshots {
		r.SnapshotThreshold, r.SnapshotInterval, r.TrailingLogs = snapshotThreshold, snapshotInterval, trailingLogs
	}
	return r
}

func newHandler(node *cluster.Node, clock *wallClock) http.Handler {
	mux := http.NewServeMux()
	handleCalls(mux, node.Client())
	handleBackups(mux, node.Client())
	handleOperations(mux, node.Client())
	mux.HandleFunc("POST "+ReportPath, func(w http.ResponseWriter, r *http.Request) {
		var request ReportRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := Report(r.Context(), node, request, w); err != nil {
			panic(http.ErrAbortHandler) // closes the connection, so that the reader notices
		}
	})
	mux.Handle("GET "+MetricsPath, prometheus.Handler(node))
	mux.HandleFunc("POST "+NodePath, func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, node) })
	mux.HandleFunc("POST "+ClockPath, func(w http.ResponseWriter, r *http.Request) {
		var by time.Duration
		if err := json.NewDecoder(r.Body).Decode(&by); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		clock.offset.Store(int64(by))
		writeStatus(w, node)
	})
	mux.HandleFunc("POST "+LoadPath, func(w http.ResponseWriter, r *http.Request) {
		var load Load
		if err := json.NewDecoder(r.Body).Decode(&load); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result := RunLoad(r.Context(), node.Client(), load)
		if err := result.Write(w); err != nil {
			panic(http.ErrAbortHandler) // closes the connection, so that the reader notices
		}
	})
	mux.HandleFunc("POST "+FillPath, func(w http.ResponseWriter, r *http.Request) {
		var filling StartOpenRequest
		err := json.NewDecoder(r.Body).Decode(&filling)
		if err == nil {
			err = StartOpen(r.Context(), node.Client(), filling)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "{}")
	})
	mux.HandleFunc("POST "+MembersPath, func(w http.ResponseWriter, r *http.Request) {
		writeMembers(w, r, node)
	})
	mux.HandleFunc("POST "+RemovePath, func(w http.ResponseWriter, r *http.Request) {
		var id string
		err := json.NewDecoder(r.Body).Decode(&id)
		if err == nil {
			err = node.RemoveNode(r.Context(), id)
		}
		if err != nil && !errors.Is(err, cluster.ErrNotMember) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeMembers(w, r, node)
	})
	return mux
}

func writeStatus(w http.ResponseWriter, node *cluster.Node) {
	state := NodeStatus{ID: node.ID(), Partitions: partitionsOf(node)}
	if err := node.Err(); err != nil {
		state.Err = err.Error()
	}
	health := node.Health()
	if err := health.Ready(); err != nil {
		state.NotReady = err.Error()
	}
	state.Rejected = !slices.ContainsFunc(partitionHealth(health), func(g cluster.PartitionHealth) bool { return !g.OtherDirectory })
	_ = json.NewEncoder(w).Encode(state)
}

// partitionsOf returns the node's status in each partition.
func partitionsOf(node *cluster.Node) (partitions []PartitionStatus) {
	for _, health := range partitionHealth(node.Health()) {
		partitions = append(partitions, PartitionStatus{Leader: health.Leader, IsLeader: health.Role == cluster.RoleLeader, Applied: health.Applied})
	}
	return partitions
}

// partitionHealth returns the node's health in each partition, also if there is only one.
func partitionHealth(h cluster.Health) []cluster.PartitionHealth {
	if len(h.Partitions) > 0 {
		return h.Partitions
	}
	return []cluster.PartitionHealth{h.PartitionHealth}
}

func writeMembers(w http.ResponseWriter, r *http.Request, node *cluster.Node) {
	members, err := node.Members(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(members)
}
