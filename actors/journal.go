package actors

import (
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Journal is what the actors need of a journal. Reads show everything that
// was committed before the actors were given the lead, and every append of
// theirs before its done is called. All methods may be called concurrently.
type Journal interface {
	// Append proposes an append, which is the caller's again when Append returns. It
	// does not block. done is called exactly once, with nil when the append is
	// committed and applied; it does not block.
	Append(a *journalpb.Append, done func(error))
	// Instance returns what the index knows of an instance.
	Instance(id string) (*journalpb.Instance, bool)
	// Events yields the history of an execution, beginning with one event_id.
	Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error]
	// Event returns one event.
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	// Attempt proposes to keep, with an open activity, what its attempts have
	// come to. It is like Append.
	Attempt(a *journalpb.Attempt, done func(error))
	// SetCondition proposes to keep with an instance why it does not go on, or that
	// nothing holds it up. It is refused if the history has gone on. It is like Append.
	SetCondition(c *journalpb.SetCondition, done func(error))
	// Held yields the running instances that have a condition.
	Held() iter.Seq[*journalpb.Instance]
	// Open yields the open operations of every instance, in the order of
	// instance ID and event_id.
	Open() iter.Seq[*journalpb.Operation]
	// OpenOf yields the open operations of one instance, in the order of event_id.
	OpenOf(instance string) iter.Seq[*journalpb.Operation]
	// Unbegun yields the running instances whose code has not run yet.
	Unbegun() iter.Seq[*journalpb.Instance]
	// Orphans yields the running children whose parents do not wait for them
	// any more.
	Orphans() iter.Seq[*journalpb.Instance]
	// Chained yields the detached starts, and those of children to be abandoned,
	// whose instances do not exist yet.
	Chained() iter.Seq[*journalpb.ChainedStart]
}
