package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// pageEvents returns the events of pages with refusals of instances, and of another activity.
func pageEvents(t *testing.T, pages ...[]string) (events []*journalpb.Event) {
	t.Helper()
	call := func(name string, output any) {
		payload, err := engine.Encode(output)
		if err != nil {
			t.Fatal(err)
		}
		id := uint64(len(events) + 1)
		events = append(events,
			&journalpb.Event{EventId: id, Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{Name: name}}},
			&journalpb.Event{EventId: id + 1, SourceEventId: id, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Result: payload}}})
	}
	for _, ids := range pages {
		var refusals []Refusal
		for _, id := range ids {
			refusals = append(refusals, Refusal{InstanceID: id, Code: "ended"})
		}
		output := map[string]any{"Visited": len(ids), "Refusals": refusals}
		call("tenuto.bulk.list", output) // its result is not that of a page
		call("tenuto.bulk.page", output)
	}
	return events
}

// Pages of every size list each refusal once, in order, over all executions.
func TestRefusals_PagesOverExecutions(t *testing.T) {
	executions := map[uint64][]*journalpb.Event{
		2:  pageEvents(t, []string{"a", "b"}, nil, []string{"c"}),
		10: pageEvents(t, []string{"d", "e", "f"}, []string{"g"}),
	}
	internals := access.Internals{Events: func(_ context.Context, _ string, execution uint64, pass func(*journalpb.Event) error, _ ...replay.Option) (uint64, error) {
		for _, event := range executions[execution] {
			if err := pass(event); err != nil {
				return execution, err
			}
		}
		return execution, nil
	}}
	want := []string{"a", "b", "c", "d", "e", "f", "g"}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []string
		calls := 0
		for after := ""; calls == 0 || after != ""; calls++ {
			from, err := parsePlace(after)
			if err != nil {
				t.Fatal(err)
			}
			r := &refusalReader{internals: internals, from: from, limit: limit}
			page, err := r.readAll(t.Context(), "j", []uint64{2, 10})
			if err != nil {
				t.Fatal(err)
			}
			for _, refusal := range page.Refusals {
				got = append(got, refusal.InstanceID)
			}
			after = page.Next
		}
		if !slices.Equal(got, want) || calls != (len(want)+limit-1)/limit {
			t.Errorf("limit %d: %v in %d calls", limit, got, calls)
		}
	}
}

func TestParsePlace(t *testing.T) {
	for _, p := range []place{{1, 2, 3}, {10, 200, 0}} {
		if got, err := parsePlace(p.String()); err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	for _, text := range []string{"x", "1.2", "1.2.3.4", "1.2.x", "-1.2.3", "1..3"} {
		if _, err := parsePlace(text); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	ordered := []place{{1, 1, 0}, {1, 1, 1}, {1, 2, 0}, {2, 1, 0}}
	for i, p := range ordered {
		for k, q := range ordered {
			if p.before(q) != (i < k) {
				t.Error(fmt.Sprint(p), "before", q, "is", p.before(q))
			}
		}
	}
}
