package pairing_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/pairing"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// pairsOf returns "event-other" for each event of a pair.
func pairsOf(t *testing.T, events ...string) string {
	t.Helper()
	var lines []string
	for i, e := range events {
		lines = append(lines, fmt.Sprintf(`{"eventId":"%d","timestamp":"%d",%s}`, i+1, i+1, e))
	}
	h, err := history.Read(strings.NewReader(fmt.Sprintf(`{"format":"tenuto.history/1","instance":"a","execution":1,"events":[%s]}`, strings.Join(lines, ","))))
	if err != nil {
		t.Fatal(err)
	}
	pairs := pairing.New()
	for _, e := range h.Events {
		pairs.Add(e)
		pairs.Add(e) // changes nothing
	}
	var found []string
	for _, e := range h.Events {
		if other, at := pairs.Of(e); other > 0 {
			found = append(found, fmt.Sprintf("%d-%d", e.EventID, other))
			if at.UnixNano() != int64(other) {
				t.Errorf("event %d was recorded at %d", other, at.UnixNano())
			}
		}
	}
	return strings.Join(found, " ")
}

func TestPairs_FollowOrderOfEvents(t *testing.T) {
	const (
		start     = `"orchestrationStarted":{"name":"o"}`
		a         = `"externalSubscribed":{"name":"a"}`
		b         = `"externalSubscribed":{"name":"b"}`
		gotA      = `"externalEvent":{"name":"a"}`
		gotB      = `"externalEvent":{"name":"b"}`
		gotUpdate = `"externalEvent":{"name":"tenuto.update/a"}`
	)
	for _, c := range []struct {
		name   string
		events []string
		want   string
	}{
		{"activity", []string{start, `"activityScheduled":{"name":"x"}`, `"timerCreated":{}`, `"sourceEventId":"2","activityFailed":{}`}, "2-4 4-2"},
		{"two subscriptions", []string{start, a, a, gotA, gotA}, "2-4 3-5 4-2 5-3"},
		{"names", []string{start, a, b, gotB, gotA}, "2-5 3-4 4-3 5-2"},
		{"events first", []string{start, gotA, gotA, a}, "2-4 4-2"},
		{"updates have no subscription", []string{start, `"externalSubscribed":{"name":"tenuto.update/a"}`, gotUpdate}, ""},
		{"canceled subscription", []string{start, a, a, `"sourceEventId":"2","cancelRequested":{}`, gotA}, "2-4 3-5 4-2 5-3"},
		{"canceled while an event waits", []string{start, a, gotA, `"sourceEventId":"2","cancelRequested":{}`, a}, "2-4 3-5 4-2 5-3"},
		{"carried events are not known", []string{`"orchestrationStarted":{"name":"o","inbox":[{"name":"a"}]}`, a, gotA}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := pairsOf(t, c.events...); got != c.want {
				t.Errorf("pairs %q; want %q", got, c.want)
			}
		})
	}
}
