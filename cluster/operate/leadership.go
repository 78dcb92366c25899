package operate

import (
	"context"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// TransferLeadership makes other nodes lead the partitions that the node from leads, or all partitions
// if from is "": the node to, or if that is "", of each partition the one that lags least. It returns
// how many partitions were led by others than to, when they are served by their new leaders. Calls
// wait meanwhile, usually for less than a second.
//
// A transfer is not permanent: nodes spread the leadership of several partitions evenly, and an
// election may choose any voter. A node that is stopped hands over by itself. The log of the previous
// leader shows who has called. The rights that it needs are [cluster.ActionSeeMembers] and
// [ActionTransfer].
//
// Errors: [cluster.ErrNotMember] for a node that is not a voter; [cluster.ErrLastVoter];
// [*replay.InvalidError]; [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] while a member does not
// speak protocol 4; [*cluster.UnavailableError]. After an error, some partitions may have been handed
// over. A repetition hands over those that are left.
func TransferLeadership(ctx context.Context, client *cluster.Client, from, to string) (partitions int, err error) {
	door, err := client.Internal(access.Key{})
	if err != nil {
		return 0, fmt.Errorf("transfer leadership: %w", err)
	}
	members, err := client.Members(ctx)
	if err != nil {
		return 0, fmt.Errorf("transfer leadership: %w", err)
	}
	if from != "" && !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == from }) {
		return 0, fmt.Errorf("transfer leadership: %w: %q", cluster.ErrNotMember, from)
	}
	for _, m := range members {
		if from == "" && m.NodeID == to || from != "" && m.NodeID != from {
			continue
		}
		led := partitionsOf(m)
		if len(led) == 0 && from == "" {
			continue
		}
		request := &clusterpb.Request{Call: &clusterpb.Request_TransferLeadership{
			TransferLeadership: &clusterpb.TransferLeadershipRequest{From: m.NodeID, To: to, Partitions: led},
		}}
		if err := door.Check(request); err != nil {
			return 0, fmt.Errorf("transfer leadership: %w", err)
		}
		if _, err := door.Call(ctx, request); err != nil {
			return partitions, fmt.Errorf("transfer leadership of %s: %w", m.NodeID, err)
		}
		partitions += len(led)
	}
	return partitions, nil
}

// partitionsOf returns the partitions that a member leads, counted from 1.
func partitionsOf(m cluster.Member) (led []uint32) {
	for _, number := range m.LeadsPartitions {
		led = append(led, uint32(number+1))
	}
	if m.Leader && m.LeadsPartitions == nil { // of a cluster with one partition
		led = []uint32{1}
	}
	return led
}
