package cluster

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// protocolVersion is the newest protocol that this version of the software speaks.
const protocolVersion = journal.NewestProtocol

// ErrProtocol is what every [VersionError] is.
var ErrProtocol = journal.ErrProtocol

// A VersionError reports that a node, or a client, does not speak the protocol that
// the cluster has come to, or that the node speaks which was asked. Nothing was
// done. errors.Is finds [ErrProtocol]. Its fields:
//
//	Node           string // that cannot take part
//	Oldest, Newest uint32 // the protocols that it speaks
//	Wanted         uint32 // the protocol that it would have to speak
type VersionError = journal.VersionError

// speaking says which protocols a node speaks.
func speaking(node string, newest, wanted uint32) *VersionError {
	return &VersionError{Node: node, Oldest: max(newest, 2) - 1, Newest: newest, Wanted: wanted}
}

// understands refuses what is said in a protocol that this node does not speak. The
// two may differ by one.
func (c Config) understands(protocol uint32) error {
	if protocol+1 < c.protocol || protocol > c.protocol+1 {
		return speaking(c.NodeID, c.protocol, protocol)
	}
	return nil
}

// mayEnter refuses a node that does not speak the protocol that the cluster has come
// to.
func (g *group) mayEnter(node string, newest uint32) error {
	// A cluster that was founded a moment ago has not come to a protocol yet: its leader speaks
	// none before its own two.
	wanted := max(g.journal.Protocol(), g.config.protocol-1)
	if said := speaking(node, newest, wanted); wanted < said.Oldest || wanted > said.Newest {
		return said
	}
	return nil
}

// raiseEvery is how often a leader asks whether all members speak a newer protocol
// than the cluster has come to, as long as it does so itself.
const raiseEvery = time.Second

// raise has the cluster come to the newest protocol that all members speak, until
// that is what this node speaks, or ctx ends.
func (g *group) raise(ctx context.Context) {
	for g.journal.Protocol() < g.config.protocol {
		if common := g.commonProtocol(ctx); common > g.journal.Protocol() {
			g.raiseTo(ctx, common)
		}
		if g.rest(ctx, raiseEvery) != nil {
			return
		}
	}
}

// raiseTo has the cluster come to a protocol. The caller repeats what fails.
func (g *group) raiseTo(ctx context.Context, protocol uint32) {
	switch err := g.journal.RaiseProtocol(ctx, protocol); {
	case err == nil:
		level := slog.LevelInfo
		if len(g.journal.Members()) == 1 {
			level = slog.LevelDebug // a node alone has nobody to agree with
		}
		g.config.Logger.Log(ctx, level, "cluster protocol raised: every member speaks it", "protocol", protocol)
	case ctx.Err() == nil:
		g.config.Logger.Warn("cluster protocol not raised, will try again", "protocol", protocol, "error", err)
	}
}

// commonProtocol returns the newest protocol that all members speak, 0 if one of
// them does not answer.
func (g *group) commonProtocol(ctx context.Context) uint32 {
	common := g.config.protocol
	for _, m := range g.journal.Members() {
		if m.Node == g.config.NodeID {
			continue
		}
		request := membersRequest()
		request.Protocol, request.Node = g.config.protocol, g.config.NodeID
		response := g.askOnce(ctx, m.Address, request)
		if response.GetMembers() == nil {
			return 0
		}
		common = min(common, max(response.Protocol, 1))
	}
	return common
}

// incarnationsProtocol is the protocol since which every run has an incarnation.
const incarnationsProtocol = 3

// incarnations reports whether a run that begins gets an incarnation.
func (g *group) incarnations() bool { return g.journal.Protocol() >= incarnationsProtocol }

// mismatch is a VersionError on the wire.
func mismatch(e *VersionError) *clusterpb.VersionMismatch {
	return &clusterpb.VersionMismatch{Node: e.Node, Oldest: e.Oldest, Newest: e.Newest, Wanted: e.Wanted}
}

func readMismatch(wire *clusterpb.VersionMismatch) *VersionError {
	return &VersionError{Node: wire.Node, Oldest: wire.Oldest, Newest: wire.Newest, Wanted: wire.Wanted}
}

const modulePath = "github.com/tenuto-dev/tenuto"

// moduleVersion returns the version of this module that the program was built with.
func moduleVersion() string {
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
}
