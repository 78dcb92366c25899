package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// ErrTransferFailed means that a node did not take over leadership in time, because it is busy,
// unreachable or behind. Try again later.
var ErrTransferFailed = journal.ErrTransferFailed

// TransferLeadership makes other nodes lead the partitions that the node from leads, or all
// partitions if from is "": the node to, or if that is "", of each partition the one that is least
// behind. It returns how many partitions were led by others than to, when they are served by their
// new leaders. Calls wait meanwhile, usually for less than a second.
//
// A transfer is not permanent: nodes spread the leadership of several partitions evenly, and an
// election may choose any voter. A node that is stopped hands over by itself. The log of the
// previous leader shows who has called. The rights that it needs are [cluster.ActionSeeMembers] and
// [ActionTransfer].
//
// Errors: [ErrTransferFailed]; [cluster.ErrNotMember] if to is not a voter; [cluster.ErrLastVoter];
// [*replay.InvalidError]; [cluster.ErrNotAuthorized]; [cluster.ErrProtocol] while a member does not
// speak protocol 4; [*cluster.UnavailableError]. After an error, some partitions may have been
// handed over. A repetition hands over those that are left.
func TransferLeadership(ctx context.Context, client *cluster.Client, from, to string) (partitions int, err error) {
	internals, err := client.Internal(access.Key{})
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
		moved, transferErr := transferFrom(ctx, internals, m.NodeID, to, led)
		partitions += moved
		err = errors.Join(err, transferErr)
	}
	return partitions, err
}

// transferFrom transfers partitions that a node leads, each with a request of its own, so that one
// without a leader does not keep the others. Without any, one request to all checks the arguments.
func transferFrom(ctx context.Context, internals access.Internals, from, to string, led []uint32) (moved int, err error) {
	if len(led) == 0 {
		return 0, transfer(ctx, internals, from, to, 0)
	}
	for _, number := range led {
		switch transferErr := transfer(ctx, internals, from, to, number); {
		case transferErr != nil:
			err = errors.Join(err, transferErr)
		default:
			moved++
		}
	}
	return moved, err
}

// transfer transfers a partition, counted from 1, or with 0 all of them, if the node from leads it.
func transfer(ctx context.Context, internals access.Internals, from, to string, number uint32) error {
	request := &clusterpb.Request{Partition: number, Call: &clusterpb.Request_TransferLeadership{
		TransferLeadership: &clusterpb.TransferLeadershipRequest{From: from, To: to},
	}}
	if err := internals.Check(request); err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	if _, err := internals.Call(ctx, request); err != nil {
		return fmt.Errorf("transfer leadership of %s: %w", from, err)
	}
	return nil
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
