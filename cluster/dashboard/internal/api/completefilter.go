package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
)

// Values of filters are read again after valuesAge. Tags, attributes and error codes are those of the
// instances that changed last, valuesSample of them.
const (
	valuesAge    = 10 * time.Second
	valuesSample = 100
)

// suggestionsAnswer is what can replace the word of a filter that ends at the cursor.
type suggestionsAnswer struct {
	Suggestions []suggestionView `json:"suggestions"`
	Error       *filterError     `json:"error"` // in another word, null if there is none
}

type suggestionView struct {
	Text   string `json:"text"`
	Kind   string `json:"kind"` // "word" or "value"
	Detail string `json:"detail,omitempty"`
}

type filterError struct {
	Message string `json:"message"`
	Offset  int    `json:"offset"` // in UTF-16 code units
}

func (a *instanceAPI) completeFilter(ctx context.Context, r *request) (*suggestionsAnswer, error) {
	text := r.FormValue("text")
	cursor, err := r.number("cursor", uint64(len(text)), 0, 1<<20)
	if err != nil {
		return nil, err
	}
	start, suggestions := filter.Complete(text, bytesOf(text, int(cursor)), a.values.of(ctx, r))
	answer := &suggestionsAnswer{Suggestions: []suggestionView{}}
	for _, s := range suggestions {
		kind := "value"
		if strings.ContainsAny(s.Text[len(s.Text)-1:], "=<>.") {
			kind = "word"
		}
		answer.Suggestions = append(answer.Suggestions, suggestionView{s.Text, kind, s.Detail})
	}
	var syntax *filter.SyntaxError
	if _, err := filter.Parse(text, time.Now()); errors.As(err, &syntax) && (syntax.Offset != start || len(suggestions) == 0) {
		answer.Error = &filterError{syntax.Error(), len(utf16.Encode([]rune(text[:syntax.Offset])))}
	}
	return answer, nil
}

// bytesOf returns the offset in bytes of one in UTF-16 code units, as scripts count.
func bytesOf(text string, units int) int {
	for at, r := range text {
		if units <= 0 {
			return at
		}
		units -= utf16.RuneLen(r)
	}
	return len(text)
}

// filterValues are values that instances have, read when a filter is completed.
type filterValues struct {
	client *cluster.Client

	mu     sync.Mutex
	readAt time.Time
	known  map[string][]string // by field, with its key after a dot
}

// of returns the values that a user may see. Reading them is only a help: an error leaves some out.
func (v *filterValues) of(ctx context.Context, r *request) filter.ValueSource {
	seesMembers := r.seesMembers()
	return func(field, key string) []string {
		v.mu.Lock()
		defer v.mu.Unlock()
		if time.Since(v.readAt) > valuesAge {
			v.read(ctx)
		}
		if field == "waiting" {
			return v.waiting(key, seesMembers)
		}
		if key != "" {
			field += "." + key
		}
		return v.known[field]
	}
}

// waiting returns the names of what instances may wait for. v.mu is held.
func (v *filterValues) waiting(kind string, seesMembers bool) (names []string) {
	if (kind == "activity" || kind == "any") && seesMembers {
		names = append(names, v.known["activity"]...)
	}
	if kind == "child" || kind == "any" {
		names = append(names, v.known["name"]...)
	}
	return names
}

// read reads all values. Pages abandon requests while the user types, which must not leave values out.
// v.mu is held.
func (v *filterValues) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), membersTimeout)
	defer cancel()
	v.readAt, v.known = time.Now(), map[string][]string{}
	groups, _ := v.client.CountBy(ctx, cluster.Filter{}, []string{"name", "version"}, cluster.Stale())
	for _, g := range groups {
		v.add("name", g.Values[0])
		v.add("version", g.Values[1])
	}
	if page, err := v.client.List(ctx, cluster.Filter{Order: "updated", Descending: true}, "", valuesSample, cluster.Stale()); err == nil {
		for _, s := range page.Instances {
			v.addInstance(s)
		}
	}
	v.readActivities(ctx)
	for _, values := range v.known {
		slices.Sort(values)
	}
}

func (v *filterValues) addInstance(s *cluster.Status) {
	for key, value := range s.Tags {
		v.add("tag", key)
		v.add("tag."+key, value)
	}
	for name, value := range s.Attributes {
		v.add("attr", name)
		v.add("attr."+name, value)
	}
	if failure := errorViewOf(s.Err); failure != nil {
		v.add("error", failure.Code)
		v.add("failing.error", failure.Code)
	}
}

// readActivities adds the activities that nodes have code for.
func (v *filterValues) readActivities(ctx context.Context) {
	door, err := v.client.Internal(access.Key{})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, overviewTimeout)
	defer cancel()
	reports, _ := door.Reports(ctx)
	for _, r := range reports {
		for _, activity := range r.Report.GetActivities() {
			if !strings.HasPrefix(activity.Name, schedules.ReservedPrefix) {
				v.add("activity", activity.Name)
			}
		}
	}
}

// add adds a value that is not known yet.
func (v *filterValues) add(field, value string) {
	if value != "" && !slices.Contains(v.known[field], value) {
		v.known[field] = append(v.known[field], value)
	}
}
