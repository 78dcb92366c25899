package actors

import (
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Journal is the journal of one partition. Reads show everything committed before this leadership
// began. They show an append of this leadership before its done is called. All methods may be
// called concurrently.
type Journal interface {
	// Append proposes an append. It does not block. The caller may reuse a when Append returns.
	// done is called exactly once, with nil after the append is committed and applied. done must
	// not block.
	Append(a *journalpb.Append, done func(error))
	// Instance returns the metadata of an instance.
	Instance(id string) (*journalpb.Instance, bool)
	// Events yields the history of an execution from an event_id on.
	Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error]
	// Event returns one event.
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	// Attempt proposes a record of an open activity's attempts. Its contract is that of Append.
	Attempt(a *journalpb.Attempt, done func(error))
	// SetCondition proposes a record of why an instance does not continue, or that it can. It is
	// rejected if the history has grown. Its contract is that of Append.
	SetCondition(c *journalpb.SetCondition, done func(error))
	// CopyHistory proposes a run whose history begins with a copy. Its contract is that of Append.
	CopyHistory(c *journalpb.CopyHistory, done func(error))
	// WithCondition yields the running instances that have a condition.
	WithCondition() iter.Seq[*journalpb.Instance]
	// OpenOperations yields the open operations of all instances, in the order of instance ID and
	// event_id.
	OpenOperations() iter.Seq[*journalpb.Operation]
	// InstanceOperations yields the open operations of one instance, in the order of event_id.
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
	// Unbegun yields the running instances whose code has not run yet.
	Unbegun() iter.Seq[*journalpb.Instance]
	// Orphans yields the running children whose parents no longer wait for them.
	Orphans() iter.Seq[*journalpb.Instance]
	// Chained yields the chained starts, and the starts of children to be abandoned, whose
	// instances do not exist yet.
	Chained() iter.Seq[*journalpb.ChainedStart]
	// HasChainedStart reports whether Chained yields the start of an instance.
	HasChainedStart(target string) bool
}
