package filter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
)

// Format returns the text of a filter, "" if it selects all instances. [Parse] reads it, unless a
// field has a value that a cluster would reject. Times are written as such, not as ages.
func Format(f cluster.Filter) string {
	var t texts
	states := make([]string, len(f.States))
	for i, state := range f.States {
		states[i] = strings.ReplaceAll(string(state), " ", "-")
	}
	t.value("state=", strings.Join(states, ","))
	t.value("name=", f.Name)
	t.value("version=", f.Version)
	if f.IDPrefix != "" {
		t.value("id=", f.IDPrefix+"*")
	}
	t.values("tag.", f.Tags)
	t.values("attr.", f.Attributes)
	t.value("parent=", f.ParentID)
	t.value("error=", f.ErrorCode)
	t.interval("created", f.CreatedFrom, f.CreatedBefore)
	t.interval("updated", f.UpdatedFrom, f.UpdatedBefore)
	t.interval("ended", f.EndedFrom, f.EndedBefore)
	switch {
	case f.WaitingName != "":
		t.value("waiting=", cmp.Or(f.WaitingKind, anyKind)+":"+f.WaitingName)
	default:
		t.value("waiting=", f.WaitingKind)
	}
	t.interval("since", f.WaitingFrom, f.WaitingBefore)
	if f.FailingAttempts != 0 {
		t.value("failing>=", strconv.Itoa(f.FailingAttempts))
	}
	t.value(wordFailingError+"=", f.FailingCode)
	order := cmp.Or(f.Order, instances.Orders()[0])
	if f.Descending {
		t.value("order=", "-"+order)
	} else if order != instances.Orders()[0] {
		t.value("order=", order)
	}
	return strings.Join(t, " ")
}

// texts are the words of a filter.
type texts []string

// value adds a word whose value is not empty.
func (t *texts) value(field, value string) {
	if value != "" {
		*t = append(*t, field+quote(value, ""))
	}
}

func (t *texts) values(field string, values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		*t = append(*t, field+quote(key, "=<>")+"="+quote(values[key], ""))
	}
}

func (t *texts) interval(field string, from, before time.Time) {
	if !from.IsZero() {
		*t = append(*t, field+">="+formatTime(from))
	}
	if !before.IsZero() {
		*t = append(*t, field+"<"+formatTime(before))
	}
}

// quote returns a text in quotes if it is empty or has a quote, a space, an unprintable character
// or one of others.
func quote(text, others string) string {
	special := func(r rune) bool {
		return r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar || strings.ContainsRune(others, r)
	}
	if text == "" || strings.ContainsFunc(text, special) {
		return strconv.Quote(text)
	}
	return text
}
