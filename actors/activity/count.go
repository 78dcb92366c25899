package activity

import "github.com/tenuto-dev/tenuto/actors/internal/operation"

// nameCounts counts the tasks of one name in a partition. It exists while there are any. The
// scheduler's lock guards it.
type nameCounts struct {
	open    int // not ended
	running int // with an attempt on a worker
}

// addTask adds a task. The scheduler's lock is held.
func (p *Partition) addTask(t *task) {
	key, name := operation.KeyOf(t.ref), t.scheduled.Name
	if other := p.tasks[key]; other != nil {
		p.deleteTask(key, other)
	}
	p.tasks[key] = t
	if t.counts = p.byName[name]; t.counts == nil {
		t.counts = new(nameCounts)
		p.byName[name] = t.counts
	}
	t.counts.open++
}

// deleteTask deletes a task. The scheduler's lock is held.
func (p *Partition) deleteTask(key operation.Key, t *task) {
	delete(p.tasks, key)
	if t.counts.open--; t.counts.open == 0 {
		delete(p.byName, t.scheduled.Name)
	}
}

// NameCounts counts the activities of one name in the partitions that this node leads.
type NameCounts struct {
	Open    int // scheduled and not ended
	Queued  int // of them: waiting for a slot or a worker, or paused
	Running int // of them: with an attempt on a worker
	// QueuedByTag is how many are queued for each tag.
	QueuedByTag map[string]int
}

// CountByName returns the counts of the names that have open activities, and the names of the
// paused ones, which the caller must not change. Its cost depends on the number of names and tags,
// not on that of activities.
func (s *Scheduler) CountByName() (counts map[string]NameCounts, paused map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts = make(map[string]NameCounts)
	for p := range s.partitions {
		for name, of := range p.byName {
			sum := counts[name]
			sum.Open, sum.Running = sum.Open+of.open, sum.Running+of.running
			counts[name] = sum
		}
	}
	for c, q := range s.queues {
		sum := counts[c.name]
		sum.Queued += q.tasks.Len()
		if sum.QueuedByTag == nil {
			sum.QueuedByTag = make(map[string]int)
		}
		sum.QueuedByTag[c.tag] += q.tasks.Len()
		counts[c.name] = sum
	}
	return counts, s.paused
}
