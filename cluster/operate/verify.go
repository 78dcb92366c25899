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

// ActionVerify is the action of [Verify], ActionAcceptReplica that of [AcceptReplica], for
// cluster.Config.Authorize.
const (
	ActionVerify        cluster.Action = "verify"
	ActionAcceptReplica cluster.Action = "accept replica"
)

// A Verification is the progress, and in the end the result, of comparing one partition's replicas.
type Verification struct {
	Partition int // counted from 0
	Done      bool
	// Instances, Events and Bytes count what was compared so far. Bytes are those stored.
	Instances, Events, Bytes uint64
	// Replicas is how many of the Voters took part; of several comparisons, the fewest. Standbys is
	// how many standbys did: their replicas do not decide, and are repaired likewise.
	Replicas, Voters, Standbys int
	Differences                []Difference
	// Roots are the signed roots of the ranges on which the replicas agree, at most 1,000; see
	// cluster/proof.
	Roots []SignedRoot
	// Waits says what the comparison waits for, "" if it proceeds.
	Waits string
}

// A Difference is a replica of an instance that differs from those of the majority, or contradicts
// itself.
type Difference struct {
	InstanceID string
	// NodeID is the node with the replica, "" if no majority agrees: the instance is then stopped;
	// see [AcceptReplica].
	NodeID    string
	Execution uint64
	// EventID is the first event that differs; 0 if the events are equal, and only what is derived
	// from them differs.
	EventID uint64
	Reason  string
	// Repaired says that the replica is like the others again.
	Repaired bool
}

// A SignedRoot is a statement of a leader, which has the root, and its signature.
type SignedRoot struct{ Statement, Signature []byte }

// verifyInterval is how often Verify asks how far a comparison is.
const verifyInterval = 200 * time.Millisecond

// verifyRestarts bounds how often Verify begins anew because the leader of a partition has changed.
const verifyRestarts = 10

// Verify compares all replicas of all partitions now, one partition after another, and returns what
// it has found. Its result is complete if each partition has as many Replicas as Voters. It calls
// progress, unless that is nil, several times a second. It reads all histories on all replicas.
// Leaders also compare by themselves; see docs/operating.md. The caller needs the right
// [ActionVerify].
//
// Errors: those of [cluster.Client], and of ctx. If a leader changes, the partition is verified
// anew, at most ten times.
func Verify(ctx context.Context, client *cluster.Client, progress func(Verification)) ([]Verification, error) {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	reports, err := internals.Reports(ctx)
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	partitions := 0
	for _, r := range reports {
		partitions = max(partitions, len(r.Report.GetPartitions()))
	}
	if partitions == 0 {
		return nil, errors.New("verify: no node reports its partitions")
	}
	var all []Verification
	for i := range partitions {
		v, err := verifyPartition(ctx, internals, i, progress)
		if err != nil {
			return all, fmt.Errorf("verify partition %d: %w", i, err)
		}
		all = append(all, v)
	}
	return all, nil
}

func verifyPartition(ctx context.Context, internals access.Internals, partition int, progress func(Verification)) (Verification, error) {
	round, epoch := uint64(0), uint64(0)
	for restarts := 0; restarts <= verifyRestarts; {
		response, err := internals.Call(ctx, &clusterpb.Request{Partition: uint32(partition + 1), Call: &clusterpb.Request_Verify{Verify: &clusterpb.VerifyRequest{Round: round}}})
		if err != nil {
			return Verification{}, err
		}
		status := response.GetVerify()
		v := newVerification(partition, status)
		if status.GetRound() == 0 || epoch != 0 && status.GetEpoch() != epoch {
			round, epoch = 0, 0
			restarts++
		} else {
			round, epoch = status.Round, status.Epoch
			if progress != nil {
				progress(v)
			}
			if v.Done {
				return v, nil
			}
		}
		select {
		case <-time.After(verifyInterval):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
	return Verification{}, fmt.Errorf("the leader of the partition has changed %d times", verifyRestarts+1)
}

func newVerification(partition int, s *clusterpb.VerifyStatus) Verification {
	v := Verification{
		Partition: partition, Done: s.Done, Instances: s.Instances, Events: s.Events, Bytes: s.Bytes,
		Replicas: int(s.Replicas), Voters: int(s.Voters), Standbys: int(s.Standbys), Waits: s.Waits,
	}
	for _, d := range s.Differences {
		v.Differences = append(v.Differences, Difference{d.Instance, d.Node, d.Execution, d.EventId, d.Reason, d.Repaired})
	}
	for _, d := range s.Roots {
		v.Roots = append(v.Roots, SignedRoot{d.Statement, d.Signature})
	}
	return v
}

// AcceptReplica makes a node's replica of an instance the right one. The instance must be stopped
// because no majority of its replicas agrees. The other replicas are replaced by it, and the
// instance goes on. The caller needs the right [ActionAcceptReplica]. The log of the leader shows
// the principal and the reason.
//
// Errors: a [*replay.InvalidError]; [cluster.ErrNotMember], also for a node that is not a voter;
// one that says that the instance is not stopped; those of [cluster.Client].
func AcceptReplica(ctx context.Context, client *cluster.Client, instance, node, reason string) error {
	internals, err := client.Internal(access.Key{})
	if err != nil {
		return fmt.Errorf("accept replica: %w", err)
	}
	request := &clusterpb.Request{Instance: instance, Reason: reason, Call: &clusterpb.Request_AcceptReplica{AcceptReplica: &clusterpb.AcceptReplicaRequest{Node: node}}}
	if err := internals.Check(request); err != nil {
		return fmt.Errorf("accept replica: %w", err)
	}
	if _, err := internals.Call(ctx, request); err != nil {
		return fmt.Errorf("accept replica of %s: %w", instance, err)
	}
	return nil
}
