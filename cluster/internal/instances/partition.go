package instances

import (
	"context"
	"errors"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Partition holds the parts of a partition that are needed to answer calls.
type Partition struct {
	Journal  *journal.Journal
	Registry *engine.Registry
	// Barrier returns nil when a majority has confirmed that this node leads.
	Barrier func(ctx context.Context) error
	// Leads reports whether this node still leads with these actors.
	Leads func(*actors.Partition) bool
	// VerifyToken returns the attempt that a signed token names. The error is a
	// [*replay.TokenError], [engine.ErrTokenExpired], or says why the token cannot be verified.
	VerifyToken func(ctx context.Context, token string) (*replay.Attempt, error)
	// PauseOf returns the pause of an activity, nil if it is not paused.
	PauseOf func(activity string) *journalpb.PausedActivity
	// Owns reports whether an instance belongs to the partition.
	Owns func(instance string) bool
	// ParentWaits reports whether the operation that began an instance is still open in its parent.
	ParentWaits func(ctx context.Context, child *journalpb.Instance) (bool, error)
	// Answers bounds the bytes of long answers.
	Answers *admission.AnswerLimiter
}

// Errors of the leader. With each of them nothing was recorded.
var (
	ErrStalled    = errors.New("tenuto: the instance is stalled and records nothing")
	ErrNotStalled = errors.New("tenuto: the instance is not stalled")
)
