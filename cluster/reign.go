package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// reviewEvery is how often a leader looks whether others lead the other groups.
const reviewEvery = 50 * time.Millisecond

// A reign is what the leader of one of several groups has to do with the others,
// for one epoch.
type reign struct {
	group    *group
	epoch    uint64
	couriers []*courier // by group; nil for its own
	// The epochs of the other groups up to which everything was reviewed.
	seen []uint64
}

// newReign is to be called before the partition is opened, which then takes up what
// earlier epochs of the other groups have left.
func newReign(g *group, epoch uint64) *reign {
	r := &reign{group: g, epoch: epoch, couriers: make([]*courier, len(g.groups)), seen: make([]uint64, len(g.groups))}
	for i, other := range g.groups {
		r.seen[i] = other.journal.Epoch()
		if other != g {
			r.couriers[i] = newCourier(other)
		}
	}
	return r
}

// Holds implements actors.Elsewhere.
func (r *reign) Holds(instance string) bool { return r.group.of(instance) != r.group }

// Replica implements actors.Elsewhere.
func (r *reign) Replica(instance string) actors.Replica { return r.group.of(instance).journal }

// Send implements actors.Elsewhere.
func (r *reign) Send(c *actors.Crossing, done func(actors.Answer)) {
	r.couriers[r.group.of(c.Instance).number].put(parcel{c, done})
}

// Started implements actors.Elsewhere.
func (r *reign) Started(target string, done func(error)) {
	r.group.journal.Started(r.epoch, target, done)
}

// keep does it, until ctx ends.
func (r *reign) keep(ctx context.Context) {
	var carrying sync.WaitGroup
	defer carrying.Wait()
	for _, c := range r.couriers {
		if c != nil {
			carrying.Go(func() { c.carry(ctx) })
		}
	}
	carrying.Go(func() { r.tend(ctx) })
	ticker := time.NewTicker(reviewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.review()
		case <-ctx.Done():
			return
		}
	}
}

// review goes through what is shared with groups that have begun another epoch.
// What this replica shows then is all that the leader before has committed.
func (r *reign) review() {
	p := r.group.partition.Load()
	if p == nil {
		return
	}
	changed := make(map[*group]bool)
	for i, other := range r.group.groups {
		if epoch := other.journal.Epoch(); other != r.group && epoch != r.seen[i] {
			r.seen[i], changed[other] = epoch, true
		}
	}
	if len(changed) > 0 {
		p.Review(func(instance string) bool { return changed[r.group.of(instance)] })
	}
}

// tend looks after the group while this node leads it.
func (r *reign) tend(ctx context.Context) {
	for rest(ctx, r.group.closing, r.group.config.tendEvery) == nil {
		r.removeMembers(ctx)
		r.adoptMembers(ctx)
	}
}

// adoptMembers records in this group the directories that the first group has recorded for
// members: there it is decided, and whoever has asked for it may be gone.
func (r *reign) adoptMembers(ctx context.Context) {
	g, first := r.group, r.group.groups[0]
	differing := func() map[string]string {
		decided := make(map[string]string)
		for _, m := range first.journal.Members() {
			decided[m.Node] = m.Identity
		}
		for _, m := range g.journal.Members() {
			if m.Identity == "" || decided[m.Node] == m.Identity {
				delete(decided, m.Node)
			}
		}
		return decided
	}
	if g.number == 0 || len(differing()) == 0 || first.catchUp(ctx) != nil {
		return
	}
	for node, identity := range differing() { // this node's replica of the first group may have been behind
		if identity == "" || !g.journal.IsMember(node) || node == g.config.NodeID {
			continue
		}
		err := g.journal.AdoptMember(ctx, node, identity)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrChanging) && !errors.Is(err, journal.ErrNotLeader) {
			g.config.Logger.Warn("adopt the directory of a node in a partition", "member", node, "partition", g.number, "error", err)
		}
	}
}

// removeMembers removes from this group whom the first group has removed: there it
// is decided, and whoever has asked for it may be gone.
func (r *reign) removeMembers(ctx context.Context) {
	g := r.group
	removed := g.groups[0].journal.Removed()
	for _, m := range g.journal.Members() {
		if _, gone := slices.BinarySearch(removed, m.Node); !gone || g.number == 0 {
			continue
		}
		err := g.journal.RemoveMember(ctx, m.Node)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrChanging) && !errors.Is(err, journal.ErrNotLeader) {
			g.config.Logger.Warn("remove node from a group", "member", m.Node, "partition", g.number, "error", err)
		}
	}
}

// catchUp waits until this node's replica of the group shows all that was committed
// before the call.
func (g *group) catchUp(ctx context.Context) error {
	response, err := g.call(ctx, g.request(&clusterpb.Request{Call: &clusterpb.Request_Index{Index: new(clusterpb.IndexRequest)}}))
	if err != nil {
		return err
	}
	return g.poll(ctx, func() bool { return g.journal.AppliedIndex() >= response.AppliedIndex })
}
