package lineage

import "slices"

// A Relation says how the lineage of another node relates to one's own.
type Relation int

// The relations.
const (
	Unknown  Relation = iota // one of the two has no data yet, or does not name its lineages
	Same                     // both are of one lineage
	Later                    // the other continues one's own
	Earlier                  // one's own continues the other
	Diverged                 // neither continues the other
)

// Compare compares two lists of the IDs of lineages that a node continues, oldest first, of which
// the last is its own. A list may lack the oldest ones, so only common IDs count, not positions.
func Compare(own, other []string) Relation {
	if len(own) == 0 || len(other) == 0 {
		return Unknown
	}
	ownLatest, otherLatest := Latest(own), Latest(other)
	switch {
	case ownLatest == otherLatest:
		return Same
	case slices.Contains(other, ownLatest):
		return Later
	case slices.Contains(own, otherLatest):
		return Earlier
	}
	return Diverged
}

// Latest returns the last ID of a list, "" if it is empty.
func Latest(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return ids[len(ids)-1]
}
