package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Protocols are the protocol that a cluster uses, and those that its members speak. A build speaks
// a protocol and the one before.
type Protocols struct {
	// Used is the one that the cluster uses. Builds that do not speak it cannot take part.
	Used uint32
	// Next is one above it that all members have spoken since Since; 0 if there is none. The
	// cluster uses it by itself at NextAt, cluster.Settings.FinalizeProtocolAfter later, if all
	// members answer then. Both are cluster times. Until then members may return to the previous
	// build.
	Next          uint32
	Since, NextAt time.Time
	// Newest is, by node ID, the newest that each member speaks; 0 if it does not answer the
	// leader.
	Newest map[string]uint32
}

// GetProtocols returns the protocols of a cluster. The right that it needs is
// [cluster.ActionSeeMembers].
//
// Errors: [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] from a node of a build before protocol
// 4; [*cluster.UnavailableError].
func GetProtocols(ctx context.Context, client *cluster.Client) (Protocols, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return Protocols{}, fmt.Errorf("get protocols: %w", err)
	}
	response, err := internals.Call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Protocols{Protocols: new(clusterpb.ProtocolsRequest)}})
	if err != nil {
		return Protocols{}, fmt.Errorf("get protocols: %w", ofEarlierBuild(err))
	}
	result := response.GetProtocols()
	p := Protocols{Used: result.GetProtocol(), Next: result.GetReadyProtocol(), Newest: make(map[string]uint32)}
	if p.Next > 0 {
		p.Since, p.NextAt = time.Unix(0, result.GetReadySince()).UTC(), time.Unix(0, result.GetFinalizeAt()).UTC()
	}
	for _, m := range result.GetMembers() {
		p.Newest[m.Node] = m.Newest
	}
	return p, nil
}

// Finalize ends an upgrade: it makes the cluster use the newest protocol that its leader speaks, at
// once, and returns it. From then on no member can return to the previous build. The first
// partition uses it when Finalize returns, the others about a second later. It is no error if the
// cluster uses it already. The right that it needs is [ActionFinalize]. The log of the leader shows
// the principal and the reason.
//
// Errors: a [*cluster.VersionError] that names a member which does not speak the protocol, or does
// not answer (its Newest is 0); [cluster.ErrProtocol] from a leader of a build before protocol 4;
// [cluster.ErrNotAuthorized]; [*cluster.UnavailableError].
func Finalize(ctx context.Context, client *cluster.Client, reason string) (protocol uint32, err error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return 0, fmt.Errorf("finalize: %w", err)
	}
	sent := &clusterpb.Request{Call: &clusterpb.Request_Finalize{Finalize: &clusterpb.FinalizeRequest{Reason: reason}}}
	if err := internals.Check(sent); err != nil {
		return 0, fmt.Errorf("finalize: %w", err)
	}
	response, err := internals.Call(ctx, sent)
	if err != nil {
		return 0, fmt.Errorf("finalize: %w", ofEarlierBuild(err))
	}
	return response.GetFinalize().GetProtocol(), nil
}

// ofEarlierBuild explains the error of a node that does not know the request.
func ofEarlierBuild(err error) error {
	var named *cluster.VersionError
	if errors.Is(err, cluster.ErrProtocol) && !errors.As(err, &named) {
		return fmt.Errorf("the node that was asked runs a build before protocol 4: upgrade every node first: %w", err)
	}
	return err
}
