package state

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// sets are the instances that somebody asks for without knowing their IDs. Each
// is decided by the instance alone and kept up to date by move, so that asking
// costs what is in the set.
type sets struct {
	busy     map[string]*instance // with open operations
	unbegun  map[string]*instance // running, of which no code has run yet
	children map[string]*instance // running, and started by a parent
}

func newSets() sets {
	return sets{map[string]*instance{}, map[string]*instance{}, map[string]*instance{}}
}

// memberships says to which sets an instance belongs.
type memberships struct{ busy, unbegun, child bool }

func (in *instance) memberships() memberships {
	running := in.running()
	return memberships{
		busy:    len(in.open) > 0,
		unbegun: running && in.last == 1,
		child:   running && in.parent != nil,
	}
}

// move takes an instance out of sets that it was in and into those to which it
// belongs now.
func (s *sets) move(in *instance, was memberships) {
	is := in.memberships()
	if is == was {
		return
	}
	place(s.busy, in, was.busy, is.busy)
	place(s.unbegun, in, was.unbegun, is.unbegun)
	place(s.children, in, was.child, is.child)
}

func place(set map[string]*instance, in *instance, was, is bool) {
	switch {
	case is && !was:
		set[in.id] = in
	case was && !is:
		delete(set, in.id)
	}
}

// orphaned reports whether the operation that started a child is no longer
// open.
func (c *contents) orphaned(in *instance) bool {
	parent, ok := c.instances[in.parent.instance]
	if !ok || parent.execution != in.parent.execution {
		return true
	}
	at, open := parent.open.find(in.parent.event)
	return !open || parent.open[at].arm != journalpb.ArmSubOrchestrationScheduled
}
