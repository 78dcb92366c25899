package actors

import "time"

// now returns the cluster time: what is recorded, and compared with what was
// recorded, is of this clock and no other.
func (s *System) now() time.Time { return s.config.Now() }

func (p *Partition) now() time.Time { return p.system.now() }

func (p *pool) now() time.Time { return p.system.now() }

func (t *task) now() time.Time { return t.pool().now() }
