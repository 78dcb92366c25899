package cluster

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// protocolVersion is the newest protocol that this version of the software speaks.
const protocolVersion = journal.NewestProtocol

// ErrProtocol matches every [VersionError].
var ErrProtocol = journal.ErrProtocol

// A VersionError reports that a node or a client does not speak the protocol of the cluster, or of
// the node that was called. Nothing was done. errors.Is finds [ErrProtocol]. Its fields:
//
//	Node           string // that cannot take part
//	Oldest, Newest uint32 // the protocols that it speaks
//	Required       uint32 // the protocol that it would have to speak
type VersionError = journal.VersionError

// newVersionError returns the error of a node that speaks protocols up to newest.
func newVersionError(node string, newest, required uint32) *VersionError {
	return &VersionError{Node: node, Oldest: max(newest, 2) - 1, Newest: newest, Required: required}
}

// checkProtocol returns an error for a protocol that this node does not speak. Protocols of two
// nodes may differ by one.
func (c Config) checkProtocol(protocol uint32) error {
	if protocol+1 < c.protocol || protocol > c.protocol+1 {
		return newVersionError(c.NodeID, c.protocol, protocol)
	}
	return nil
}

// requestProtocol returns the protocol that a sender, which speaks newest, states in a request.
// Nodes accept the protocol after their own. So a request with fields that builds of the previous
// protocol would ignore states the next protocol, and those builds reject it.
func requestProtocol(newest uint32, r *clusterpb.Request) uint32 {
	if required := requiredProtocol(r); required == newest {
		return required + 1
	}
	return newest
}

// requiredProtocol returns the first protocol whose builds know all fields of a request; 0 for any.
func requiredProtocol(r *clusterpb.Request) uint32 {
	const optionsProtocol = 4
	var uses bool
	switch call := r.Call.(type) {
	case *clusterpb.Request_Start:
		s := call.Start
		uses = len(s.GetHeaders())+len(s.GetSend().GetHeaders()) > 0 || s.GetRetry() != nil || s.GetSummary() != "" ||
			s.GetDeadline() != 0 || s.GetUpdate() || s.GetBeginWith() != nil
	case *clusterpb.Request_Send:
		uses = len(call.Send.GetHeaders()) > 0
	case *clusterpb.Request_Update:
		uses = len(call.Update.GetHeaders()) > 0 || call.Update.GetFirstExecution() != 0
	case *clusterpb.Request_List:
		uses = usesListOptions(call.List)
	case *clusterpb.Request_Complete:
		uses = call.Complete.GetSignedToken() != ""
	case *clusterpb.Request_Operate, *clusterpb.Request_PauseActivity, *clusterpb.Request_TransferLeadership, *clusterpb.Request_Copy,
		*clusterpb.Request_NodeReport, *clusterpb.Request_BeginBackup, *clusterpb.Request_ReadBackup, *clusterpb.Request_EndBackup,
		*clusterpb.Request_RecordCut, *clusterpb.Request_View, *clusterpb.Request_Compare, *clusterpb.Request_CompareEvents,
		*clusterpb.Request_ReadView, *clusterpb.Request_Repair, *clusterpb.Request_EndView, *clusterpb.Request_Verify,
		*clusterpb.Request_AcceptReplica, *clusterpb.Request_Prove, *clusterpb.Request_SigningKey, *clusterpb.Request_SetRole, *clusterpb.Request_RecordBackup, *clusterpb.Request_Introduce,
		*clusterpb.Request_CheckWorker, *clusterpb.Request_ListWorkers, *clusterpb.Request_SignToken:
		uses = true
	}
	if uses || r.Principal != "" || r.User != "" || r.Reason != "" {
		return optionsProtocol
	}
	return 0
}

// usesListOptions reports whether a request for a list has fields of protocol 4 that change its
// meaning.
func usesListOptions(r *clusterpb.ListRequest) bool {
	return len(r.GetAttributes())+len(r.GetGroupBy()) > 0 || r.GetWaiting() != nil || r.GetFailing() != nil ||
		r.GetOrder() != "" || r.GetDescending() || r.GetErrorCode() != "" ||
		r.GetUpdatedFrom() != 0 || r.GetUpdatedBefore() != 0 || r.GetEndedFrom() != 0 || r.GetEndedBefore() != 0
}

// checkMemberProtocol returns an error for a node that does not speak the cluster's protocol.
func (h *memberHandler) checkMemberProtocol(node string, newest uint32) error {
	// A new cluster has no protocol yet: its leader requires the one before its own newest.
	required := max(h.journal.Protocol(), h.partition.node.config.protocol-1)
	if value := newVersionError(node, newest, required); required < value.Oldest || required > value.Newest {
		return value
	}
	return nil
}

// raiseInterval is how often a leader checks whether all members speak a newer protocol than the
// cluster uses. A leader checks only while it speaks a newer one itself.
const raiseInterval = time.Second

// raiseProtocol raises the cluster's protocol to the newest that all members speak, and records the
// settings and the completion key as soon as they can read them. It returns when the
// protocol is this node's newest, or when ctx ends.
func (pa *partition) raiseProtocol(ctx context.Context) {
	for {
		if pa.journal.Protocol() < pa.node.config.protocol {
			if common := pa.commonProtocol(ctx); common > pa.journal.Protocol() {
				pa.raiseProtocolTo(ctx, common)
			}
		}
		recorded := pa.node.settings.record(ctx, pa)
		recorded = pa.node.tokens.record(ctx, pa) && recorded
		if recorded && pa.journal.Protocol() >= pa.node.config.protocol || pa.node.sleep(ctx, raiseInterval) != nil {
			return
		}
	}
}

// raiseFirstMax bounds how long the leader of a new cluster waits for all founders before it
// serves.
const raiseFirstMax = 2 * time.Second

// raiseFirstProtocol raises the protocol of a new cluster. Its leader does so before it serves, so
// that the first instances can use what that protocol permits. If a founder does not answer in
// time, raiseProtocol raises it later; a node waits once for each partition.
func raiseFirstProtocol(ctx context.Context, pa *partition) {
	if pa.journal.Protocol() > 1 || pa.awaitedFounders.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, raiseFirstMax)
	defer cancel()
	_ = pa.node.poll(ctx, func() bool {
		if common := pa.commonProtocol(ctx); common > 1 {
			pa.raiseProtocolTo(ctx, common)
		}
		return pa.journal.Protocol() > 1
	})
}

// raiseProtocolTo raises the cluster's protocol. The caller retries failures.
func (pa *partition) raiseProtocolTo(ctx context.Context, protocol uint32) {
	switch err := pa.journal.RaiseProtocol(ctx, protocol); {
	case err == nil:
		level := slog.LevelInfo
		if len(pa.journal.Members()) == 1 {
			level = slog.LevelDebug // of no interest on a single node
		}
		pa.node.config.Logger.Log(ctx, level, "cluster protocol raised: every member speaks it", "protocol", protocol)
	case ctx.Err() == nil:
		pa.node.config.Logger.Warn("cluster protocol not raised; trying again", "protocol", protocol, "error", err)
	}
}

// commonProtocol returns the newest protocol that all members speak, 0 if one of them does not
// answer.
func (pa *partition) commonProtocol(ctx context.Context) uint32 {
	common := pa.node.config.protocol
	for _, m := range pa.journal.Members() {
		if m.Node == pa.node.config.NodeID {
			continue
		}
		request := membersRequest()
		request.Protocol, request.Node = pa.node.config.protocol, pa.node.config.NodeID
		response := pa.node.askOnce(ctx, m.Address, request)
		if response.GetMembers() == nil {
			return 0
		}
		common = min(common, max(response.Protocol, 1))
	}
	return common
}

// incarnationsProtocol is the first protocol in which every run has an incarnation.
const incarnationsProtocol = 3

// hasIncarnations reports whether a new run gets an incarnation.
func (pa *partition) hasIncarnations() bool { return pa.journal.Protocol() >= incarnationsProtocol }

// encodeVersionError encodes a VersionError.
func encodeVersionError(e *VersionError) *clusterpb.VersionMismatch {
	return &clusterpb.VersionMismatch{Node: e.Node, Oldest: e.Oldest, Newest: e.Newest, Required: e.Required}
}

func decodeVersionError(wire *clusterpb.VersionMismatch) *VersionError {
	return &VersionError{Node: wire.Node, Oldest: wire.Oldest, Newest: wire.Newest, Required: wire.Required}
}

const modulePath = "github.com/tenuto-dev/tenuto"

// moduleVersion returns the version of this module in the program.
var moduleVersion = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, module := range append(info.Deps, &info.Main) {
		if module.Path == modulePath && module.Version != "" {
			return module.Version
		}
	}
	return "unknown"
})
