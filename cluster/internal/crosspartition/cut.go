package crosspartition

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A backup needs the states of all partitions at one cut: none may contain an effect of a message
// that the sender's state does not contain. The rule is that of Chandy and Lamport, "Distributed
// Snapshots", 1985, with recorded cuts as markers: each message and each answer names the latest
// cut that its sender has recorded, and the receiver records that cut before anything that follows
// from the message.

// Cuts records and returns the cuts of a partition.
type Cuts interface {
	Cut() uint64
	RecordCut(ctx context.Context, cut uint64) error
}

// FollowCut records in the own partition a cut that another partition has recorded.
func FollowCut(ctx context.Context, own Cuts, cut uint64) error {
	if own.Cut() >= cut {
		return nil
	}
	if err := own.RecordCut(ctx, cut); err != nil {
		return fmt.Errorf("follow the cut of another partition: %w", err)
	}
	return nil
}

// A replica is this node's copy of another partition, as the leader's own partition reads it. It
// shows no instance while the other partition has recorded a cut that the own partition has not:
// the own partition could otherwise record an effect of the instance before that cut.
type replica struct {
	*journal.Journal
	of *Leader
}

// Instance implements actors.Replica.
func (r *replica) Instance(id string) (*journalpb.Instance, bool) {
	found, ok := r.Journal.Instance(id)
	if r.Cut() > r.of.own.Cut() { // read after the instance
		r.of.hidden.Store(true)
		return nil, false
	}
	return found, ok
}

// followCuts records in the own partition the latest cut that this node's copies of the other
// partitions show. If an instance was hidden since the last review, the next review checks all
// operations again.
func (r *Leader) followCuts(ctx context.Context) {
	hidden := r.hidden.Swap(false)
	for i, other := range r.Partitions {
		if i == r.Partition {
			continue
		}
		if err := FollowCut(ctx, r.own, other.Journal.Cut()); err != nil {
			if hidden {
				r.hidden.Store(true)
			}
			return // the next call tries again
		}
	}
	if hidden {
		r.ReviewAll()
	}
}
