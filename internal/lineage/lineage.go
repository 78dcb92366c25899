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

// Latest returns the last of a list, oldest first, of lineages or their IDs; the zero value if it
// is empty. The methods of a nil lineage return zero values.
func Latest[T any](all []T) (latest T) {
	if len(all) > 0 {
		latest = all[len(all)-1]
	}
	return latest
}

// IDs returns the IDs of lineages.
func IDs[L interface{ GetId() string }](all []L) (ids []string) {
	for _, of := range all {
		ids = append(ids, of.GetId())
	}
	return ids
}
