package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"
)

// A Standing is what a node is in its cluster at a moment.
type Standing string

// The standings of nodes.
const (
	Leading   Standing = "leader"
	Following Standing = "follower"
	Electing  Standing = "candidate" // asks for votes
	Learning  Standing = "learner"   // has no vote (yet)
	Outside   Standing = "outside"   // is no member: not yet, or not any more
)

// Bounds of readiness.
const (
	readySilenceMax = 2 * time.Second
	readyBehindMax  = 10_000 // entries
	readyLagMax     = 3 * time.Second
)

// Why a node is not ready, or not alive; see [Health.Ready].
var (
	ErrDraining    = errors.New("tenuto: the node is stopping")
	ErrSteppedDown = errors.New("tenuto: the node has stepped aside") // see [Node.Err]
	ErrOutside     = errors.New("tenuto: the node is not a member")
	ErrDiskHangs   = errors.New("tenuto: the disk hangs")
	ErrDiskFull    = errors.New("tenuto: the disk is full")
	ErrNoLeader    = errors.New("tenuto: no leader is known")
	ErrBehind      = errors.New("tenuto: the node is catching up")
)

// A GroupHealth says how a node is in one Raft group.
type GroupHealth struct {
	Standing Standing `json:"standing"`
	// Leader is the node that leads, as far as this one knows; "" if it knows of
	// none.
	Leader string `json:"leader,omitempty"`
	Term   uint64 `json:"term"`
	// Protocol is the one to which the cluster has come, as far as this node has
	// applied: every member speaks it.
	Protocol uint32 `json:"protocol"`
	// Applied is the index up to which stale reads here reach. Behind is how many
	// entries are committed, by this node's own log or by what the leader has told, and
	// not applied here.
	Applied uint64 `json:"applied"`
	Behind  uint64 `json:"behind"`
	// Lag is how long ago the leader had committed no more than what is applied here; 0
	// on the leader, and negative if that was never so since the start. On a follower
	// that stores and applies it is below 2 s; it grows while a node stores nothing, or
	// hears nothing of the leader.
	Lag time.Duration `json:"lag_ns"`
	// Silence is how long the leader has not been heard of; 0 on the leader, and
	// negative if none was heard of since the start.
	Silence time.Duration `json:"silence_ns"`
	// DiskHangs is for how long a write of the log has been on its way that takes
	// too long; 0 if none does.
	DiskHangs time.Duration `json:"disk_hangs_ns,omitempty"`
	// OtherDirectory says that other nodes refuse this one, because the cluster has recorded
	// another Dir for it; see [ErrOtherDirectory].
	OtherDirectory bool `json:"other_directory,omitempty"`
	// DiskFull tells that the last write of the log failed because the disk is full.
	DiskFull bool `json:"disk_full,omitempty"`
}

// A Health says how a node is. It names nodes, but holds no instance IDs and
// nothing of payloads.
type Health struct {
	NodeID string `json:"node"`
	// From here to DiskFull as in [GroupHealth]: of several groups it is the one that
	// keeps the node from being ready, or the first.
	Standing  Standing      `json:"standing"`
	Leader    string        `json:"leader,omitempty"`
	Term      uint64        `json:"term"`
	Protocol  uint32        `json:"protocol"`
	Applied   uint64        `json:"applied"`
	Behind    uint64        `json:"behind"`
	Lag       time.Duration `json:"lag_ns"`
	Silence   time.Duration `json:"silence_ns"`
	DiskHangs time.Duration `json:"disk_hangs_ns,omitempty"`
	// As in GroupHealth.
	OtherDirectory bool `json:"other_directory,omitempty"`
	DiskFull       bool `json:"disk_full,omitempty"`
	// How it is in each group, if there are several.
	Groups []GroupHealth `json:"groups,omitempty"`
	// Identity is that of the node's Dir, to be named when the cluster is to adopt it; see
	// [Client.AdoptNode].
	Identity string `json:"identity"`
	// Copies counts how often other nodes have told this one of a process that has a copy of its
	// Dir, and was refused; see [ErrCopied].
	Copies int `json:"copies,omitempty"`
	// SteppedDown tells whether the node takes no further part: it has met damage,
	// an error of its disk, or was removed. Err says which; it may hold paths, and
	// is not shown by [Node.HealthHandler].
	SteppedDown bool  `json:"stepped_down,omitempty"`
	Err         error `json:"-"`
	// Draining tells whether the node is stopping, or has stopped.
	Draining bool `json:"draining,omitempty"`
}

// Health tells how the node is. It asks no other node, waits for nothing and costs
// microseconds for each group.
func (n *Node) Health() Health {
	if err := n.check(); err != nil {
		return Health{Standing: Outside, Err: err, SteppedDown: true}
	}
	h := Health{NodeID: n.config.NodeID, Identity: n.identity(), Err: n.Err(), Draining: n.stopping.Load()}
	h.SteppedDown = h.Err != nil
	var all []GroupHealth
	for _, g := range n.groups {
		all = append(all, g.health())
		copies, _ := g.journal.Rivals()
		h.Copies += copies
	}
	worst := max(slices.IndexFunc(all, func(of GroupHealth) bool { return of.ready(h.NodeID) != nil }), 0)
	h.show(all[worst])
	if len(all) > 1 {
		h.Groups = all
	}
	return h
}

// show has the health tell of a group.
func (h *Health) show(of GroupHealth) {
	h.Standing, h.Leader, h.Term, h.Protocol = of.Standing, of.Leader, of.Term, of.Protocol
	h.Applied, h.Behind, h.Lag = of.Applied, of.Behind, of.Lag
	h.Silence, h.DiskHangs, h.DiskFull = of.Silence, of.DiskHangs, of.DiskFull
	h.OtherDirectory = of.OtherDirectory
}

// shown is the group of which the health tells.
func (h Health) shown() GroupHealth {
	return GroupHealth{
		h.Standing, h.Leader, h.Term, h.Protocol, h.Applied, h.Behind, h.Lag, h.Silence, h.DiskHangs,
		h.OtherDirectory, h.DiskFull,
	}
}

func (g *group) health() GroupHealth {
	s := g.journal.Standing()
	h := GroupHealth{
		Standing: Following, Leader: s.Leader, Term: s.Term, Protocol: g.journal.Protocol(),
		Applied: s.Applied, Behind: s.Behind, Lag: s.Lag, Silence: s.Silence,
		DiskHangs: g.journal.Stats().LogStalled, DiskFull: s.DiskFull,
	}
	h.OtherDirectory = g.journal.Disowned() != nil && (s.Leader == "" || !s.Member)
	switch {
	case !s.Member:
		h.Standing = Outside
	case g.leads():
		h.Standing = Leading
	case s.Candidate:
		h.Standing = Electing
	case !s.Voter:
		h.Standing = Learning
	}
	return h
}

// Ready returns nil if a node in that health serves calls, stores and applies: in every
// group it is a member, and it leads, or has heard of the leader within 2 s and has
// applied all that the leader had committed at some moment of the last 3 s. Nor is it more
// than 10,000 entries behind what the leader has told, and it has stored an entry since it
// started; its disk answers and has room, and it is not stopping. Otherwise the error is
// [ErrSteppedDown], [ErrDraining], [ErrOtherDirectory], [ErrOutside], [ErrDiskHangs],
// [ErrDiskFull], [ErrNoLeader] or [ErrBehind]. A node without a vote can be ready.
//
// A rolling restart that waits after each node until it is ready again, before it stops
// the next one, always leaves a majority that stores if every node has a vote
// ([Client.Members]).
func (h Health) Ready() error {
	switch {
	case h.SteppedDown:
		return ErrSteppedDown
	case h.Draining:
		return ErrDraining
	}
	err := h.shown().ready(h.NodeID)
	for _, of := range h.Groups {
		err = firstError(err, of.ready(h.NodeID))
	}
	return err
}

// ready tells whether the node serves calls for the group.
func (h GroupHealth) ready(node string) error {
	switch {
	case h.OtherDirectory:
		return ErrOtherDirectory
	case h.Standing == Outside:
		return ErrOutside
	case h.DiskHangs > 0:
		return ErrDiskHangs
	case h.DiskFull:
		return ErrDiskFull
	case h.Standing == Leading:
		return nil
	case h.Leader == "" || h.Leader == node || h.Silence < 0 || h.Silence > readySilenceMax:
		// Elected itself, it does not lead before its epoch is committed.
		return ErrNoLeader
	case h.Behind > readyBehindMax || h.Lag < 0 || h.Lag > readyLagMax:
		return ErrBehind
	}
	return nil
}

// Live returns nil unless only a new start of the process, or a new node, can
// help: then it is [ErrSteppedDown]. A node without a leader, or one that is
// stopping, is alive.
func (h Health) Live() error {
	if h.SteppedDown {
		return ErrSteppedDown
	}
	return nil
}

// HealthHandler returns a handler for probes: /healthz answers 200 while the node
// is alive, /readyz while it is ready, and both 503 otherwise; see [Health.Live]
// and [Health.Ready]. The body is the [Health] in JSON, with "ok" and, if that is
// false, the "reason". It is safe to show to whoever may know the names of the
// nodes. Mount it with [http.StripPrefix] to have it below another path. It may be
// used until the process ends.
func (n *Node) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", n.probe(Health.Live))
	mux.Handle("GET /readyz", n.probe(Health.Ready))
	return mux
}

func (n *Node) probe(check func(Health) error) http.Handler {
	type report struct {
		OK     bool   `json:"ok"`
		Reason string `json:"reason,omitempty"`
		Health
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r := report{OK: true, Health: n.Health()}
		code := http.StatusOK
		if err := check(r.Health); err != nil {
			r.OK, r.Reason, code = false, err.Error(), http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(r) // whoever asked has gone
	})
}
