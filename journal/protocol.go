package journal

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// NewestProtocol is the newest protocol that this version of the software speaks, between nodes
// (clusterpb) and in records (journalpb). It also speaks the one before. DESIGN.md of package
// cluster has the rules of change.
const NewestProtocol = state.NewestProtocol

// Protocol returns the protocol that the cluster uses, as far as this node has applied the journal;
// 1 at first. It never decreases.
func (j *Journal) Protocol() uint32 { return j.machine.Protocol() }

// RaiseProtocol records that the cluster uses a protocol which every member speaks. It must be
// called on the leader. A node that does not speak it fails. A smaller protocol than before changes
// nothing.
//
// Errors: ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's, after which it may be
// recorded or not.
func (j *Journal) RaiseProtocol(ctx context.Context, to uint32) error {
	if err := j.changeMetadata(ctx, &journalpb.MetadataChange{Protocol: to}); err != nil {
		return fmt.Errorf("raise protocol to %d: %w", to, err)
	}
	notify(j.reconcileDue) // there may be identities to record
	return nil
}
