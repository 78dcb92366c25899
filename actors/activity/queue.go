package activity

import "container/list"

// A class is the partition, name and tag of an activity. It determines the activity's queue and
// which nodes may run it.
type class struct {
	partition *Partition
	name      string
	tag       string
}

func (t *task) class() class {
	return class{t.partition, t.scheduled.Name, t.options.GetTag()}
}

// A taskQueue holds the waiting tasks of one class, oldest first. It exists only while it is not
// empty.
type taskQueue struct {
	class class
	tasks *list.List
}

// enqueue appends a task to the queue of its class. The lock is held.
func (s *Scheduler) enqueue(t *task) {
	key := t.class()
	q := s.queues[key]
	if q == nil {
		q = &taskQueue{class: key, tasks: list.New()}
		s.queues[key] = q
	}
	s.lastSequence++
	t.sequence, t.queue, t.element = s.lastSequence, q, q.tasks.PushBack(t)
	t.state = s.queuedState(key)
}

// dequeue removes a task from its queue, if it is in one. The scheduler's lock is held.
func (t *task) dequeue() {
	if t.queue == nil {
		return
	}
	t.queue.tasks.Remove(t.element)
	if t.queue.tasks.Len() == 0 {
		delete(t.scheduler().queues, t.queue.class)
	}
	t.queue, t.element = nil, nil
}

// setState sets the state of all tasks in a queue. The scheduler's lock is held.
func (t *taskQueue) setState(state State) {
	for e := t.tasks.Front(); e != nil; e = e.Next() {
		e.Value.(*task).state = state
	}
}

func (t *taskQueue) first() *task { return t.tasks.Front().Value.(*task) }

// oldestQueued returns the task that has waited longest among eligible classes, nil if there is
// none. The lock is held.
func (s *Scheduler) oldestQueued(eligible func(class) bool) *task {
	var oldest *task
	for key, q := range s.queues {
		if t := q.first(); (oldest == nil || t.sequence < oldest.sequence) && eligible(key) {
			oldest = t
		}
	}
	return oldest
}
