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
	"github.com/tenuto-dev/tenuto/cluster/prometheus"
	"github.com/tenuto-dev/tenuto/internal/rig"
)

// Config is what a host process is told, as JSON in the environment variable
// [Env].
type Config struct {
	NodeID string
	Life   int // which process of this node it is, counted from 1
	Dir    string
	Listen string
	// The addresses at which nodes reach each other: those of links. A node that
	// is added later has Join and Advertise instead of Peers.
	Peers     []cluster.Peer
	Join      []string
	Advertise string
	// The addresses of nodes, for a process that has none and calls those: a remote client.
	Dial []string
	// Unix sockets: where it takes questions, and where effects are told.
	Door, Ledger string
	// Files: the certificate, its key, the authorities.
	Keys [3]string
	// Take snapshots every few seconds, so that a node that was away is sent one.
	Snapshots bool
	// How many Raft groups there are; 0 means one.
	Groups int
	// By how much the wall clock is wrong from the start.
	WallClockBy time.Duration
}

// With Config.Snapshots a node that has missed more than SnapshotEntries is sent a
// snapshot, once the others have taken one, which they do within SnapshotEvery.
const (
	SnapshotEntries = snapshotThreshold + trailingLogs
	SnapshotEvery   = 2 * snapshotInterval

	snapshotThreshold = 256
	trailingLogs      = 64
	snapshotInterval  = time.Second
)

// Env is the environment variable by which a binary knows that it is to be a
// host.
const Env = "TENUTO_CHAOS_HOST"

// A Node is what a host tells of its node.
type Node struct {
	ID     string
	Groups []Group
	Err    string // why it has stepped aside
	// NotReady is why the node is not ready; "" if it is.
	NotReady string
	// Refused tells whether the others refuse the node in every group, because its directory is
	// not the one that the cluster has recorded for it.
	Refused bool
}

// A Group is how a node is in one Raft group.
type Group struct {
	Leader  string
	Leading bool
	Applied uint64 // up to which entry of the group's journal
}

// In returns how the node is in a group; the zero value if it has told nothing.
func (n Node) In(group int) Group {
	if group >= len(n.Groups) {
		return Group{}
	}
	return n.Groups[group]
}

// Leads tells whether the node leads a group.
func (n Node) Leads() bool {
	return slices.ContainsFunc(n.Groups, func(g Group) bool { return g.Leading })
}

// The paths of a host's door, each for a POST: an evidence.Request is answered
// with an evidence.Answer, a ReportRequest with an evidence.Replica and many
// evidence.Instance, anything with a Node or with the members, the name of a node
// with the members without it, and a time.Duration, by which the wall clock is to be
// wrong from then on, with a Node, a Pressure with a list of Pressed, and a Filling with nothing, and a
// Storm with a Stormed. A remote client takes CallPath and StormPath. FiguresPath
// answers a GET as Prometheus asks it.
const (
	CallPath    = "/call"
	ReportPath  = "/report"
	NodePath    = "/node"
	MembersPath = "/members"
	RemovePath  = "/remove"
	ClockPath   = "/clock"
	PressPath   = "/press"
	FillPath    = "/fill"
	StormPath   = "/storm"
	FiguresPath = "/metrics"
)

// Ready is what a host says when it takes questions.
const Ready = "ready"

// garbagePercent is what is set for GOGC, unless the environment does, as package cluster
// advises for nodes that have much to do.
const garbagePercent = 400

// stopLimit bounds how long a stop hands leadership over.
const stopLimit = 5 * time.Second

// Run runs a node until the process gets SIGTERM or its standard input ends. It
// writes one line, [Ready], when its door is open; its log goes to the standard
// error.
func Run(encoded string) error {
	var config Config
	if err := json.Unmarshal([]byte(encoded), &config); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	blocks.Store(true)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	if len(config.Dial) > 0 {
		return runRemote(config, terminated)
	}
	worker := &Worker{Node: config.NodeID, Life: config.Life, Groups: config.Groups, Tell: ledgerAt(config.Ledger)}
	wrong := new(wallClock)
	wrong.by.Store(int64(config.WallClockBy))
	node, err := cluster.Start(rig.With(context.Background(), config.rig(wrong)), cluster.Config{
		NodeID: config.NodeID, Dir: config.Dir, Listen: config.Listen,
		Peers: config.Peers, Join: config.Join, Advertise: config.Advertise, Groups: config.Groups,
		TLS:         cluster.KeyFiles(config.Keys[0], config.Keys[1], config.Keys[2]),
		Definitions: worker.Definitions(),
		StopGrace:   time.Second,
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	worker.Self.Store(node)
	return serve(config.Door, door(node, wrong), terminated, node.Close, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		return node.Stop(ctx)
	})
}

// serve takes questions at a socket until the process is to end: by SIGTERM, then it calls
// stop, or because the harness has ended, then it calls abandon.
func serve(socket string, handler http.Handler, terminated <-chan os.Signal, abandon, stop func() error) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return errors.Join(err, abandon())
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Println(Ready)

	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(orphaned)
	}()
	select {
	case <-terminated:
		err = stop()
	case <-orphaned:
		err = abandon()
	}
	err = errors.Join(err, server.Close())
	<-served
	return err
}

// A wallClock is one that is wrong by a while.
type wallClock struct{ by atomic.Int64 }

func (c *wallClock) now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

func (c Config) rig(clock *wallClock) rig.Rig {
	r := rig.Rig{WallClock: clock.now}
	if c.Snapshots {
		r.SnapshotThreshold, r.SnapshotInterval, r.TrailingLogs = snapshotThreshold, snapshotInterval, trailingLogs
	}
	return r
}

func door(node *cluster.Node, clock *wallClock) http.Handler {
	mux := http.NewServeMux()
	takeCalls(mux, node.Client())
	mux.HandleFunc("POST "+ReportPath, func(w http.ResponseWriter, r *http.Request) {
		var request ReportRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := Report(r.Context(), node, request, w); err != nil {
			panic(http.ErrAbortHandler) // what was written is cut off, and so it is seen
		}
	})
	mux.Handle("GET "+FiguresPath, prometheus.Handler(node))
	mux.HandleFunc("POST "+NodePath, func(w http.ResponseWriter, _ *http.Request) { answerState(w, node) })
	mux.HandleFunc("POST "+ClockPath, func(w http.ResponseWriter, r *http.Request) {
		var by time.Duration
		if err := json.NewDecoder(r.Body).Decode(&by); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		clock.by.Store(int64(by))
		answerState(w, node)
	})
	mux.HandleFunc("POST "+PressPath, func(w http.ResponseWriter, r *http.Request) {
		var pressure Pressure
		if err := json.NewDecoder(r.Body).Decode(&pressure); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		burden := Press(r.Context(), node.Client(), pressure)
		if err := burden.Write(w); err != nil {
			panic(http.ErrAbortHandler) // what was written is cut off, and so it is seen
		}
	})
	mux.HandleFunc("POST "+FillPath, func(w http.ResponseWriter, r *http.Request) {
		var filling Filling
		err := json.NewDecoder(r.Body).Decode(&filling)
		if err == nil {
			err = Fill(r.Context(), node.Client(), filling)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "{}")
	})
	mux.HandleFunc("POST "+MembersPath, func(w http.ResponseWriter, r *http.Request) {
		answerMembers(w, r, node)
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
		answerMembers(w, r, node)
	})
	return mux
}

func answerState(w http.ResponseWriter, node *cluster.Node) {
	state := Node{ID: node.ID(), Groups: groupsOf(node)}
	if err := node.Err(); err != nil {
		state.Err = err.Error()
	}
	health := node.Health()
	if err := health.Ready(); err != nil {
		state.NotReady = err.Error()
	}
	state.Refused = !slices.ContainsFunc(healthOf(health), func(g cluster.GroupHealth) bool { return !g.OtherDirectory })
	_ = json.NewEncoder(w).Encode(state)
}

// groupsOf tells how a node is in each group.
func groupsOf(node *cluster.Node) (groups []Group) {
	for _, of := range healthOf(node.Health()) {
		groups = append(groups, Group{Leader: of.Leader, Leading: of.Standing == cluster.Leading, Applied: of.Applied})
	}
	return groups
}

// healthOf tells how a node is in each group, also if there is only one.
func healthOf(h cluster.Health) []cluster.GroupHealth {
	if len(h.Groups) > 0 {
		return h.Groups
	}
	return []cluster.GroupHealth{{
		Standing: h.Standing, Leader: h.Leader, Applied: h.Applied, OtherDirectory: h.OtherDirectory,
	}}
}

func answerMembers(w http.ResponseWriter, r *http.Request, node *cluster.Node) {
	members, err := node.Members(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(members)
}
