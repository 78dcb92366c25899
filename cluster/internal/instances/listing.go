package instances

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A word is what a caller writes for a value of a query.
type word[T any] struct {
	text  string
	value T
}

// The words of a request for a list. Clients write them, too.
var (
	stateWords = []word[index.State]{
		{string(actors.StateRunning), index.Running},
		{string(actors.StateHung), index.Hung},
		{string(actors.StateStalled), index.Stalled},
		{string(actors.StateSuspended), index.Suspended},
		{string(actors.StateWaitingForCode), index.WaitingForCode},
		{string(actors.StateCompleted), index.Completed},
		{string(actors.StateFailed), index.Failed},
		{string(actors.StateCanceled), index.Canceled},
		{string(actors.StateTerminated), index.Terminated},
	}
	kindWords = []word[index.Kind]{
		{"activity", index.Activity}, {"event", index.Event}, {"timer", index.Timer}, {"child", index.Child},
	}
	orderWords = []word[index.Order]{
		{"id", index.ByID}, {"created", index.ByCreated}, {"updated", index.ByUpdated}, {"ended", index.ByEnded},
		{"timer", index.ByNextTimer},
	}
	dimensionWords = []word[index.Dimension]{
		{"state", index.DimensionState}, {"name", index.DimensionName}, {"version", index.DimensionVersion},
		{"error", index.DimensionErrorCode},
	}
	// Dimensions that a key follows.
	keyedDimensionWords = []word[index.Dimension]{{"tag:", index.DimensionTag}, {"attr:", index.DimensionAttribute}}
)

// States returns the states that an instance can be in.
func States() []actors.State {
	all := make([]actors.State, len(stateWords))
	for i, w := range stateWords {
		all[i] = actors.State(w.text)
	}
	return all
}

// WaitingKinds returns the kinds of operations that a filter can name.
func WaitingKinds() []string { return textsOf(kindWords) }

// Orders returns the orders of a list.
func Orders() []string { return textsOf(orderWords) }

// Dimensions returns the dimensions of a count. Those that end in a colon need a key.
func Dimensions() []string { return append(textsOf(dimensionWords), textsOf(keyedDimensionWords)...) }

func textsOf[T any](words []word[T]) []string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.text
	}
	return texts
}

// valueOf returns the value of a text. The error names the field, the text and the permitted ones.
func valueOf[T any](field, text string, words []word[T]) (value T, err error) {
	for _, w := range words {
		if w.text == text {
			return w.value, nil
		}
	}
	return value, notPermitted(field, text, textsOf(words))
}

func notPermitted(field, text string, permitted []string) error {
	return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("is %.140q, which is none of: %s", text, strings.Join(permitted, ", "))}
}

// QueryOf returns the query of a request. The error is a [*replay.InvalidError] that names the
// field, the wrong value and the permitted ones.
func QueryOf(r *clusterpb.ListRequest) (q index.Query, err error) {
	q = index.Query{
		Name: r.Name, Version: r.Version, IDPrefix: r.IdPrefix, ParentID: r.Parent, ErrorCode: r.ErrorCode,
		Tags: r.Tags, Attributes: r.Attributes,
		Created:    index.Interval{From: r.CreatedFrom, Before: r.CreatedBefore},
		Updated:    index.Interval{From: r.UpdatedFrom, Before: r.UpdatedBefore},
		Ended:      index.Interval{From: r.EndedFrom, Before: r.EndedBefore},
		Descending: r.Descending,
	}
	for _, text := range r.States {
		state, err := valueOf("filter by state", text, stateWords)
		if err != nil {
			return q, err
		}
		q.States = append(q.States, state)
	}
	if r.Order != "" {
		if q.Order, err = valueOf("order", r.Order, orderWords); err != nil {
			return q, err
		}
	}
	if w := r.Waiting; w != nil {
		q.Waiting = &index.Waiting{Name: w.Name, Since: index.Interval{From: w.From, Before: w.Before}}
		if w.Kind != "" {
			if q.Waiting.Kind, err = valueOf("filter by kind of operation", w.Kind, kindWords); err != nil {
				return q, err
			}
		}
		if q.Waiting.Kind == index.Timer && w.Name != "" {
			return q, &replay.InvalidError{Field: "filter by name of operation", Reason: fmt.Sprintf("is %.140q: timers have no names", w.Name)}
		}
	}
	if f := r.Failing; f != nil {
		q.Failing = &index.Failing{Attempts: f.Attempts, ErrorCode: f.ErrorCode}
	}
	return q, nil
}

// GroupingsOf returns the dimensions of a count. Its errors are as those of QueryOf.
func GroupingsOf(texts []string) (by []index.Grouping, err error) {
	if len(texts) > dimensionsMax {
		return nil, &replay.InvalidError{Field: "dimensions", Reason: fmt.Sprintf("are %d: at most %d are allowed", len(texts), dimensionsMax)}
	}
	for _, text := range texts {
		grouping, ok := keyedGrouping(text)
		if !ok {
			if grouping.Dimension, err = valueOf("dimension", text, dimensionWords); err != nil {
				return nil, notPermitted("dimension", text, append(textsOf(dimensionWords), "tag:KEY", "attr:KEY"))
			}
		}
		by = append(by, grouping)
	}
	return by, nil
}

// dimensionsMax bounds the dimensions of one count.
const dimensionsMax = 8

// keyedGrouping returns the dimension of a text like "tag:tenant".
func keyedGrouping(text string) (g index.Grouping, ok bool) {
	for _, w := range keyedDimensionWords {
		if key, ok := strings.CutPrefix(text, w.text); ok && key != "" {
			return index.Grouping{Dimension: w.value, Key: key}, true
		}
	}
	return g, false
}

// cursorSeparator separates the parts of a cursor. It occurs in no instance ID.
const cursorSeparator = "~"

// orderText returns the order of a request as cursors show it.
func orderText(r *clusterpb.ListRequest) string {
	if r.Descending {
		return "-" + r.Order
	}
	return r.Order
}

func isByID(r *clusterpb.ListRequest) bool { return r.Order == "" || r.Order == orderWords[0].text }

// FormatCursor returns the text of a place in the list of a request. In the order by ID it is the
// ID, in others it holds the order, the time and the ID.
func FormatCursor(r *clusterpb.ListRequest, at index.Cursor) string {
	if isByID(r) {
		return at.ID
	}
	return strings.Join([]string{orderText(r), strconv.FormatInt(at.Key, 10), at.ID}, cursorSeparator)
}

// SetCursor makes a request continue at a place that FormatCursor returned for the same order. The
// error is a [*replay.InvalidError].
func SetCursor(r *clusterpb.ListRequest, after string) error {
	parts := strings.SplitN(after, cursorSeparator, 3)
	switch {
	case after == "":
		return nil
	case isByID(r) && len(parts) < 3:
		r.After = after
		return nil
	case isByID(r):
		return &replay.InvalidError{Field: "after", Reason: fmt.Sprintf("is %.140q, a place in another order than by ID", after)}
	case len(parts) < 3 || parts[0] != orderText(r) || parts[2] == "":
		return &replay.InvalidError{Field: "after", Reason: fmt.Sprintf("is %.140q, no place in the order %q: pass Page.Next of a list in that order", after, orderText(r))}
	}
	key, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return &replay.InvalidError{Field: "after", Reason: fmt.Sprintf("is %.140q, which Page.Next cannot be", after)}
	}
	r.After, r.AfterKey = parts[2], key
	return nil
}

// CursorOf returns the place after which the list of a request begins; nil at its beginning.
func CursorOf(r *clusterpb.ListRequest) *index.Cursor {
	if r.After == "" {
		return nil
	}
	return &index.Cursor{Key: r.AfterKey, ID: r.After}
}

// NextOf returns the place after which a list continues; more is false if it is complete. A node of
// an earlier build does not say the place.
func NextOf(list *clusterpb.ListResult) (at index.Cursor, more bool) {
	switch n := len(list.GetInstances()); {
	case !list.GetMore():
		return at, false
	case list.Next != "":
		return index.Cursor{Key: list.NextKey, ID: list.Next}, true
	case n > 0:
		return index.Cursor{ID: list.Instances[n-1].Instance}, true
	}
	return at, false
}

// GroupsOf returns the groups of a count.
func GroupsOf(list *clusterpb.ListResult) []index.Group {
	groups := make([]index.Group, len(list.GetGroups()))
	for i, g := range list.GetGroups() {
		groups[i] = index.Group{Values: g.Values, Count: g.Count}
	}
	return groups
}

// LimitOf returns the maximum number of instances in a page.
func LimitOf(r *clusterpb.ListRequest) int {
	if r.Limit == 0 {
		return ListDefault
	}
	return int(min(r.Limit, ListMax))
}

// A ranked is an instance of a list with its place.
type ranked struct {
	status *clusterpb.Status
	at     index.Cursor
}

// mergeCounts adds the counts of several partitions.
func mergeCounts(r *clusterpb.ListRequest, parts []*clusterpb.ListResult) (*clusterpb.ListResult, error) {
	merged := new(clusterpb.ListResult)
	var groups []*clusterpb.InstanceGroup
	for _, part := range parts {
		merged.Count += part.GetCount()
		groups = append(groups, part.GetGroups()...)
	}
	slices.SortStableFunc(groups, func(a, b *clusterpb.InstanceGroup) int { return slices.Compare(a.Values, b.Values) })
	for _, g := range groups {
		if n := len(merged.Groups); n > 0 && slices.Equal(merged.Groups[n-1].Values, g.Values) {
			merged.Groups[n-1].Count += g.Count
			continue
		}
		merged.Groups = append(merged.Groups, &clusterpb.InstanceGroup{Values: g.Values, Count: g.Count})
	}
	return merged, checkGroups(r, merged.Groups)
}

// checkGroups returns an error if a count has too many groups for an answer.
func checkGroups(r *clusterpb.ListRequest, groups []*clusterpb.InstanceGroup) error {
	size := 0
	for _, g := range groups {
		for _, value := range g.Values {
			size += len(value)
		}
	}
	if len(groups) <= index.GroupsMax && size <= index.GroupBytesMax {
		return nil
	}
	return tooManyGroups(r)
}

func tooManyGroups(r *clusterpb.ListRequest) error {
	return &replay.InvalidError{Field: "dimensions", Reason: fmt.Sprintf(
		"%s yield %v: use a filter that selects fewer instances", strings.Join(r.GroupBy, ", "), index.ErrTooManyGroups)}
}

// MergeLists merges the answers of several partitions to a request for a list or count. Beyond the
// earliest place at which one of them stopped, the list is not known: instances there belong to the
// next page. A page also ends with the row that brings it to index.PageBytesMax.
func MergeLists(r *clusterpb.ListRequest, parts []*clusterpb.ListResult) (*clusterpb.ListResult, error) {
	if r.Count {
		return mergeCounts(r, parts)
	}
	q, err := QueryOf(r)
	if err != nil {
		return nil, err
	}
	var all []ranked
	var end *index.Cursor
	for _, part := range parts {
		if at, more := NextOf(part); more && (end == nil || q.Compare(at, *end) < 0) {
			end = &at
		}
		for i, status := range part.GetInstances() {
			at := index.Cursor{ID: status.Instance}
			if i < len(part.Keys) {
				at.Key = part.Keys[i]
			}
			all = append(all, ranked{status, at})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int { return q.Compare(a.at, b.at) })
	if end != nil {
		known := slices.IndexFunc(all, func(x ranked) bool { return q.Compare(x.at, *end) > 0 })
		if known >= 0 {
			all = all[:known]
		}
	}
	if limit := LimitOf(r); len(all) > limit {
		all, end = all[:limit], &all[limit-1].at
	}
	merged := new(clusterpb.ListResult)
	bytes := 0
	for i, x := range all {
		if bytes += proto.Size(x.status); bytes >= index.PageBytesMax && i < len(all)-1 {
			all, end = all[:i+1], &all[i].at
			break
		}
	}
	for _, x := range all {
		merged.Instances = append(merged.Instances, x.status)
		if q.Order != index.ByID {
			merged.Keys = append(merged.Keys, x.at.Key)
		}
	}
	if end != nil {
		merged.More, merged.Next, merged.NextKey = true, end.ID, end.Key
	}
	return merged, nil
}
