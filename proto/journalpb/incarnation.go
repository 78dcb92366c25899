package journalpb

import "fmt"

// An incarnation is made by the leader that records the start of the run, from its epoch
// and the number of the start among those that it has recorded. No epoch has two leaders
// and none comes again, so no two runs of a partition have the same incarnation, and a
// later run has a larger one. There is room for 16 million epochs of a partition, and for
// a million million starts in each.
const incarnationStartBits = 40

// NewIncarnation returns the incarnation of the run that a leader starts, counted from 1
// in its epoch.
func NewIncarnation(epoch, start uint64) uint64 {
	return epoch<<incarnationStartBits | start&(1<<incarnationStartBits-1)
}

// IncarnationText returns an incarnation as it stands in IDs and keys: "epoch-start".
func IncarnationText(incarnation uint64) string {
	return fmt.Sprintf("%d-%d", incarnation>>incarnationStartBits, incarnation&(1<<incarnationStartBits-1))
}

// Key returns "instance/incarnation/execution/event_id", which names the operation and no
// other ever. A run that began without an incarnation leaves that part out.
func (r *OperationRef) Key() string {
	if r.GetIncarnation() == 0 {
		return fmt.Sprintf("%s/%d/%d", r.GetInstance(), r.GetExecution(), r.GetEventId())
	}
	return fmt.Sprintf("%s/%s/%d/%d", r.GetInstance(), IncarnationText(r.GetIncarnation()), r.GetExecution(), r.GetEventId())
}
