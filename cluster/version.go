package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
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
		*clusterpb.Request_CheckWorker, *clusterpb.Request_ListWorkers, *clusterpb.Request_Protocols, *clusterpb.Request_Finalize,
		*clusterpb.Request_SignToken:
		uses = true
	}
	if uses || r.Principal != "" || r.User != "" || r.Reason != "" || r.Lineage != "" {
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

// A protocolKeeper decides, on the leader of a partition, which protocol the cluster uses. The
// first partition decides, and the others follow it.
type protocolKeeper struct{ partition *partition }

// run raises the protocol when that is due, and records the settings and the completion key as soon
// as all members can read them. It returns when the protocol is this node's newest, or when ctx
// ends.
func (k protocolKeeper) run(ctx context.Context) {
	pa := k.partition
	for {
		if pa.journal.Protocol() < pa.node.config.protocol {
			k.raise(ctx)
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

// raiseFirst raises the protocol of a new cluster. Its leader does so before it serves, so
// that the first instances can use what that protocol permits. If a founder does not answer in
// time, run raises it later; a node waits once for each partition.
func (k protocolKeeper) raiseFirst(ctx context.Context) {
	pa := k.partition
	if pa.journal.Protocol() > 1 || pa.awaitedFounders.Swap(true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, raiseFirstMax)
	defer cancel()
	_ = pa.node.poll(ctx, func() bool {
		k.raise(ctx)
		return pa.journal.Protocol() > 1
	})
}

// raise takes the next step to a newer protocol, if one is due.
func (k protocolKeeper) raise(ctx context.Context) {
	pa, first := k.partition, k.partition.node.partitions[0].journal
	current := pa.journal.Protocol()
	if pa.number > 0 {
		// The node that leads may not have applied yet what the first partition has decided.
		if first.Protocol() > current {
			if common, _ := commonProtocol(k.ask(ctx)); min(common, first.Protocol()) > current {
				k.raiseTo(ctx, min(common, first.Protocol()))
			}
		}
		return
	}
	ready, _, at := readyProtocol(pa.node)
	raised := protocolState{current, ready, !first.Now().Before(at)}
	switch action, protocol := raised.next(commonProtocol(k.ask(ctx))); action {
	case raiseProtocol:
		k.raiseTo(ctx, protocol)
	case recordReady:
		k.recordReady(ctx, protocol)
	}
}

// readyProtocol returns a protocol that all members have spoken since a cluster time, and when the
// cluster uses it by itself; 0 if there is none.
func readyProtocol(n *Node) (ready uint32, since, at clustertime.Time) {
	ready, since = n.partitions[0].journal.ReadyProtocol()
	return ready, since, since.Add(n.settings.current.Load().FinalizeProtocolAfter)
}

// A protocolState is what the first partition has recorded of protocols.
type protocolState struct {
	current, ready uint32
	isReadyLong    bool // for Settings.FinalizeProtocolAfter or longer
}

// A protocolAction is a step to a newer protocol.
type protocolAction int

const (
	keepProtocol protocolAction = iota
	recordReady
	raiseProtocol
)

// next returns the next step, if the members speak the protocols common and lowest; see
// commonProtocol. A new cluster has protocol 1 and does not wait: no earlier build has its data.
func (s protocolState) next(common, lowest uint32) (protocolAction, uint32) {
	switch {
	case s.current == 1 && common > 1:
		return raiseProtocol, common
	case s.ready > lowest:
		return recordReady, 0 // a member has returned to the earlier build
	case common <= s.current:
		return keepProtocol, 0
	case s.ready == 0:
		return recordReady, common
	case s.isReadyLong:
		return raiseProtocol, s.ready
	}
	return keepProtocol, 0
}

// recordReady records that all members speak a protocol, or with 0, that one of them does not. run
// retries failures.
func (k protocolKeeper) recordReady(ctx context.Context, protocol uint32) {
	logger := k.partition.node.config.Logger
	err := k.partition.journal.RecordReadyProtocol(ctx, protocol)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		logger.Warn("protocols of the members not recorded; trying again", "error", err)
	case protocol == 0:
		logger.Info("a member speaks only the cluster's protocol again: a newer one waits until every member speaks it",
			"protocol", k.partition.journal.Protocol())
	default:
		logger.Info("every member speaks a newer protocol: until the cluster uses it, members may return to the previous build; "+
			"\"tenuto cluster finalize\" uses it now", "protocol", protocol, "after", k.partition.node.settings.current.Load().FinalizeProtocolAfter)
	}
}

// raiseTo raises the cluster's protocol. run retries failures.
func (k protocolKeeper) raiseTo(ctx context.Context, protocol uint32) {
	pa := k.partition
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

// ask asks all members at once. It returns the newest protocol that each speaks, 0 if it does not
// answer, in order of the nodes.
func (k protocolKeeper) ask(ctx context.Context) (spoken []*clusterpb.MemberProtocol) {
	config := &k.partition.node.config
	var asking sync.WaitGroup
	for _, m := range k.partition.journal.Members() {
		of := &clusterpb.MemberProtocol{Node: m.Node, Newest: config.protocol}
		spoken = append(spoken, of)
		if m.Node == config.NodeID {
			continue
		}
		asking.Go(func() {
			request := membersRequest()
			request.Protocol, request.Node = config.protocol, config.NodeID
			response := k.partition.node.askOnce(ctx, m.Address, request)
			if of.Newest = 0; response.GetMembers() != nil {
				of.Newest = max(response.Protocol, 1)
			}
		})
	}
	asking.Wait()
	slices.SortFunc(spoken, func(a, b *clusterpb.MemberProtocol) int { return cmp.Compare(a.Node, b.Node) })
	return spoken
}

// commonProtocol returns the newest protocol that all members speak, 0 if one of them does not
// answer, and the newest that all members speak that have answered.
func commonProtocol(spoken []*clusterpb.MemberProtocol) (common, lowest uint32) {
	lowest = math.MaxUint32
	all := true
	for _, of := range spoken {
		if all = all && of.Newest > 0; of.Newest > 0 {
			lowest = min(lowest, of.Newest)
		}
	}
	if all {
		common = lowest
	}
	return common, lowest
}

var errProtocolPartition = fmt.Errorf("%w: only the first partition decides about protocols", ErrProtocol)

// showProtocols answers what the members speak, on the leader of the first partition.
func (k protocolKeeper) showProtocols(ctx context.Context) (*clusterpb.Response, error) {
	if k.partition.number > 0 {
		return nil, errProtocolPartition
	}
	if err := k.partition.barrier(ctx); err != nil {
		return nil, err
	}
	result := &clusterpb.ProtocolsResult{Protocol: k.partition.journal.Protocol(), Members: k.ask(ctx)}
	if ready, since, at := readyProtocol(k.partition.node); ready > 0 {
		result.ReadyProtocol, result.ReadySince, result.FinalizeAt = ready, since.UnixNano(), at.UnixNano()
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Protocols{Protocols: result}}, nil
}

// finalize makes the cluster use this leader's newest protocol, if all members speak it.
func (k protocolKeeper) finalize(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	pa := k.partition
	if pa.number > 0 {
		return nil, errProtocolPartition
	}
	if err := pa.barrier(ctx); err != nil {
		return nil, err
	}
	newest := pa.node.config.protocol
	if pa.journal.Protocol() < newest {
		if err := checkMembersSpeak(k.ask(ctx), newest); err != nil {
			return nil, err
		}
		if err := pa.journal.RaiseProtocol(ctx, newest); err != nil {
			return nil, err
		}
		pa.node.config.Logger.Info("upgrade finalized: the cluster uses the newest protocol, and no member can return to the previous build",
			"protocol", newest, "principal", request.Principal, "reason", request.GetFinalize().GetReason())
	}
	result := &clusterpb.FinalizeResult{Protocol: pa.journal.Protocol()}
	return &clusterpb.Response{Result: &clusterpb.Response_Finalize{Finalize: result}}, nil
}

// checkMembersSpeak returns an error that names a member which does not speak a protocol, or does
// not answer.
func checkMembersSpeak(spoken []*clusterpb.MemberProtocol, required uint32) error {
	for _, of := range spoken {
		switch {
		case of.Newest == 0:
			return &VersionError{Node: of.Node, Required: required}
		case of.Newest < required:
			return newVersionError(of.Node, of.Newest, required)
		}
	}
	return nil
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
