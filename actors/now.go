package actors

import (
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// now returns the cluster time. Everything that is recorded, or compared with a record, uses this
// clock.
func (p *Partition) now() clustertime.Time {
	if p.config.Now != nil {
		return p.config.Now()
	}
	return p.system.config.Now()
}

func (t *task) now() clustertime.Time { return t.partition.now() }

// localDeadline returns the local time when the duration left will have passed; the zero time if
// left is 0. No other function converts a limit in cluster time to local time.
func localDeadline(left time.Duration) time.Time {
	if left <= 0 {
		return time.Time{}
	}
	return time.Now().Add(left)
}
