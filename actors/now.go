package actors

import "github.com/tenuto-dev/tenuto/internal/clustertime"

// now returns the cluster time. Everything that is recorded, or compared with a record, uses this
// clock.
func (p *Partition) now() clustertime.Time {
	if p.config.Now != nil {
		return p.config.Now()
	}
	return p.system.config.Now()
}
