package journalpb

import (
	"slices"
	"strings"
)

// WithAttribute returns the attributes, in order of their names, after one was set or removed. It
// does not change the given slice.
func WithAttribute(attributes []*AttributeSet, set *AttributeSet) []*AttributeSet {
	at, found := slices.BinarySearchFunc(attributes, set.Name, func(a *AttributeSet, name string) int {
		return strings.Compare(a.Name, name)
	})
	after := slices.Clone(attributes)
	switch {
	case found && set.Value == nil:
		return slices.Delete(after, at, at+1)
	case found:
		after[at] = set
	case set.Value != nil:
		return slices.Insert(after, at, set)
	}
	return after
}
