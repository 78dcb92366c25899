package journal

import (
	"context"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// NewestProtocol is the newest protocol that this version of the software speaks: of what
// nodes say to each other (clusterpb) and of what they record (journalpb). It speaks the
// one before as well. The rules of change are in DESIGN.md of package cluster.
const NewestProtocol = state.NewestProtocol

// Protocol returns the protocol to which the cluster has come, as far as this node
// has applied the journal; 1 at first. It never decreases.
func (j *Journal) Protocol() uint32 { return j.machine.Protocol() }

// RaiseProtocol records, on the leader, that the cluster has come to a protocol:
// every member speaks it, and whoever does not takes no further part. A smaller one
// than before changes nothing.
//
// Errors: ErrNotLeader, ErrUnknownOutcome, ErrBusy, ErrClosed, or ctx's, after which
// it may be recorded or not.
func (j *Journal) RaiseProtocol(ctx context.Context, to uint32) error {
	if err := j.changeGroup(ctx, &journalpb.GroupChange{Protocol: to}); err != nil {
		return fmt.Errorf("raise the protocol to %d: %w", to, err)
	}
	notify(j.tending) // there may be identities to record
	return nil
}
