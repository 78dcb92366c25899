package actors

import "time"

// now returns the cluster time: what is recorded, and compared with what was
// recorded, is of this clock and no other.
func (p *Partition) now() time.Time {
	if p.place.Now != nil {
		return p.place.Now()
	}
	return p.system.config.Now()
}

func (t *task) now() time.Time { return t.partition.now() }
