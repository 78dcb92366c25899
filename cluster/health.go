package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Role is the role of a node in a partition at a moment.
type Role string

// The roles of nodes.
const (
	RoleLeader    Role = "leader"
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate" // asks for votes
	RoleLearner   Role = "learner"   // has no vote: a standby, or a new member
	RoleNone      Role = "none"      // is not a member: not yet, or no longer
)

// Bounds of readiness.
const (
	readyContactMax = 2 * time.Second
	readyBehindMax  = 10_000 // entries
	readyLagMax     = 3 * time.Second
)

// Reasons why a node is not ready, or not alive; see [Health.Ready].
var (
	ErrNodeFailed   = errors.New("tenuto: the node has failed") // see [Node.Err]
	ErrNoMembership = errors.New("tenuto: the node is not a member")
	ErrDiskHangs    = errors.New("tenuto: the disk hangs")
	ErrDiskFull     = errors.New("tenuto: the disk is full")
	ErrNoLeader     = errors.New("tenuto: no leader is known")
	ErrBehind       = errors.New("tenuto: the node is catching up")
)

// A PartitionHealth is the health of a node in one partition.
type PartitionHealth struct {
	Role Role `json:"role"`
	// Leader is the leader known to this node, "" if none is known.
	Leader string `json:"leader,omitempty"`
	Term   uint64 `json:"term"`
	// Protocol is the protocol version of the cluster, as far as this node has applied. Every
	// member supports it.
	Protocol uint32 `json:"protocol"`
	// Applied is the index that stale reads on this node reflect. Behind is the number of entries
	// that are committed, according to this node's log or the leader, and not applied here.
	Applied uint64 `json:"applied"`
	Behind  uint64 `json:"behind"`
	// Lag is the time since this node had last applied all that the leader had committed. It is 0
	// on the leader, negative if that was never so since the start, and below 2 s on a follower
	// that stores and applies entries. It grows while the node stores nothing or does not hear from
	// the leader.
	Lag time.Duration `json:"lag_ns"`
	// SinceContact is the time since the last message from the leader. It is 0 on the leader, and
	// negative if there was none since the node started.
	SinceContact time.Duration `json:"since_contact_ns"`
	// DiskHangs is how long the current write of the log has taken, if it takes too long; otherwise
	// 0.
	DiskHangs time.Duration `json:"disk_hangs_ns,omitempty"`
	// OtherDirectory means that other nodes reject this one because the cluster has recorded
	// another Dir for it; see [ErrOtherDirectory].
	OtherDirectory bool `json:"other_directory,omitempty"`
	// DiskFull means that the last write of the log failed because the disk is full.
	DiskFull bool `json:"disk_full,omitempty"`
	// Quarantined is how many replicas of instances of this node are not used, because they differ
	// from those of the majority: the node does not lead the partition until they are repaired.
	// Stopped is how many instances are stopped, because no majority of their replicas agrees; see
	// operate.AcceptReplica. They do not affect Ready.
	Quarantined int `json:"quarantined,omitempty"`
	Stopped     int `json:"stopped,omitempty"`
}

// A Health is the health of a node. It holds names of nodes, but no instance IDs and no payloads.
type Health struct {
	NodeID string `json:"node"`
	// PartitionHealth is that of the first partition that is not ready, or of the first if all are.
	PartitionHealth
	// Partitions is the health in each partition, if there are several.
	Partitions []PartitionHealth `json:"partitions,omitempty"`
	// Identity is the identity of the node's Dir, which the cluster needs to adopt that Dir; see
	// [Client.AdoptNode].
	Identity string `json:"identity"`
	// Copies counts the reports of nodes that rejected a process with a copy of this node's Dir;
	// see [ErrDirectoryCopied].
	Copies int `json:"copies,omitempty"`
	// Failed means that the node was removed, or stopped itself after damage or a disk error. Err
	// is the reason; it may hold paths and is not shown by [Node.HealthHandler].
	Failed bool  `json:"failed,omitempty"`
	Err    error `json:"-"`
	// LastBackup is when the latest scheduled backup (Config.Backups) was made that succeeded, by
	// the wall clock of its node; zero if none has in the present lineage of the cluster.
	// BackupFailures counts those that have failed since. BackupError says why the latest one
	// failed; it may hold paths and is not shown by [Node.HealthHandler]. They do not affect Ready.
	LastBackup     time.Time `json:"last_backup,omitzero"`
	BackupFailures uint64    `json:"backup_failures,omitempty"`
	BackupError    string    `json:"-"`
	// Lineage is the ID of the latest lineage of the cluster, since LineageSince; "" if the cluster
	// was neither restored nor recovered. A node that has heard of a later one has Failed, and Err
	// is a journal.LineageError.
	Lineage      string    `json:"lineage,omitempty"`
	LineageSince time.Time `json:"lineage_since,omitzero"`
	// NextProtocol is a protocol that every member speaks and the cluster does not use yet, 0 if
	// there is none. The cluster uses it by itself at NextProtocolAt, in cluster time, or after a
	// call of operate.Finalize; until then members may return to the previous build. They do not
	// affect Ready.
	NextProtocol   uint32    `json:"next_protocol,omitempty"`
	NextProtocolAt time.Time `json:"next_protocol_at,omitzero"`
	// Draining means that the node is stopping or has stopped.
	Draining bool `json:"draining,omitempty"`
}

// Health returns the health of the node. It calls no other node, does not block, and takes
// microseconds per partition.
func (n *Node) Health() Health {
	if err := n.check(); err != nil {
		return Health{PartitionHealth: PartitionHealth{Role: RoleNone}, Err: err, Failed: true}
	}
	h := Health{NodeID: n.config.NodeID, Identity: n.identity(), Err: n.Err(), Draining: n.stopping.Load()}
	h.Failed = h.Err != nil
	var all []PartitionHealth
	for _, g := range n.partitions {
		all = append(all, g.health())
		copies, _ := g.journal.CopyReports()
		h.Copies += copies
	}
	shown := max(slices.IndexFunc(all, func(of PartitionHealth) bool { return of.ready() != nil }), 0)
	h.PartitionHealth = all[shown]
	if len(all) > 1 {
		h.Partitions = all
	}
	if latest := lineage.Latest(n.partitions[0].journal.Lineages()); latest != nil {
		h.Lineage, h.LineageSince = latest.GetId(), time.Unix(0, latest.GetTime()).UTC()
	}
	if ready, _, at := readyProtocol(n); ready > 0 {
		h.NextProtocol, h.NextProtocolAt = ready, at.AsTime().UTC()
	}
	if record := n.partitions[0].journal.BackupRecord(); record != nil {
		if record.Id != "" {
			h.LastBackup = time.Unix(0, record.Time).UTC()
		}
		h.BackupFailures, h.BackupError = record.Failures, record.Error
	}
	return h
}

// all returns the health in each partition.
func (h Health) all() []PartitionHealth {
	if h.Partitions == nil {
		return []PartitionHealth{h.PartitionHealth}
	}
	return h.Partitions
}

func (pa *partition) health() PartitionHealth {
	s := pa.journal.Status()
	h := PartitionHealth{
		Role: RoleFollower, Leader: s.Leader, Term: s.Term, Protocol: pa.journal.Protocol(),
		Applied: s.Applied, Behind: s.Behind, Lag: s.Lag, SinceContact: s.SinceContact,
		DiskHangs: pa.journal.Stats().LogStalled, DiskFull: s.DiskFull,
	}
	h.Quarantined, h.Stopped = countQuarantines(pa.journal.Quarantines(), pa.node.config.NodeID)
	h.OtherDirectory = pa.journal.DirectoryRejection() != nil && (s.Leader == "" || !s.Member)
	switch {
	case !s.Member:
		h.Role = RoleNone
	case pa.isLeader():
		h.Role = RoleLeader
	case s.Candidate:
		h.Role = RoleCandidate
	case !s.Voter:
		h.Role = RoleLearner
	}
	if h.Leader == pa.node.config.NodeID && h.Role != RoleLeader {
		h.Leader = "" // just elected: it does not lead before its epoch is committed
	}
	return h
}

// Ready returns nil if the node serves calls and stores and applies entries. Otherwise it returns
// [ErrNodeFailed], [replay.ErrNodeStopping], [ErrOtherDirectory], [ErrNoMembership],
// [ErrDiskHangs], [ErrDiskFull], [ErrNoLeader] or [ErrBehind]. A node without a vote can be ready.
//
// A ready node is not stopping, and its disk responds and has room. In every partition it is a
// member and leads, or follows: it has heard from the leader within 2 s, has applied all that the
// leader had committed at some moment of the last 3 s, is at most 10,000 entries behind, and has
// stored an entry since its start.
//
// If every member that is to vote has its vote ([Client.Members]), a rolling restart that waits
// until each node is ready again always leaves a majority that stores entries.
func (h Health) Ready() error {
	switch {
	case h.Failed:
		return ErrNodeFailed
	case h.Draining:
		return replay.ErrNodeStopping
	}
	err := h.PartitionHealth.ready()
	for _, of := range h.Partitions {
		err = firstError(err, of.ready())
	}
	return err
}

// ready returns nil if the node serves calls for the partition.
func (h PartitionHealth) ready() error {
	switch {
	case h.OtherDirectory:
		return ErrOtherDirectory
	case h.Role == RoleNone:
		return ErrNoMembership
	case h.DiskHangs > 0:
		return ErrDiskHangs
	case h.DiskFull:
		return ErrDiskFull
	case h.Role == RoleLeader:
		return nil
	case h.Leader == "" || h.SinceContact < 0 || h.SinceContact > readyContactMax:
		return ErrNoLeader
	case h.Behind > readyBehindMax || h.Lag < 0 || h.Lag > readyLagMax:
		return ErrBehind
	}
	return nil
}

// Live returns [ErrNodeFailed] if only a restart of the process or a new node can help, otherwise
// nil. A node that has no leader or is stopping is alive.
func (h Health) Live() error {
	if h.Failed {
		return ErrNodeFailed
	}
	return nil
}

// HealthHandler returns an HTTP handler for probes: /healthz answers 200 if the node is alive
// ([Health.Live]), /readyz if it is ready ([Health.Ready]), both 503 otherwise. The body is the
// [Health] in JSON, with "ok" and, if that is false, "reason". It may be shown to everyone who may
// know the names of the nodes. To serve it below another path, use [http.StripPrefix]. The handler
// stays valid after the node stops.
func (n *Node) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", probeHandler(n, Health.Live))
	mux.Handle("GET /readyz", probeHandler(n, Health.Ready))
	return mux
}

func probeHandler(n *Node, check func(Health) error) http.Handler {
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
		_ = json.NewEncoder(w).Encode(r) // fails only if the client is gone
	})
}
