package actors

import (
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// now returns the cluster time: what is recorded, and compared with what was
// recorded, is of this clock and no other.
func (p *Partition) now() clustertime.Time {
	if p.place.Now != nil {
		return p.place.Now()
	}
	return p.system.config.Now()
}

func (t *task) now() clustertime.Time { return t.partition.now() }

// localDeadline returns the moment by the clock of this machine when left has passed,
// the zero time if there is no limit. It is the one place where what cluster time
// decides becomes a time of the machine.
func localDeadline(left time.Duration) time.Time {
	if left <= 0 {
		return time.Time{}
	}
	return time.Now().Add(left)
}
