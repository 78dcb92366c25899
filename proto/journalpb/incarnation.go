package journalpb

import "fmt"

// The leader that records the start of a run assigns its incarnation: the epoch, followed by the
// number of this start among those of the epoch (40 bits). An epoch belongs to one leadership and
// never recurs, so no two runs of a partition have the same incarnation, and later runs have larger
// ones. There is room for 2^24 epochs of a partition, and for 2^40 starts in each.
const incarnationStartBits = 40

// NewIncarnation returns the incarnation of a run. start counts the starts of the epoch from 1.
func NewIncarnation(epoch, start uint64) uint64 {
	return epoch<<incarnationStartBits | start&(1<<incarnationStartBits-1)
}

// IncarnationText returns an incarnation in the form used in IDs and keys: "epoch-start".
func IncarnationText(incarnation uint64) string {
	return fmt.Sprintf("%d-%d", incarnation>>incarnationStartBits, incarnation&(1<<incarnationStartBits-1))
}

// Key returns "instance/incarnation/execution/event_id", which identifies the operation uniquely
// and for ever. For a run without an incarnation it omits that part.
func (r *OperationRef) Key() string {
	if r.GetIncarnation() == 0 {
		return fmt.Sprintf("%s/%d/%d", r.GetInstance(), r.GetExecution(), r.GetEventId())
	}
	return fmt.Sprintf("%s/%s/%d/%d", r.GetInstance(), IncarnationText(r.GetIncarnation()), r.GetExecution(), r.GetEventId())
}
