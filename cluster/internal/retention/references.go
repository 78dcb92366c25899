package retention

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Partition is another partition of the cluster, as this node's replica shows it.
type Partition interface {
	// Owns reports whether an instance belongs to the partition.
	Owns(instance string) bool
	// CatchUp waits until the replica shows all that was committed before the call.
	CatchUp(ctx context.Context) error
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
	Orphans() iter.Seq[*journalpb.Instance]
	HasChainedStart(instance string) bool
}

// References finds the ended instances that a parent, a child or another partition still needs. It
// caches what it reads. An outdated cache entry can only keep an instance longer.
type References struct {
	store           Store
	otherPartitions []Partition
	knownAt         clustertime.Time // before this node caught up with the other partitions
	// parentsOfOrphans holds the parents of the orphans of all partitions. In its own partition, a
	// running child is also an orphan if another partition owns its parent.
	parentsOfOrphans map[string]bool
	scanned          map[string]bool // parents whose open operations are in openOperations
	openOperations   map[operationKey]bool
}

type operationKey struct {
	instance                        string
	incarnation, execution, eventID uint64
}

func operationKeyOf(ref *journalpb.OperationRef) operationKey {
	return operationKey{ref.GetInstance(), ref.GetIncarnation(), ref.GetExecution(), ref.GetEventId()}
}

// NewReferences reads the instances of a store and of the other partitions. now is the store's
// time.
func NewReferences(ctx context.Context, s Store, o []Partition, now clustertime.Time) (*References, error) {
	r := &References{
		store: s, otherPartitions: o, knownAt: now,
		parentsOfOrphans: make(map[string]bool), scanned: make(map[string]bool), openOperations: make(map[operationKey]bool),
	}
	for _, g := range o {
		if err := g.CatchUp(ctx); err != nil {
			return nil, fmt.Errorf("read other partitions: %w", err)
		}
		for child := range g.Orphans() {
			r.parentsOfOrphans[child.GetParent().GetInstance()] = true
		}
	}
	for child := range s.Orphans() {
		r.parentsOfOrphans[child.GetParent().GetInstance()] = true
	}
	return r, nil
}

// ownerOf returns the other partition that owns an instance, nil if none does.
func (r *References) ownerOf(instance string) Partition {
	for _, g := range r.otherPartitions {
		if g.Owns(instance) {
			return g
		}
	}
	return nil
}

// isReferencedByOthers reports whether another partition still needs an ended instance. Its parent
// there may wait for it. Or a chained start there is not acknowledged yet and would start the
// instance again. An instance created at knownAt or later counts as referenced, because this node
// may lack what the other partitions have recorded about it.
func (r *References) isReferencedByOthers(known *journalpb.Instance) bool {
	if len(r.otherPartitions) == 0 {
		return false
	}
	if known.CreatedAt >= r.knownAt.UnixNano() {
		return true
	}
	for _, g := range r.otherPartitions {
		if g.HasChainedStart(known.Instance) {
			return true
		}
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	g := r.ownerOf(parent.Instance)
	if g == nil {
		return false
	}
	for operation := range g.InstanceOperations(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// IsReferenced reports whether a parent, a child or another partition still needs an ended
// instance. Running children may need its history, which decides what happens to them. A parent
// that has not recorded the instance's end would start it again.
func (r *References) IsReferenced(known *journalpb.Instance) bool {
	if r.parentsOfOrphans[known.Instance] || r.isReferencedByOthers(known) {
		return true
	}
	parent := known.Parent
	if parent == nil {
		return false
	}
	if !r.scanned[parent.Instance] {
		r.scanned[parent.Instance] = true
		for operation := range r.store.InstanceOperations(parent.Instance) {
			r.openOperations[operationKeyOf(operation.Ref)] = true
		}
	}
	if r.openOperations[operationKeyOf(parent)] {
		return true
	}
	for operation := range r.store.InstanceOperations(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true
		}
	}
	return false
}

// ParentWaits reports whether the operation that began an instance is still open in the parent, in
// this partition or in another. The error is that of catching up with the other partition.
func ParentWaits(ctx context.Context, s Store, others []Partition, child *journalpb.Instance) (bool, error) {
	parent := child.GetParent()
	if parent == nil {
		return false, nil
	}
	operations := s.InstanceOperations
	for _, g := range others {
		if g.Owns(parent.Instance) {
			if err := g.CatchUp(ctx); err != nil {
				return false, fmt.Errorf("read the parent's partition: %w", err)
			}
			operations = g.InstanceOperations
		}
	}
	for operation := range operations(parent.Instance) {
		if proto.Equal(operation.Ref, parent) {
			return true, nil
		}
	}
	return false, nil
}
