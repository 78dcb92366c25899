package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
)

// DrainBehindMax is how many journal entries a node may be behind to take over partitions of a
// drained node: it acknowledges them within the wait of a transfer.
const DrainBehindMax = 1000

// A Transfer is the move of the leadership of one partition.
type Transfer struct {
	Partition int    // counted from 0
	To        string // the ID of the node that leads afterwards
}

// A NoSuccessorError reports that no other node can lead the partitions of a drained node, and why.
type NoSuccessorError struct {
	Node string
	// Unfit says of each other member, by its ID, why it cannot take over.
	Unfit map[string]string

	unknown bool // a voter may be fit, but its state is not known now
}

func (e *NoSuccessorError) Error() string {
	text := fmt.Sprintf("no other node can lead the partitions of %s", e.Node)
	separator := ": "
	for _, id := range slices.Sorted(maps.Keys(e.Unfit)) {
		text += separator + id + " " + e.Unfit[id]
		separator = ", "
	}
	return text
}

// PlanDrain returns what [Drain] would move now, in its order, and changes nothing. Its errors are
// those of Drain. The right that it needs is [cluster.ActionSeeMembers].
func PlanDrain(ctx context.Context, client *cluster.Client, node string) ([]Transfer, error) {
	members, err := client.Members(ctx)
	if err != nil {
		return nil, fmt.Errorf("drain %s: %w", node, err)
	}
	plan, err := planDrain(members, node)
	if err != nil {
		return nil, fmt.Errorf("drain %s: %w", node, err)
	}
	return plan, nil
}

// Drain moves the leadership of every partition that a node leads to other voters that are alive
// and at most [DrainBehindMax] entries behind, one partition after the other. Each goes to the node
// that then leads fewest, and of these to the one that is least behind. It returns what was moved,
// when the new leaders serve it. A node that leads nothing is drained: the result is empty and the
// error nil.
//
// The node keeps its votes. A later election, or the nodes when they spread leadership evenly, may
// make it lead again. To restart it, call [cluster.Node.Stop] afterwards, which hands over what the
// node leads by then. Principal, log and rights are those of [TransferLeadership]: the cluster
// authorizes each transfer.
//
// The state of the members is not known during an election. If then no node is known to be fit,
// Drain waits up to 10 s for it.
//
// Errors: [cluster.ErrNotMember]; [cluster.ErrLastVoter] if the cluster has no other voter;
// [*NoSuccessorError] if no other voter is fit; those of TransferLeadership. After an error of a
// transfer, the transfers before it remain, and are returned too.
func Drain(ctx context.Context, client *cluster.Client, node string) (moved []Transfer, err error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("drain %s: %w", node, err)
	}
	plan, err := awaitPlan(ctx, func() ([]Transfer, error) { return PlanDrain(ctx, client, node) })
	if err != nil {
		return nil, err
	}
	return transferAll(ctx, internals, node, plan)
}

const (
	unknownWait  = 10 * time.Second // for the state of members
	unknownPause = 100 * time.Millisecond
)

// awaitPlan repeats a plan while it fails because the state of members is not known.
func awaitPlan(ctx context.Context, plan func() ([]Transfer, error)) ([]Transfer, error) {
	for end := time.Now().Add(unknownWait); ; {
		transfers, err := plan()
		var none *NoSuccessorError
		if !errors.As(err, &none) || !none.unknown || time.Now().After(end) {
			return transfers, err
		}
		select {
		case <-time.After(unknownPause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// transferAll makes transfers from a node in order, until one fails, and returns those made.
func transferAll(ctx context.Context, internals access.Internals, from string, plan []Transfer) (moved []Transfer, err error) {
	for _, t := range plan {
		if err := transfer(ctx, internals, from, t.To, uint32(t.Partition+1)); err != nil {
			return moved, fmt.Errorf("drain: partition %d to %s: %w", t.Partition, t.To, err)
		}
		moved = append(moved, t)
	}
	return moved, nil
}

// planDrain chooses a successor for each partition that a node leads.
func planDrain(members []cluster.Member, node string) ([]Transfer, error) {
	at := slices.IndexFunc(members, func(m cluster.Member) bool { return m.NodeID == node })
	if at < 0 {
		return nil, cluster.ErrNotMember
	}
	led := partitionsOf(members[at])
	if len(led) == 0 {
		return nil, nil
	}
	others := slices.Delete(slices.Clone(members), at, at+1)
	if !slices.ContainsFunc(others, func(m cluster.Member) bool { return m.Voter }) {
		return nil, cluster.ErrLastVoter
	}
	none, leads := &NoSuccessorError{Node: node, Unfit: make(map[string]string)}, make(map[string]int)
	for _, m := range others {
		leads[m.NodeID] = len(partitionsOf(m))
		if reason := unfitReason(m); reason != "" {
			none.Unfit[m.NodeID] = reason
			none.unknown = none.unknown || m.Voter && (m.Liveness == cluster.MemberUnknown || m.Liveness == cluster.MemberAlive && !m.BehindKnown)
		}
	}
	fit := slices.DeleteFunc(others, func(m cluster.Member) bool { return none.Unfit[m.NodeID] != "" })
	if len(fit) == 0 {
		return nil, none
	}
	plan := make([]Transfer, len(led))
	for i, number := range led {
		to := slices.MinFunc(fit, func(a, b cluster.Member) int {
			return cmp.Or(cmp.Compare(leads[a.NodeID], leads[b.NodeID]), cmp.Compare(a.Behind, b.Behind))
		})
		leads[to.NodeID]++
		plan[i] = Transfer{Partition: int(number) - 1, To: to.NodeID}
	}
	return plan, nil
}

// unfitReason says why a member cannot take over a partition, "" if it can.
func unfitReason(m cluster.Member) string {
	switch {
	case !m.Voter:
		return "has no vote"
	case m.Liveness != cluster.MemberAlive:
		return "is " + string(m.Liveness)
	case !m.BehindKnown:
		return "has not said how far behind it is"
	case m.Behind > DrainBehindMax:
		return fmt.Sprintf("is %d entries behind", m.Behind)
	}
	return ""
}
