package journal

import (
	"fmt"
	"iter"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// conditionsProtocol is the protocol that introduced conditions.
const conditionsProtocol = 3

// SetCondition records with an instance why it does not make progress. done and the errors are as
// in Append. Before the cluster uses protocol 3 the error is a *VersionError: older builds do not
// know the record.
func (j *Journal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	if protocol := j.Protocol(); protocol < conditionsProtocol {
		done(&VersionError{Node: j.config.Node, Oldest: conditionsProtocol, Newest: j.config.Protocol, Required: protocol})
		return
	}
	record, err := entry.EncodeSetCondition(c)
	if err != nil {
		done(fmt.Errorf("set condition: %w", err))
		return
	}
	j.propose(proposal{record: record, done: done})
}

// WithCondition yields the running instances that have a condition; see state.Machine.
func (j *Journal) WithCondition() iter.Seq[*journalpb.Instance] { return j.machine.WithCondition() }
