package routing

import (
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal"
)

// A Lineage is the lineage of the cluster that a remote client has seen. It follows the cluster to
// later ones and never goes back. Callers synchronize.
type Lineage struct{ ids []string }

// Latest returns the ID of the lineage, "" before the cluster was restored or recovered.
func (l *Lineage) Latest() string { return lineage.Latest(l.ids) }

// Follow takes the lineages that a node continues, oldest first. It returns whether they are later
// than those that were seen before, and a *journal.LineageError if the client must not use that
// node.
func (l *Lineage) Follow(ids []string) (changed bool, err error) {
	if len(l.ids) == 0 {
		l.ids = ids // every lineage continues the cluster as it was founded
		return len(ids) > 0, nil
	}
	switch lineage.Compare(l.ids, ids) {
	case lineage.Same:
		return false, nil
	case lineage.Later:
		l.ids = ids
		return true, nil
	}
	return false, &journal.LineageError{Own: lineage.Latest(ids), Latest: l.Latest()}
}
