package journal

import (
	"fmt"
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// conditionsProtocol is the protocol since which conditions are recorded.
const conditionsProtocol = 3

// SetCondition proposes to keep with an instance why it does not go on. done and the
// errors are as in Append, and before the cluster has come to protocol 3 the error is a
// *VersionError: the nodes of the build before do not know the record.
func (j *Journal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	if came := j.Protocol(); came < conditionsProtocol {
		done(&VersionError{Node: j.config.Node, Oldest: conditionsProtocol, Newest: j.config.Protocol, Wanted: came})
		return
	}
	record, err := encodeSetCondition(c)
	if err != nil {
		done(fmt.Errorf("set condition: %w", err))
		return
	}
	j.propose(proposal{record: record, done: done})
}

// Held yields the running instances that have a condition; see state.Machine.
func (j *Journal) Held() iter.Seq[*journalpb.Instance] { return j.machine.Held() }
